// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// warnings records the warnings of the API server.
type warnings struct {
	mu   sync.Mutex
	list []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, text)
}

func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.list
	w.list = nil
	return out
}

// What Bulkhead does not carry is answered by a warning when it is written, and not again by
// each later write of the object.
func TestNotCarried(t *testing.T) {
	needAPI(t)
	createForeignCRD(t, "k8s.cni.cncf.io", "MultiNetworkPolicy", "multi-networkpolicies")
	createForeignCRD(t, "k8s.ovn.org", "EgressFirewall", "egressfirewalls")
	got := &warnings{}
	config := rest.CopyConfig(env.Admin)
	config.WarningHandler = got
	cl, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	meta := func(annotations, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{GenerateName: "not-carried-", Namespace: "default", Annotations: annotations, Labels: labels}
	}
	for name, c := range map[string]struct {
		object  client.Object
		want    string // part of the warning; "": none
		updates bool   // an update that changes something else warns again
	}{
		"network policy":           {&networkingv1.NetworkPolicy{ObjectMeta: meta(nil, nil), Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}}}, "does not enforce network policies", true},
		"multicast":                {&corev1.Namespace{ObjectMeta: meta(map[string]string{"k8s.ovn.org/multicast-enabled": "true"}, nil)}, "multicast-enabled has no effect", false},
		"ACL logging":              {&corev1.Namespace{ObjectMeta: meta(map[string]string{"k8s.ovn.org/acl-logging": "{}"}, nil)}, "acl-logging has no effect", false},
		"external gateway":         {&corev1.Namespace{ObjectMeta: meta(map[string]string{"k8s.ovn.org/routing-external-gws": "192.0.2.1"}, nil)}, "no external gateways", false},
		"external gateway's pod":   {&corev1.Pod{ObjectMeta: meta(map[string]string{"k8s.ovn.org/routing-namespaces": "red"}, nil), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}}, "no external gateways", false},
		"node for egress IPs":      {&corev1.Node{ObjectMeta: meta(nil, map[string]string{"k8s.ovn.org/egress-assignable": ""})}, "no egress IPs", false},
		"multi network policy":     {foreignObject("k8s.cni.cncf.io", "MultiNetworkPolicy", meta(nil, nil)), "does not enforce network policies", true},
		"egress firewall":          {foreignObject("k8s.ovn.org", "EgressFirewall", meta(nil, nil)), "does not support egressfirewalls", true},
		"bandwidth":                {&corev1.Pod{ObjectMeta: meta(map[string]string{"kubernetes.io/egress-bandwidth": "1M"}, nil), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}}, "does not limit pods' bandwidth", false},
		"source ranges":            {&corev1.Service{ObjectMeta: meta(nil, nil), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerSourceRanges: []string{"192.0.2.0/24"}, Ports: []corev1.ServicePort{{Port: 80}}}}, "loadBalancerSourceRanges has no effect", false},
		"service without":          {&corev1.Service{ObjectMeta: meta(nil, nil), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, "", false},
		"namespace without":        {&corev1.Namespace{ObjectMeta: meta(map[string]string{"k8s.ovn.org/other": "true"}, map[string]string{"x": "y"})}, "", false},
		"pod without":              {&corev1.Pod{ObjectMeta: meta(nil, nil), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}}, "", false},
		"node without annotations": {&corev1.Node{ObjectMeta: meta(nil, nil)}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			switch c.object.(type) {
			case *corev1.Namespace, *corev1.Node:
				c.object.SetNamespace("")
			}
			got.take()
			expect := func(what, want string) {
				t.Helper()
				list := got.take()
				if want == "" && len(list) > 0 || want != "" && (len(list) != 1 || !strings.Contains(list[0], want)) {
					t.Errorf("%s: warnings %q, want %q", what, list, want)
				}
			}
			if err := cl.Create(ctx, c.object); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cl.Delete(ctx, c.object, client.GracePeriodSeconds(0)) })
			expect("created", c.want)
			labels := c.object.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			labels["later"] = "yes"
			c.object.SetLabels(labels)
			if err := cl.Update(ctx, c.object); err != nil {
				t.Fatal(err)
			}
			again := ""
			if c.updates {
				again = c.want
			}
			expect("another label", again)
			annotations := c.object.GetAnnotations()
			keys := slices.DeleteFunc([]string{"k8s.ovn.org/multicast-enabled", "k8s.ovn.org/routing-external-gws"}, func(k string) bool { return annotations[k] == "" })
			for _, k := range keys {
				annotations[k] = "other"
				c.object.SetAnnotations(annotations)
				if err := cl.Update(ctx, c.object); err != nil {
					t.Fatal(err)
				}
				expect("another value", c.want)
			}
		})
	}
}

// foreignObject is an object of another network plugin's kind.
func foreignObject(group, kind string, meta metav1.ObjectMeta) client.Object {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(group + "/v1")
	o.SetKind(kind)
	o.SetGenerateName(meta.GenerateName)
	o.SetNamespace(meta.Namespace)
	return o
}

// createForeignCRD creates the CRD of another network plugin's kind, which accepts every object.
func createForeignCRD(t *testing.T, group, kind, plural string) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(env.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	keep := true
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: group, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &keep}}}},
	}}
	if err := cl.Create(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Delete(context.Background(), crd) })
	Eventually(t, func() error {
		if err := cl.Get(t.Context(), client.ObjectKeyFromObject(crd), crd); err != nil {
			return err
		}
		for _, c := range crd.Status.Conditions {
			if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
				return nil
			}
		}
		return errors.New("the CRD is not established")
	})
}
