// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// createNode creates a node and waits for its id.
func (w fixture) createNode(name string) (*corev1.Node, string) {
	w.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.create(n)
	w.t.Cleanup(func() { w.remove(n) })
	Eventually(w.t, func() error {
		if err := w.Get(w.ctx, client.ObjectKeyFromObject(n), n); err != nil {
			return err
		}
		if n.Annotations[network.AnnotationNodeID] == "" {
			return fmt.Errorf("node %s has no id", name)
		}
		return nil
	})
	return n, n.Annotations[network.AnnotationNodeID]
}

// Nodes get the lowest free ids; the status of a network without enough subnets
// names the nodes that have none.
func TestNodes(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	cfg := testConfig(t)
	cfg.IDAge = 0 // ids that other tests released are free at once
	startController(t, cfg)
	ns := w.namespace("nodes", true)
	defer w.remove(ns)
	u := newUDN("nodes", "net", "10.107.0.0/23")
	w.create(u)
	w.waitCondition(u, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionTrue)
	// A node named join gets no id: its switches would have the join switches' names.
	join := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "join"}}
	w.create(join)
	defer w.remove(join)
	var nodes []*corev1.Node
	for i := 1; i <= 3; i++ {
		n, got := w.createNode(fmt.Sprintf("node-%d", i))
		nodes = append(nodes, n)
		if got != fmt.Sprint(i) {
			t.Errorf("node %d has id %s", i, got)
		}
	}
	w.waitCondition(u, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionFalse, "InternalError", "[node-3]", "append a CIDR")
	if err := w.Get(w.ctx, client.ObjectKeyFromObject(join), join); err != nil || join.Annotations[network.AnnotationNodeID] != "" {
		t.Errorf("node join: %v, %v", join.Annotations, err)
	}
	w.remove(nodes[1])
	if _, got := w.createNode("node-x"); got != "2" && got != "4" { // 4: before the deletion was seen
		t.Errorf("node-x has id %s, want 2 or 4", got)
	}
	Eventually(t, func() error {
		if err := w.Get(w.ctx, client.ObjectKeyFromObject(u), u); err != nil {
			return err
		}
		u.Spec.Layer3.Subnets = append(u.Spec.Layer3.Subnets[:1:1], udnv1.Layer3Subnet{CIDR: "10.108.0.0/16"})
		return w.Update(w.ctx, u)
	})
	w.waitCondition(u, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionTrue)
	if conf := w.nad("nodes", "net").Spec.Config; !strings.Contains(conf, "10.107.0.0/23/24,10.108.0.0/16/24") {
		t.Errorf("the NAD's config has not the new subnet: %s", conf)
	}
}

// The id of a node that is deleted while no controller leads stays allocated until
// the node's pods are gone. The new leader learns it from their addresses. If the node is registered
// again, it gets its id back: its pods run.
func TestNodeDeletedWithoutLeader(t *testing.T) {
	needAPI(t)
	t.Run("deleted", func(t *testing.T) { testNodeDeletedWithoutLeader(t, "gone-node", false) })
	t.Run("registered again", func(t *testing.T) { testNodeDeletedWithoutLeader(t, "node-again", true) })
}

func testNodeDeletedWithoutLeader(t *testing.T, namespace string, again bool) {
	w := newFixture(t)
	ns := w.namespace(namespace, false)
	defer w.remove(ns)
	cfg := testConfig(t)
	cfg.IDAge = 0
	first := startController(t, cfg)
	lower, _ := w.createNode("gone-0")
	node, id := w.createNode("gone-1")
	_, second := w.createNode("gone-2")
	var number int
	if _, err := fmt.Sscan(id, &number); err != nil {
		t.Fatal(err)
	}
	hosts, err := cfg.DefaultNetwork.HostSubnets(number)
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := network.NthAddr(hosts[0], 3)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "p", Annotations: map[string]string{
			network.AnnotationPodNetworks: fmt.Sprintf(`{"default":{"ip_addresses":["%s/%d"],"mac_address":"0a:58:0a:f4:00:03"}}`, addr, hosts[0].Bits()),
		}},
		Spec: corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	w.create(pod)
	t.Cleanup(func() { w.deletePodNow(pod) })
	first.stop()
	w.remove(node)
	if again {
		w.remove(lower) // its id is the next that is assigned
		node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
		w.create(node)
		defer w.remove(node)
	}

	startController(t, cfg)
	if again {
		Eventually(t, func() error {
			err := w.Get(w.ctx, client.ObjectKeyFromObject(node), node)
			if err == nil && node.Annotations[network.AnnotationNodeID] == "" {
				err = errors.New("the node has no id")
			}
			return err
		})
		if got := node.Annotations[network.AnnotationNodeID]; got != id {
			t.Errorf("the node has id %s, and its pods have addresses of id %s", got, id)
		}
		return
	}
	_, third := w.createNode("gone-3")
	if third == id || third == second {
		t.Fatalf("the new node has id %s, but a pod of the deleted node holds %s and another node has %s", third, id, second)
	}
	w.deletePodNow(pod)
	tries := 3
	Eventually(t, func() error {
		tries++
		if _, got := w.createNode(fmt.Sprintf("gone-%d", tries)); got != id {
			return fmt.Errorf("id %s is not allocated again: the node has %s", id, got)
		}
		return nil
	})
}
