// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// The label of primary networks can be set only when a namespace is created,
// through any subresource.
func TestNamespaceLabelPolicy(t *testing.T) {
	needAPI(t)
	cl, err := client.New(env.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	const label = "k8s.ovn.org/primary-user-defined-network"
	const fixed = "cannot be added/removed after the namespace was created: delete and recreate the namespace"
	has := map[string]string{label: ""}
	for _, c := range []struct {
		name   string
		before map[string]string
		after  map[string]string
		want   string
	}{
		{"label added to no labels", nil, has, fixed},
		{"label added", map[string]string{"team": "red"}, map[string]string{"team": "red", label: ""}, fixed},
		{"label removed", map[string]string{"team": "red", label: ""}, map[string]string{"team": "red"}, fixed},
		{"only label removed", has, nil, fixed},
		{"label's value changed", has, map[string]string{label: "x"}, "leave it as it is"},
		{"label stays", has, map[string]string{"team": "red", label: ""}, ""},
		{"other label added", nil, map[string]string{"team": "red"}, ""},
		{"other label removed", map[string]string{"team": "red"}, nil, ""},
	} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "policy-", Labels: c.before}}
		if err := cl.Create(ctx, ns); err != nil {
			t.Fatal(err)
		}
		for way, write := range map[string]func(*corev1.Namespace) error{
			"update":   func(o *corev1.Namespace) error { return cl.Update(ctx, o, client.DryRunAll) },
			"status":   func(o *corev1.Namespace) error { return cl.Status().Update(ctx, o, client.DryRunAll) },
			"finalize": func(o *corev1.Namespace) error { return cl.SubResource("finalize").Update(ctx, o, client.DryRunAll) },
		} {
			t.Run(c.name+" by "+way, func(t *testing.T) {
				waitVerdict(t, c.want, func() error {
					next := &corev1.Namespace{}
					if err := cl.Get(ctx, client.ObjectKeyFromObject(ns), next); err != nil {
						return err
					}
					// The API server adds this label to every namespace.
					next.Labels = map[string]string{corev1.LabelMetadataName: ns.Name}
					maps.Copy(next.Labels, c.after)
					return write(next)
				})
			})
		}
	}
}

// waitPolicies waits until all installed admission policies are in force, so that
// an accepted write is a verdict. It adds a policy after them: the API server loads
// policies in order.
func waitPolicies(ctx context.Context, e *Env) error {
	cl, err := client.New(e.Admin, client.Options{})
	if err != nil {
		return err
	}
	const name, refusal = "bulkhead-test-last", "refused by the last policy"
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{ResourceNames: []string{name}, RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}}}},
		Validations: []admissionv1.Validation{{Expression: "false", Message: refusal}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}
	for _, o := range []client.Object{policy, binding} {
		if err := cl.Create(ctx, o); err != nil {
			return err
		}
	}
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		err := cl.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}, client.DryRunAll)
		if err == nil || strings.Contains(err.Error(), refusal) {
			return err != nil, nil
		}
		return false, err
	})
}

// waitVerdict waits for a verdict: the API server needs a moment to load the
// roles that a test grants.
func waitVerdict(t testing.TB, want string, try func() error) {
	t.Helper()
	Eventually(t, func() error {
		err := try()
		if want == "" {
			return err
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("got %v, want a refusal with %q", err, want)
		}
		return nil
	})
}

// policyCase is a namespace and the clients that write in it.
type policyCase struct {
	namespace string
	admin     client.Client
	// tenant has all permissions in the namespace, and none outside.
	tenant client.Client
	// allowed are the users whom our policies exempt.
	allowed map[string]client.Client
}

const (
	superUser     = "super user"
	administrator = "administrator" // cluster-admin, but not in system:masters
	clusterRole   = "cluster controller"
	nodeRole      = "node role"   // on policyNode
	policyNode    = "policy-node" // there is no Node of this name
)

func newPolicyCase(t *testing.T) policyCase {
	t.Helper()
	needAPI(t)
	admin := nadClient(t, env.Admin)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "policy-"}}
	if err := admin.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	grantEverything(t, admin, ns.Name, "tenant")
	grantClusterRole(t, admin, "cluster-admin", "administrator")
	return policyCase{namespace: ns.Name, admin: admin, tenant: nadClient(t, impersonate("tenant")), allowed: map[string]client.Client{
		superUser: admin, administrator: nadClient(t, impersonate("administrator")),
		clusterRole: nadClient(t, env.Controller), nodeRole: nodeClient(t, policyNode),
	}}
}

// verdict makes a dry-run write as the tenant, who must get the verdict, and as the
// allowed users, for whom it must succeed.
func (p policyCase) verdict(t *testing.T, want string, write func(client.Client) error, allowed ...string) {
	t.Helper()
	waitVerdict(t, want, func() error { return write(p.tenant) })
	for _, user := range allowed {
		if err := write(p.allowed[user]); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
}

// create creates an object that is deleted after the test.
func (p policyCase) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := p.admin.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.admin.Delete(context.Background(), o, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
}

// A tenant with all permissions in a namespace may not write the annotations that
// assign a NAD to a network: only the cluster controller does.
func TestNetworkAnnotationsPolicy(t *testing.T) {
	p := newPolicyCase(t)
	ctx := t.Context()
	const refusal = "omit them from a new NetworkAttachmentDefinition, and do not change them in an existing one"
	both := map[string]string{network.AnnotationNetworkID: "7", network.AnnotationNetworkName: "cluster_udn_red"}
	nad := func(annotations map[string]string) *nadv1.NetworkAttachmentDefinition {
		// Of a type that our controllers ignore.
		return &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, GenerateName: "x-", Annotations: annotations},
			Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: `{"cniVersion":"1.1.0","name":"x","type":"macvlan"}`}}
	}
	for _, c := range []struct {
		name        string
		annotations map[string]string
		want        string
	}{
		{"id", map[string]string{network.AnnotationNetworkID: "7"}, refusal},
		{"name", map[string]string{network.AnnotationNetworkName: "cluster_udn_red"}, refusal},
		{"both", both, refusal},
		{"another", map[string]string{"team": "red"}, ""},
		{"none", nil, ""},
	} {
		t.Run("create with "+c.name, func(t *testing.T) {
			p.verdict(t, c.want, func(cl client.Client) error { return cl.Create(ctx, nad(c.annotations), client.DryRunAll) },
				superUser, administrator, clusterRole)
		})
	}
	bare, owned := nad(nil), nad(both)
	p.create(t, bare)
	p.create(t, owned)
	for _, c := range []struct {
		name  string
		on    *nadv1.NetworkAttachmentDefinition
		patch string
		want  string
	}{
		{"add the id", bare, `{"metadata":{"annotations":{"k8s.ovn.org/network-id":"7"}}}`, refusal},
		{"add the name", bare, `{"metadata":{"annotations":{"k8s.ovn.org/network-name":"x"}}}`, refusal},
		{"add that it is advertised", bare, `{"metadata":{"annotations":{"k8s.ovn.org/advertised-vrfs":"default"}}}`, refusal},
		{"say that it is advertised", owned, `{"metadata":{"annotations":{"k8s.ovn.org/advertised-vrfs":"default"}}}`, refusal},
		{"change the id", owned, `{"metadata":{"annotations":{"k8s.ovn.org/network-id":"8"}}}`, refusal},
		{"change the name", owned, `{"metadata":{"annotations":{"k8s.ovn.org/network-name":"x"}}}`, refusal},
		{"remove the id", owned, `{"metadata":{"annotations":{"k8s.ovn.org/network-id":null}}}`, refusal},
		{"remove all", owned, `{"metadata":{"annotations":null}}`, refusal},
		{"add another", bare, `{"metadata":{"annotations":{"team":"red"}}}`, ""},
		{"add another to both", owned, `{"metadata":{"annotations":{"team":"red"}}}`, ""},
		{"change the config", bare, `{"spec":{"config":"{}"}}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			patch := client.RawPatch(types.MergePatchType, []byte(c.patch))
			p.verdict(t, c.want, func(cl client.Client) error { return cl.Patch(ctx, c.on.DeepCopy(), patch, client.DryRunAll) },
				superUser, administrator, clusterRole)
		})
	}
	if err := p.tenant.Delete(ctx, owned); err != nil {
		t.Errorf("delete: %v", err)
	}
}

// grantEverything grants a user all permissions in a namespace.
func grantEverything(t *testing.T, admin client.Client, namespace, user string) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}}}
	for _, o := range []client.Object{role, binding} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// grantClusterRole grants a user a ClusterRole during the test.
func grantClusterRole(t *testing.T, admin client.Client, role, user string) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "policy-"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}}}
	if err := admin.Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin.Delete(context.Background(), binding); err != nil {
			t.Error(err)
		}
	})
}

func impersonate(user string) *rest.Config {
	c := rest.CopyConfig(env.Admin)
	c.Impersonate = rest.ImpersonationConfig{UserName: user}
	return c
}

// A tenant with all permissions in a namespace may not write the annotation with a
// pod's addresses: not in a new pod, not later, not through its status or binding.
func TestPodNetworksPolicy(t *testing.T) {
	p := newPolicyCase(t)
	ctx := t.Context()
	const addresses = `{"default":{"ip_addresses":["10.244.0.9/24"],"mac_address":"0a:58:0a:f4:00:09"}}`
	pod := func(annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, GenerateName: "p-", Annotations: annotations},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
	}
	const refusal = "omit it from a new pod, and do not change it in an existing one; request addresses in"
	annotated := map[string]string{network.AnnotationPodNetworks: addresses}
	for _, c := range []struct {
		name        string
		annotations map[string]string
		want        string
	}{
		{"addresses", annotated, refusal},
		{"a request", primaryRequest(`"ips":["10.0.0.9/24"]`), ""},
		{"nothing", nil, ""},
	} {
		t.Run("create with "+c.name, func(t *testing.T) {
			p.verdict(t, c.want, func(cl client.Client) error { return cl.Create(ctx, pod(c.annotations), client.DryRunAll) },
				superUser, administrator)
		})
		t.Run("bind with "+c.name, func(t *testing.T) {
			unbound := pod(nil)
			p.create(t, unbound)
			binding := func() *corev1.Binding {
				return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: unbound.Name, Annotations: c.annotations},
					Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
			}
			for way, write := range map[string]func(client.Client) error{
				"pods/binding": func(cl client.Client) error {
					return cl.SubResource("binding").Create(ctx, unbound.DeepCopy(), binding(), client.DryRunAll)
				},
				"bindings": func(cl client.Client) error { return cl.Create(ctx, binding(), client.DryRunAll) },
			} {
				t.Run(way, func(t *testing.T) { p.verdict(t, c.want, write, superUser, administrator) })
			}
		})
	}
	bare, addressed := pod(nil), pod(annotated)
	bare.Spec.NodeName, addressed.Spec.NodeName = policyNode, policyNode
	node := []string{nodeRole}
	p.create(t, bare)
	p.create(t, addressed)
	for _, c := range []struct {
		name  string
		on    *corev1.Pod
		patch string
		want  string
		also  []string // further allowed users
	}{
		{"add", bare, `{"metadata":{"annotations":{"k8s.ovn.org/pod-networks":"{}"}}}`, refusal, node},
		{"change", addressed, `{"metadata":{"annotations":{"k8s.ovn.org/pod-networks":"{}"}}}`, refusal, node},
		{"remove", addressed, `{"metadata":{"annotations":{"k8s.ovn.org/pod-networks":null}}}`, refusal, node},
		{"remove all", addressed, `{"metadata":{"annotations":null}}`, refusal, node},
		{"add another", bare, `{"metadata":{"annotations":{"team":"red"}}}`, "", nil},
		{"add another to addresses", addressed, `{"metadata":{"annotations":{"team":"red"}}}`, "", nil},
		{"write the same value", addressed, fmt.Sprintf(`{"metadata":{"annotations":{"k8s.ovn.org/pod-networks":%q}}}`, addresses), "", node},
	} {
		patch := client.RawPatch(types.MergePatchType, []byte(c.patch))
		for _, way := range []struct {
			name    string
			write   func(client.Client) error
			allowed []string
		}{
			{"pod", func(cl client.Client) error { return cl.Patch(ctx, c.on.DeepCopy(), patch, client.DryRunAll) },
				append([]string{superUser, administrator, clusterRole}, c.also...)},
			// Our roles do not write the status, and have no permission to.
			{"status", func(cl client.Client) error { return cl.Status().Patch(ctx, c.on.DeepCopy(), patch, client.DryRunAll) },
				[]string{superUser, administrator}},
		} {
			t.Run(c.name+" in the "+way.name, func(t *testing.T) { p.verdict(t, c.want, way.write, way.allowed...) })
		}
	}
}

func nadClient(t *testing.T, c *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, nadv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	cl, err := client.New(c, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return cl
}
