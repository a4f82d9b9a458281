// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A load balancer's addresses go before others' externalIPs: a tenant with all permissions in
// a namespace may not write them into its own Service, and a load balancer's controller may.
func TestServiceStatusPolicy(t *testing.T) {
	p := newPolicyCase(t)
	ctx := t.Context()
	controllerRole := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "policy-"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"services/status"}, Verbs: []string{"patch"}}}}
	p.create(t, controllerRole)
	grantClusterRole(t, p.admin, controllerRole.Name, "balancer")
	p.allowed["balancer"] = nadClient(t, impersonate("balancer"))

	newService := func(ingress ...corev1.LoadBalancerIngress) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, GenerateName: "x-"},
			Spec:   corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress}}}
		return s
	}
	address := corev1.LoadBalancerIngress{IP: "203.0.113.7"}
	// given has an address of a load balancer, bare has none.
	given, bare := newService(), newService()
	p.create(t, given)
	p.create(t, bare)
	given.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{address}
	if err := p.admin.Status().Update(ctx, given); err != nil {
		t.Fatal(err)
	}

	const refusal = "give this one a ClusterRole"
	for _, c := range []struct {
		name, patch string
		on          *corev1.Service
		want        string
	}{
		{"take an address", `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.7"}]}}}`, bare, refusal},
		{"take a name", `{"status":{"loadBalancer":{"ingress":[{"hostname":"x.example"}]}}}`, bare, refusal},
		{"take another", `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.8"}]}}}`, given, refusal},
		{"add another", `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.7"},{"ip":"203.0.113.8"}]}}}`, given, refusal},
		{"change its mode", `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.7","ipMode":"Proxy"}]}}}`, given, refusal},
		{"give it up", `{"status":{"loadBalancer":null}}`, given, refusal},
		{"set a condition", `{"status":{"conditions":[{"type":"x","status":"True","reason":"y","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, given, ""},
		{"change nothing", `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.7","ipMode":"VIP"}]}}}`, given, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.verdict(t, c.want, func(cl client.Client) error {
				return cl.Status().Patch(ctx, c.on.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(c.patch)),
					&client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}})
			}, superUser, administrator, "balancer")
		})
	}
	t.Run("update", func(t *testing.T) {
		p.verdict(t, refusal, func(cl client.Client) error {
			s := bare.DeepCopy()
			s.Status = given.Status
			return cl.Status().Update(ctx, s, &client.SubResourceUpdateOptions{UpdateOptions: client.UpdateOptions{DryRun: []string{metav1.DryRunAll}}})
		}, superUser, administrator)
	})
	// Writes of the Service itself do not reach its status.
	created := newService(address)
	if err := p.tenant.Create(ctx, created, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	updated := bare.DeepCopy()
	updated.Spec.Ports[0].Port, updated.Status = 81, given.Status
	if err := p.tenant.Update(ctx, updated, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]*corev1.Service{"creation": created, "update": updated} {
		if got := s.Status.LoadBalancer.Ingress; len(got) > 0 {
			t.Errorf("%s: the status has %v", what, got)
		}
	}
}
