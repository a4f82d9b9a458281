// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// annotate changes a Node's annotations as somebody whom no admission policy
// stops; an empty value takes one off. What there was comes back.
func (w *world) annotate(node string, changes map[string]string) (before map[string]string) {
	ctx, api := context.Background(), w.kube.CoreV1().Nodes()
	n, err := api.Get(ctx, node, metav1.GetOptions{})
	w.must(err)
	before = maps.Clone(n.Annotations)
	for k, v := range changes {
		if v == "" {
			delete(n.Annotations, k)
		} else {
			n.Annotations[k] = v
		}
	}
	_, err = api.Update(ctx, n, metav1.UpdateOptions{})
	w.must(err)
	return before
}

// built is everything that the zone has built, in both databases.
func (w *world) built() string {
	chassis, err := w.sb.ReadChassis(context.Background())
	w.must(err)
	lines := make([]string, len(chassis))
	for i, c := range chassis {
		lines[i] = fmt.Sprintf("chassis %s of %s at %v", c.Name, c.Node, c.EncapIPs)
	}
	slices.Sort(lines)
	return w.nb.Rows().Dump() + strings.Join(lines, "\n")
}

// threeNodes is a zone of node1 with two peers, a tenant's network and a pod.
func threeNodes(t *testing.T) *world {
	w := newWorld(t)
	for id := 1; id <= 3; id++ {
		w.node(id, true)
	}
	w.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
	w.pod("red", "a", nil)
	w.run()
	w.waitFor("red.net_red_a")
	w.wait("annotation", func() bool { return len(w.networks("red", "a")) == 2 })
	w.running("red", "a")
	w.waitFor("red_net_tstor-node3")
	w.settled()
	return w
}

func gatewayConfig(t *testing.T, change func(*network.Node)) string {
	t.Helper()
	n := testNode(1, "node1", network.SharedGateway)
	change(&n)
	a, err := n.AgentAnnotations()
	if err != nil {
		t.Fatal(err)
	}
	return a[network.AnnotationGatewayConfig]
}

// wrongAnnotations are wrong of any node, by what is wrong.
func wrongAnnotations(t *testing.T) map[string]map[string]string {
	gateway := func(value string) map[string]string {
		return map[string]string{network.AnnotationGatewayConfig: value}
	}
	return map[string]map[string]string{
		"id is no number":      {network.AnnotationNodeID: "x"},
		"id is out of range":   {network.AnnotationNodeID: "99999"},
		"id is gone":           {network.AnnotationNodeID: ""},
		"chassis has a space":  {network.AnnotationChassisID: "a b"},
		"chassis is gone":      {network.AnnotationChassisID: ""},
		"encap is no JSON":     {network.AnnotationEncapIPs: "172.30.0.1"},
		"encap is empty":       {network.AnnotationEncapIPs: "[]"},
		"encap is loopback":    {network.AnnotationEncapIPs: `["127.0.0.1"]`},
		"gateway is no JSON":   gateway("{"),
		"gateway is gone":      gateway(""),
		"gateway of another":   gateway(`{"other":{}}`),
		"gateway has no MAC":   gateway(gatewayConfig(t, func(n *network.Node) { n.BridgeMAC = "" })),
		"gateway has bad MAC":  gateway(gatewayConfig(t, func(n *network.Node) { n.BridgeMAC = "02:00:zz:00:00:01" })),
		"gateway is multicast": gateway(gatewayConfig(t, func(n *network.Node) { n.BridgeMAC = "01:00:5e:00:00:01" })),
		"gateway has no IP":    gateway(gatewayConfig(t, func(n *network.Node) { n.Addresses = nil })),
		"gateway has bad IP":   gateway(`{"default":{"mode":"shared","bridge-id":"br-ex","mac-address":"02:00:00:00:00:01","ip-addresses":["x"]}}`),
		"gateway has empty IP": gateway(`{"default":{"mode":"shared","bridge-id":"br-ex","mac-address":"02:00:00:00:00:01","ip-addresses":[""]}}`),
		"gateway has bad hop":  gateway(`{"default":{"mode":"shared","bridge-id":"br-ex","mac-address":"02:00:00:00:00:01","ip-addresses":["172.18.0.1/16"],"next-hops":["0.0.0.0"]}}`),
		"gateway has no mode":  gateway(gatewayConfig(t, func(n *network.Node) { n.Mode = "" })),
		"all are gone":         {network.AnnotationNodeID: "", network.AnnotationChassisID: "", network.AnnotationEncapIPs: "", network.AnnotationGatewayConfig: ""},
	}
}

// A node's wrong annotations, this one's or a peer's, tear nothing down, neither
// when they come nor when the zone starts with them; this one's are told once.
func TestZoneWrongNodeAnnotationsTearNothingDown(t *testing.T) {
	cases := map[string]map[string]map[string]string{} // by what and node
	for what, a := range wrongAnnotations(t) {
		cases[what] = map[string]map[string]string{"node1": a, "node2": a}
	}
	peer := testNode(2, "node2", network.SharedGateway)
	theirs, err := peer.AgentAnnotations()
	if err != nil {
		t.Fatal(err)
	}
	// What is node2's, said of others.
	cases["id is a peer's"] = map[string]map[string]string{"node1": {network.AnnotationNodeID: "2"}, "node3": {network.AnnotationNodeID: "2"}}
	for _, k := range []string{network.AnnotationChassisID, network.AnnotationEncapIPs, network.AnnotationGatewayConfig} {
		cases[k+" is a peer's"] = map[string]map[string]string{"node1": {k: theirs[k]}, "node3": {k: theirs[k]}}
	}
	own := testNode(1, "node1", network.SharedGateway)
	mine, err := own.AgentAnnotations()
	if err != nil {
		t.Fatal(err)
	}
	mine[network.AnnotationNodeID] = "1"
	for k, v := range mine {
		cases[k+" is this node's"] = map[string]map[string]string{"node3": {k: v}}
	}
	cases["id is free, but not its pods'"] = map[string]map[string]string{"node1": {network.AnnotationNodeID: "7"}}

	for what, nodes := range cases {
		for node, changes := range nodes {
			for _, restart := range []bool{false, true} {
				if restart && node == "node1" && strings.HasSuffix(what, " is a peer's") && !strings.HasPrefix(what, "id") {
					continue // this node's agent, which wrote it, is believed before a peer's
				}
				t.Run(fmt.Sprintf("%s of %s, restart=%v", what, node, restart), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := threeNodes(t)
						before := w.built()
						if restart {
							w.stop()
						}
						right := w.annotate(node, changes)
						if restart {
							w.run()
						}
						w.settled()
						if got := w.built(); got != before {
							t.Errorf("built was\n%s\nis\n%s", before, got)
						}
						events := w.warnings("WrongNodeAnnotations")
						want := 0
						if node == "node1" && !(restart && strings.HasSuffix(what, " gone")) { // one that never was is not wrong
							want = 1
						}
						if len(events) != want {
							t.Errorf("events %q, want %d", events, want)
						}
						w.annotate(node, right)
						w.settled()
						if got := w.built(); got != before {
							t.Errorf("with right annotations again, built was\n%s\nis\n%s", before, got)
						}
						w.wait("ready", w.zone.Ready)
						if more := w.warnings("WrongNodeAnnotations"); len(more) > 0 {
							t.Errorf("events %q of right annotations", more)
						}
					})
				})
			}
		}
	}
}

// warnings are the Events with that reason since the last look.
func (w *world) warnings(reason string) []string {
	var out []string
	for {
		select {
		case e := <-w.events.Events:
			if strings.Contains(e, "Warning "+reason) {
				out = append(out, e)
			}
		default:
			return out
		}
	}
}

// A new node that says it is another gets nothing, though its name sorts first; when the other is gone, what
// it says is true.
func TestZoneNewNodeTakesNothingOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeNodes(t)
		before := w.built()
		four := testNode(10, "node10", network.SharedGateway)
		a, err := four.AgentAnnotations()
		w.must(err)
		w.node(10, false)
		a[network.AnnotationNodeID] = "2"
		w.annotate("node10", a)
		w.settled()
		if got := w.built(); got != before {
			t.Errorf("built was\n%s\nis\n%s", before, got)
		}
		w.must(w.kube.CoreV1().Nodes().Delete(context.Background(), "node10", metav1.DeleteOptions{}))
		w.node(11, false)
		five := testNode(2, "node2", network.SharedGateway)
		a, err = five.AgentAnnotations()
		w.must(err)
		a[network.AnnotationNodeID] = "2"
		w.annotate("node11", a) // everything that node2 is
		w.settled()
		if got := w.built(); got != before {
			t.Errorf("built was\n%s\nis\n%s", before, got)
		}
		w.must(w.kube.CoreV1().Nodes().Delete(context.Background(), "node2", metav1.DeleteOptions{}))
		w.waitFor("red_net_tstor-node11")
		if w.has("red_net_tstor-node2") {
			t.Error("the node that is gone still has rows")
		}
	})
}
