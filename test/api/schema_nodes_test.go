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

// nodeClient acts with the token of Bulkhead's pods on a node.
func nodeClient(t *testing.T, node string) client.Client {
	t.Helper()
	c := impersonate("system:serviceaccount:bulkhead-system:bulkhead-node")
	if node != "" {
		c.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	return nadClient(t, c)
}

// A node's token may write only the node's own Node and pods, and only what our
// components on the node write: an attacker who has taken one node gains no other.
func TestNodeTokenPolicy(t *testing.T) {
	p := newPolicyCase(t)
	ctx := t.Context()
	const (
		otherNode = "and this object is not one of them"
		elseOnly  = "leave everything else as it is"
		rbac      = "cannot patch resource"
	)
	own, foreign := "n-"+p.namespace, "o-"+p.namespace
	for _, name := range []string{own, foreign} {
		p.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"k8s.ovn.org/node-id": "7"}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"}}}})
	}
	pod := func(node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, GenerateName: "p-", Annotations: map[string]string{"team": "red"}},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}}
	}
	ownPod, foreignPod := pod(own), pod(foreign)
	p.create(t, ownPod)
	p.create(t, foreignPod)
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	annotate := func(k, v string) string { return `{"metadata":{"annotations":{"` + k + `":"` + v + `"}}}` }
	for _, c := range []struct {
		name   string
		on     client.Object
		patch  string
		status bool
		want   string
	}{
		{"its own annotations", node(own), annotate("k8s.ovn.org/node-chassis-id", "c1"), false, ""},
		{"another's annotations", node(foreign), annotate("k8s.ovn.org/node-chassis-id", "c1"), false, otherNode},
		{"its own id", node(own), annotate("k8s.ovn.org/node-id", "8"), false, elseOnly},
		{"its own label", node(own), `{"metadata":{"labels":{"role":"control"}}}`, false, elseOnly},
		{"its own taints", node(own), `{"spec":{"unschedulable":true}}`, false, elseOnly},
		{"a pod's addresses", ownPod, annotate("k8s.ovn.org/pod-networks", "{}"), false, ""},
		{"a pod's network status", ownPod, annotate("k8s.v1.cni.cncf.io/network-status", "[]"), false, ""},
		{"addresses of another node's pod", foreignPod, annotate("k8s.ovn.org/pod-networks", "{}"), false, otherNode},
		{"a pod's other annotation", ownPod, annotate("team", "blue"), false, elseOnly},
		{"a pod's other annotation removed", ownPod, `{"metadata":{"annotations":{"team":null}}}`, false, elseOnly},
		{"a pod's label", ownPod, `{"metadata":{"labels":{"app":"api"}}}`, false, elseOnly},
		{"a pod's image", ownPod, `{"spec":{"containers":[{"name":"c","image":"other"}]}}`, false, elseOnly},
		{"a pod's status", ownPod, `{"status":{"phase":"Running"}}`, true, rbac},
		{"its own condition", node(own), `{"status":{"conditions":[{"type":"BulkheadDegraded","status":"True"}]}}`, true, ""},
		{"its readiness", node(own), `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, true, elseOnly},
		{"its capacity", node(own), `{"status":{"capacity":{"cpu":"100"}}}`, true, elseOnly},
		{"its addresses", node(own), `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`, true, elseOnly},
		{"its annotations through its status", node(own), annotate("k8s.ovn.org/node-id", "8"), true, elseOnly},
		{"another's condition", node(foreign), `{"status":{"conditions":[{"type":"BulkheadDegraded","status":"True"}]}}`, true, otherNode},
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
			waitVerdict(t, c.want, func() error { return write(nodeClient(t, own)) })
			if err := write(p.admin); err != nil {
				t.Errorf("super user: %v", err)
			}
		})
	}
	t.Run("a token that names no node", func(t *testing.T) {
		waitVerdict(t, otherNode, func() error {
			return nodeClient(t, "").Patch(context.WithoutCancel(ctx), node(own), client.RawPatch(types.MergePatchType, []byte(annotate("k8s.ovn.org/node-chassis-id", "c1"))), client.DryRunAll)
		})
	})
}

// TestNodeIDPolicy: kubelets and others who may change Nodes do not write a node's id: root on a node would take the
// addresses of another node's pods.
func TestNodeIDPolicy(t *testing.T) {
	p := newPolicyCase(t)
	ctx := t.Context()
	const clusterController = "The cluster controller alone writes"
	name, kubelet := "i-"+p.namespace, "system:node:i-"+p.namespace
	p.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"k8s.ovn.org/node-id": "7"}}})
	grantClusterRole(t, p.admin, "system:node", kubelet) // as the Node authorizer does
	as := impersonate(kubelet)
	as.Impersonate.Groups = []string{"system:nodes", "system:authenticated"}
	attacker, writer := nadClient(t, as), p.allowed[clusterRole]
	node := func(annotation string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if annotation != "" {
			n.Name, n.Annotations = "j-"+p.namespace, map[string]string{annotation: "8"}
		}
		return n
	}
	patch := func(text string, status bool) func(client.Client) error {
		return func(c client.Client) error {
			if raw := client.RawPatch(types.StrategicMergePatchType, []byte(text)); !status {
				return c.Patch(ctx, node(""), raw, client.DryRunAll)
			} else {
				return c.Status().Patch(ctx, node(""), raw, client.DryRunAll)
			}
		}
	}
	create := func(annotation string) func(client.Client) error {
		return func(c client.Client) error { return c.Create(ctx, node(annotation), client.DryRunAll) }
	}
	for what, c := range map[string]struct {
		write func(client.Client) error
		want  string
	}{
		"another id":               {patch(`{"metadata":{"annotations":{"k8s.ovn.org/node-id":"8"}}}`, false), clusterController},
		"no id":                    {patch(`{"metadata":{"annotations":{"k8s.ovn.org/node-id":null}}}`, false), clusterController},
		"no annotations":           {patch(`{"metadata":{"annotations":null}}`, false), clusterController},
		"another transport":        {patch(`{"metadata":{"annotations":{"k8s.ovn.org/default-network-transport":"no-overlay"}}}`, false), clusterController},
		"another id by the status": {patch(`{"metadata":{"annotations":{"k8s.ovn.org/node-id":"8"}}}`, true), clusterController},
		"a new Node with an id":    {create("k8s.ovn.org/node-id"), clusterController},
		"the same id":              {patch(`{"metadata":{"annotations":{"k8s.ovn.org/node-id":"7","example.com/x":"y"}}}`, false), ""},
		"a label":                  {patch(`{"metadata":{"labels":{"example.com/x":"y"}}}`, false), ""},
		"its readiness":            {patch(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, true), ""},
		"a new Node":               {create("example.com/x"), ""},
	} {
		t.Run(what, func(t *testing.T) {
			waitVerdict(t, c.want, func() error { return c.write(attacker) })
			if err := c.write(p.admin); err != nil {
				t.Errorf("super user: %v", err)
			}
		})
	}
	if err := patch(`{"metadata":{"annotations":{"k8s.ovn.org/node-id":"8"}}}`, false)(writer); err != nil {
		t.Errorf("cluster controller: %v", err)
	}
}
