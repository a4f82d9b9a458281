// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"bulkhead/pkg/network"
)

// flows returns the number of OpenFlow flows of the integration bridge.
func (z *zoneUnderTest) flows() int {
	z.t.Helper()
	z.sync()
	out := z.must("ovs-ofctl", "dump-aggregate", "unix:"+z.Path("br-int.mgmt"))
	found := regexp.MustCompile(`flow_count=(\d+)`).FindStringSubmatch(out)
	if found == nil {
		z.t.Fatalf("no flow count in %q", out)
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		z.t.Fatal(err)
	}
	return n
}

// What limits a node is the flows that ovn-controller computes for each network, here a
// dual-stack one with a pod. A match that looks harmless may cost hundreds: "ip4.dst !="
// is 32 of them, "ip6.dst !=" 128.
func TestNativeFlows(t *testing.T) {
	const networks = 3
	_, zones := nativeZones(t)
	z := zones[0]
	for _, c := range []struct {
		topology network.Topology
		peers    int
		limit    int // per network
	}{
		{network.Layer3, 0, 725}, {network.Layer3, 1, 895}, {network.Layer2, 0, 760}, {network.Layer2, 1, 790},
	} {
		before := z.flows()
		for id := 1; id <= networks; id++ {
			namespace := fmt.Sprintf("%s-%d-%d", c.topology, c.peers, id)
			n := testNetwork(id, namespace+"_net", c.topology, network.RolePrimary, "dual")
			in := Inputs{Plan: testPlan(true), PhysicalNetwork: "physnet", OneNode: c.peers == 0,
				Pods: []PodPort{testPod(n, z.node, namespace+"/net", namespace, "p", 3, false)}}
			if c.peers > 0 {
				in.Peers = append(in.Peers, zones[1].node)
			}
			converge(t, z.nb, n, z.node, in)
			link, port := fmt.Sprintf("%.6s%d%d", c.topology, c.peers, id), in.Pods[0]
			z.must("ovs-vsctl", "--db="+z.Sock("ovs"), "--", "add-port", "br-int", link, "--", "set", "Interface", link, "type=internal",
				"external_ids:iface-id="+network.PodLSP(port.NADKey, port.Namespace, port.Pod), "external_ids:iface-id-ver="+port.UID)
		}
		got := (z.flows() - before) / networks
		t.Logf("%s with %d peers: %d flows per network", c.topology, c.peers, got)
		if got > c.limit || got < 100 {
			t.Errorf("%s with %d peers: %d flows per network, at most %d are expected", c.topology, c.peers, got, c.limit)
		}
		for id := 1; id <= networks; id++ {
			owner := Selection{Network: fmt.Sprintf("%s-%d-%d_net", c.topology, c.peers, id), Node: z.node.Name}
			have, err := z.nb.Read(t.Context(), owner)
			if err == nil {
				err = z.nb.Apply(t.Context(), Diff(nil, have))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
