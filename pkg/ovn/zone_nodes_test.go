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

// annotateNode changes a Node's annotations, bypassing the admission policy, and
// returns the previous ones. An empty value deletes an annotation.
func (env *zoneEnv) annotateNode(node string, changes map[string]string) (before map[string]string) {
	ctx, api := context.Background(), env.kube.CoreV1().Nodes()
	n, err := api.Get(ctx, node, metav1.GetOptions{})
	env.must(err)
	before = maps.Clone(n.Annotations)
	for k, v := range changes {
		if v == "" {
			delete(n.Annotations, k)
		} else {
			n.Annotations[k] = v
		}
	}
	_, err = api.Update(ctx, n, metav1.UpdateOptions{})
	env.must(err)
	return before
}

// dump returns the rows and chassis in both databases as text.
func (env *zoneEnv) dump() string {
	chassis, err := env.sb.ReadChassis(context.Background())
	env.must(err)
	lines := make([]string, len(chassis))
	for i, c := range chassis {
		lines[i] = fmt.Sprintf("chassis %s of %s at %v", c.Name, c.Node, c.EncapIPs)
	}
	slices.Sort(lines)
	return env.nb.Rows().Dump() + strings.Join(lines, "\n")
}

// threeNodes returns the zone of node1 with two peers, a tenant's network and a
// pod.
func threeNodes(t *testing.T) *zoneEnv {
	env := newZoneEnv(t)
	for id := 1; id <= 3; id++ {
		env.node(id, true)
	}
	env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
	env.pod("red", "a", nil)
	env.run()
	env.waitForRow("red.net_red_a")
	env.waitUntil("annotation", func() bool { return len(env.networks("red", "a")) == 2 })
	env.setRunning("red", "a")
	env.waitForRow("red_net_tstor-node3")
	env.settle()
	return env
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

// wrongAnnotations returns annotations that are wrong on any node, by problem.
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

// Wrong annotations of this node or a peer tear nothing down, neither when they
// appear nor when the zone starts with them. For this node there is one event.
func TestZoneWrongNodeAnnotationsTearDownNothing(t *testing.T) {
	cases := map[string]map[string]map[string]string{} // by name and node
	for name, a := range wrongAnnotations(t) {
		cases[name] = map[string]map[string]string{"node1": a, "node2": a}
	}
	peer := testNode(2, "node2", network.SharedGateway)
	peerAnnotations, err := peer.AgentAnnotations()
	if err != nil {
		t.Fatal(err)
	}
	// node2's values on other nodes.
	cases["id is a peer's"] = map[string]map[string]string{"node1": {network.AnnotationNodeID: "2"}, "node3": {network.AnnotationNodeID: "2"}}
	for _, k := range []string{network.AnnotationChassisID, network.AnnotationEncapIPs, network.AnnotationGatewayConfig} {
		cases[k+" is a peer's"] = map[string]map[string]string{"node1": {k: peerAnnotations[k]}, "node3": {k: peerAnnotations[k]}}
	}
	own := testNode(1, "node1", network.SharedGateway)
	ownAnnotations, err := own.AgentAnnotations()
	if err != nil {
		t.Fatal(err)
	}
	ownAnnotations[network.AnnotationNodeID] = "1"
	for k, v := range ownAnnotations {
		cases[k+" is this node's"] = map[string]map[string]string{"node3": {k: v}}
	}
	cases["id is free, but not its pods'"] = map[string]map[string]string{"node1": {network.AnnotationNodeID: "7"}}

	for name, nodes := range cases {
		for node, changes := range nodes {
			for _, restart := range []bool{false, true} {
				if restart && node == "node1" && strings.HasSuffix(name, " is a peer's") && !strings.HasPrefix(name, "id") {
					continue // at the start, this node's annotation takes precedence over a peer's
				}
				t.Run(fmt.Sprintf("%s of %s, restart=%v", name, node, restart), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						env := threeNodes(t)
						before := env.dump()
						if restart {
							env.stop()
						}
						previous := env.annotateNode(node, changes)
						if restart {
							env.run()
						}
						env.settle()
						if got := env.dump(); got != before {
							t.Errorf("databases were\n%s\nare\n%s", before, got)
						}
						events := env.warningEvents("WrongNodeAnnotations")
						want := 0
						if node == "node1" && !(restart && strings.HasSuffix(name, " gone")) { // after a restart a missing annotation is not wrong
							want = 1
						} else if strings.HasSuffix(name, " is this node's") { // other zones may prefer the other node
							want = 1
						}
						if len(events) != want {
							t.Errorf("events %q, want %d", events, want)
						}
						env.annotateNode(node, previous)
						env.settle()
						if got := env.dump(); got != before {
							t.Errorf("with correct annotations again, databases were\n%s\nare\n%s", before, got)
						}
						env.waitUntil("ready", env.zone.Ready)
						if more := env.warningEvents("WrongNodeAnnotations"); len(more) > 0 {
							t.Errorf("events %q for correct annotations", more)
						}
					})
				})
			}
		}
	}
}

// warningEvents returns the warning events with that reason since the last call.
func (env *zoneEnv) warningEvents(reason string) []string {
	var out []string
	for {
		select {
		case e := <-env.events.Events:
			if strings.Contains(e, "Warning "+reason) {
				out = append(out, e)
			}
		default:
			return out
		}
	}
}

// A new node that claims an existing node's values gets nothing, though its name
// sorts first. When the other node is deleted, the claims are accepted.
func TestZoneNewNodeCannotTakeOverClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := threeNodes(t)
		before := env.dump()
		node10 := testNode(10, "node10", network.SharedGateway)
		a, err := node10.AgentAnnotations()
		env.must(err)
		env.node(10, false)
		a[network.AnnotationNodeID] = "2"
		env.annotateNode("node10", a)
		env.settle()
		if got := env.dump(); got != before {
			t.Errorf("databases were\n%s\nare\n%s", before, got)
		}
		env.must(env.kube.CoreV1().Nodes().Delete(context.Background(), "node10", metav1.DeleteOptions{}))
		env.node(11, false)
		node2 := testNode(2, "node2", network.SharedGateway)
		a, err = node2.AgentAnnotations()
		env.must(err)
		a[network.AnnotationNodeID] = "2"
		env.annotateNode("node11", a) // all of node2's values
		env.settle()
		if got := env.dump(); got != before {
			t.Errorf("databases were\n%s\nare\n%s", before, got)
		}
		env.must(env.kube.CoreV1().Nodes().Delete(context.Background(), "node2", metav1.DeleteOptions{}))
		env.waitForRow("red_net_tstor-node11")
		if env.has("red_net_tstor-node2") {
			t.Error("the deleted node still has rows")
		}
	})
}

// A zone that starts with empty databases reaches a node whose values a younger one claims, though the younger one's name
// sorts first.
func TestZoneYoungerNodeCannotCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := threeNodes(t)
		before := env.dump()
		node3 := testNode(3, "node3", network.SharedGateway)
		a, err := node3.AgentAnnotations()
		env.must(err)
		env.stop()
		for i, node := range []string{"node1", "node3", "node2"} {
			ctx, api := context.Background(), env.kube.CoreV1().Nodes()
			n, err := api.Get(ctx, node, metav1.GetOptions{})
			env.must(err)
			n.CreationTimestamp = metav1.Unix(int64(i+1), 0)
			_, err = api.Update(ctx, n, metav1.UpdateOptions{})
			env.must(err)
		}
		previous := env.annotateNode("node2", a) // with all values but the id, which the cluster controller writes
		env.nb.Fake, env.sb.have = &Fake{}, map[string]Chassis{}
		env.run()
		env.waitForRow("red_net_tstor-node3")
		env.waitUntil("chassis", func() bool { return strings.Contains(env.dump(), "of node3 at") })
		env.settle()
		if env.has("red_net_tstor-node2") || strings.Contains(env.dump(), "of node2 at") {
			t.Error("the younger node has the older one's values")
		}
		env.annotateNode("node2", previous)
		env.waitUntil("the rows of all nodes", func() bool { return env.dump() == before })
	})
}

// A node gets the addresses of a machine that is gone and whose Node is left. Its own zone accepts them, in any order of the
// Nodes' events, and says which Node to delete.
func TestZoneAddressesOfGoneNode(t *testing.T) {
	node1 := testNode(1, "node1", network.SharedGateway)
	same, err := node1.AgentAnnotations()
	if err != nil {
		t.Fatal(err)
	}
	gone := map[string]string{network.AnnotationEncapIPs: same[network.AnnotationEncapIPs], network.AnnotationGatewayConfig: same[network.AnnotationGatewayConfig]}
	for _, known := range []bool{true, false} { // whether the zone knows node2 before this node has addresses
		t.Run(fmt.Sprintf("known=%v", known), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, !known)
				env.node(2, true)
				env.node(3, true)
				env.annotateNode("node2", gone)
				env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
				env.run()
				if known {
					env.settle()
					env.node(1, true)
				}
				check := func(when string) {
					t.Helper()
					env.waitForRow("red_net_tstor-node3")
					env.settle()
					env.waitUntil("ready", env.zone.Ready)
					if env.has("red_net_tstor-node2") || strings.Contains(env.dump(), "of node2 at") {
						t.Errorf("%s: the node with this node's tunnel address is a peer", when)
					}
					events := env.warningEvents("WrongNodeAnnotations")
					if len(events) != 1 || !strings.Contains(events[0], "tunnel address 172.30.0.1 is also claimed by node node2") || !strings.Contains(events[0], "delete the other Node if its machine is gone") {
						t.Errorf("%s: events %q", when, events)
					}
				}
				check("at first")
				env.run()
				check("after a restart")
				env.must(env.kube.CoreV1().Nodes().Delete(context.Background(), "node2", metav1.DeleteOptions{}))
				env.settle()
				before := env.dump()
				env.run()
				env.settle()
				if got := env.dump(); got != before || !env.has("red_net_ovn_cluster_router") {
					t.Errorf("databases were\n%s\nare\n%s", before, got)
				}
				if events := env.warningEvents("WrongNodeAnnotations"); len(events) > 0 {
					t.Errorf("without the other Node: events %q", events)
				}
			})
		})
	}
}

// The event of a node that claims what another one has names that one. Machines that were cloned share the chassis: the
// event of either says what to do there, also after a restart, when a zone takes its own node's for granted.
func TestZoneEventNamesHolder(t *testing.T) {
	const cloned = "; on a machine that was cloned, remove /etc/openvswitch/system-id.conf and Open vSwitch's conf.db, and restart Open vSwitch"
	for annotation, want := range map[string][2]string{
		network.AnnotationEncapIPs:  {"tunnel address 172.30.0.2 belongs to node node2: delete Node node2 if its machine is gone; the last", "tunnel address 172.30.0.2 is also claimed by node node2: nodes"},
		network.AnnotationChassisID: {"chassis chassis-2 belongs to node node2: delete Node node2 if its machine is gone" + cloned, "chassis chassis-2 is also claimed by node node2" + cloned},
	} {
		synctest.Test(t, func(t *testing.T) {
			env := threeNodes(t)
			node2 := testNode(2, "node2", network.SharedGateway)
			a, err := node2.AgentAnnotations()
			env.must(err)
			env.annotateNode("node1", map[string]string{annotation: a[annotation]})
			for i, when := range []string{"running", "restarted"} {
				if i > 0 {
					env.run()
				}
				env.settle()
				if events := env.warningEvents("WrongNodeAnnotations"); len(events) != 1 || !strings.Contains(events[0], want[i]) {
					t.Errorf("%s: events %q, want %q", when, events, want[i])
				}
			}
		})
	}
}

// The transit switches exist only while there is another node.
func TestZoneTransitSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.run()
		env.waitForRow("red_net_ovn_cluster_router")
		env.settle()
		transit := []string{"transit_switch", "red_net_transit_switch", "red_net_rtots-node1", "red_net_tstor-node1"}
		for _, restart := range []bool{false, true} {
			for _, row := range transit {
				if env.has(row) {
					t.Errorf("a cluster of one node has %s", row)
				}
			}
			env.node(2, false)
			for _, row := range transit {
				env.waitForRow(row)
			}
			if env.has("red_net_tstor-node2") {
				t.Error("a node without annotations has a port")
			}
			env.node(2, true)
			for _, row := range append(transit, "red_net_tstor-node2") {
				env.waitForRow(row)
			}
			if restart {
				env.run()
				env.settle()
				if !env.has("red_net_transit_switch") {
					t.Error("after a restart there is no transit switch")
				}
			}
			env.must(env.kube.CoreV1().Nodes().Delete(context.Background(), "node2", metav1.DeleteOptions{}))
			env.waitUntil("no transit switch", func() bool { return !slices.ContainsFunc(transit, env.has) && !env.has("red_net_tstor-node2") })
			env.settle()
		}
	})
}
