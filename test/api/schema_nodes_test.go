// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodeClient acts with the token that a node's pods of Bulkhead are given.
func nodeClient(t *testing.T, node string) client.Client {
	t.Helper()
	c := as("system:serviceaccount:bulkhead-system:bulkhead-node")
	if node != "" {
		c.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	return nadClient(t, c)
}

// What a node's token may write: its own Node and pods, and of these what our
// roles on nodes write. Whoever took one node takes no other.
func TestNodesPolicy(t *testing.T) {
	p := newPolicyCase(t)
	ctx := t.Context()
	const (
		another = "and this is another"
		else_   = "leave everything else as it is"
		rbac    = "cannot patch resource"
	)
	mine, theirs := "n-"+p.namespace, "o-"+p.namespace
	for _, name := range []string{mine, theirs} {
		p.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"k8s.ovn.org/node-id": "7"}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"}}}})
	}
	pod := func(node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, GenerateName: "p-", Annotations: map[string]string{"team": "red"}},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}}
	}
	here, there := pod(mine), pod(theirs)
	p.create(t, here)
	p.create(t, there)
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	annotate := func(k, v string) string { return `{"metadata":{"annotations":{"` + k + `":"` + v + `"}}}` }
	for _, c := range []struct {
		name   string
		on     client.Object
		patch  string
		status bool
		want   string
	}{
		{"its own facts", node(mine), annotate("k8s.ovn.org/node-chassis-id", "c1"), false, ""},
		{"another's facts", node(theirs), annotate("k8s.ovn.org/node-chassis-id", "c1"), false, another},
		{"its own id", node(mine), annotate("k8s.ovn.org/node-id", "8"), false, else_},
		{"its own label", node(mine), `{"metadata":{"labels":{"role":"control"}}}`, false, else_},
		{"its own taints", node(mine), `{"spec":{"unschedulable":true}}`, false, else_},
		{"a pod's addresses", here, annotate("k8s.ovn.org/pod-networks", "{}"), false, ""},
		{"a pod's network status", here, annotate("k8s.v1.cni.cncf.io/network-status", "[]"), false, ""},
		{"addresses of another node's pod", there, annotate("k8s.ovn.org/pod-networks", "{}"), false, another},
		{"a pod's annotation of somebody else", here, annotate("team", "blue"), false, else_},
		{"a pod's annotation taken off", here, `{"metadata":{"annotations":{"team":null}}}`, false, else_},
		{"a pod's label", here, `{"metadata":{"labels":{"app":"api"}}}`, false, else_},
		{"a pod's image", here, `{"spec":{"containers":[{"name":"c","image":"other"}]}}`, false, else_},
		{"a pod's status", here, `{"status":{"phase":"Running"}}`, true, rbac},
		{"its own condition", node(mine), `{"status":{"conditions":[{"type":"BulkheadDegraded","status":"True"}]}}`, true, ""},
		{"its readiness", node(mine), `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, true, else_},
		{"its capacity", node(mine), `{"status":{"capacity":{"cpu":"100"}}}`, true, else_},
		{"its addresses", node(mine), `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`, true, else_},
		{"its facts by its status", node(mine), annotate("k8s.ovn.org/node-id", "8"), true, else_},
		{"another's condition", node(theirs), `{"status":{"conditions":[{"type":"BulkheadDegraded","status":"True"}]}}`, true, another},
	} {
		t.Run(c.name, func(t *testing.T) {
			patch := client.RawPatch(types.StrategicMergePatchType, []byte(c.patch))
			write := func(cl client.Client) error {
				o := c.on.DeepCopyObject().(client.Object)
				if c.status {
					return cl.Status().Patch(ctx, o, patch, client.DryRunAll)
				}
				return cl.Patch(ctx, o, patch, client.DryRunAll)
			}
			eventuallyVerdict(t, c.want, func() error { return write(nodeClient(t, mine)) })
			if err := write(p.admin); err != nil {
				t.Errorf("super user: %v", err)
			}
		})
	}
	t.Run("a token that names no node", func(t *testing.T) {
		eventuallyVerdict(t, another, func() error {
			return nodeClient(t, "").Patch(context.WithoutCancel(ctx), node(mine), client.RawPatch(types.MergePatchType, []byte(annotate("k8s.ovn.org/node-chassis-id", "c1"))), client.DryRunAll)
		})
	})
}
