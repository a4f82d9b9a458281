// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// No pod gets a port with the name of a network's own port: CheckPodPort refuses
// every such name that a pod's port could have.
func TestPodPortNamesDoNotCollide(t *testing.T) {
	nodes := []string{"node1", "node2"}
	nets := []network.Network{testDefault(true), testTenant(1, "a", true), testTenant(2, "k8s-a", true), testTenant(3, "stor-a", true),
		testTenant(4, "blue_net", true), testTenant(5, "cluster_udn_red", true),
		testNetwork(6, "l2", network.Layer2, network.RolePrimary, "dual"), testNetwork(7, "l3", network.Layer3, network.RoleSecondary, "dual"),
		testNetwork(8, "local", network.Localnet, network.RoleSecondary, "")}
	isNode := func(name string) bool { return slices.Contains(nodes, name) }
	isNetwork := func(name string) bool {
		return slices.ContainsFunc(nets, func(n network.Network) bool { return n.Name == name })
	}
	refused := 0
	for _, n := range nets {
		rows, err := Build(n, testNode(1, nodes[0], network.SharedGateway), Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet",
			Peers: []network.Node{testNode(2, nodes[1], network.SharedGateway)}})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			port, ok := r.Model.(*nbdb.LogicalSwitchPort)
			if !ok {
				continue
			}
			namespace, pod, _ := strings.Cut(port.Name, "_")
			if validation.IsDNS1123Label(namespace) != nil || validation.IsDNS1123Subdomain(pod) != nil {
				continue // not a valid pod name
			}
			refused++
			if err := network.CheckPodPort(namespace, pod, "br-ex", isNetwork, isNode); err == nil {
				t.Errorf("pod %s/%s would have the port %s of network %s", namespace, pod, port.Name, n.Name)
			}
		}
	}
	if refused < 5 {
		t.Errorf("only %d ports have names that a pod's port could have", refused)
	}
	for _, p := range [][2]string{{"a", "node1"}, {"k8s-b", "node1"}, {"br-ex", "node3"}, {"b", "tstor-node1"}, {"k8s-a", "web-0"}, {"a", "tstor-web"}} {
		if err := network.CheckPodPort(p[0], p[1], "br-ex", isNetwork, isNode); err != nil {
			t.Errorf("a pod without a collision: %v", err)
		}
	}
}
