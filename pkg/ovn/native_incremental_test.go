// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"bulkhead/pkg/network"
)

// computations returns how often a daemon has recomputed each of its engine's nodes.
func (h *host) computations(daemon string) map[string]int {
	h.t.Helper()
	out := h.must("ovn-appctl", "-t", h.Path(daemon+".ctl"), "inc-engine/show-stats")
	counts, node := map[string]int{}, ""
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch value = strings.TrimSpace(value); name {
		case "Node":
			node = value
		case "- recompute":
			counts[node] = must(strconv.Atoi(value))(h.t)
		}
	}
	return counts
}

// One more pod costs OVN the computation of its port, on a network of either topology: with
// hundreds of networks, recomputing everything takes many seconds.
func TestNativePodIsIncremental(t *testing.T) {
	r, zones := nativeZones(t)
	a := zones[0]
	nets := []nativeNetwork{
		{net: testNetwork(1, "red_net", network.Layer2, network.RolePrimary, "dual")},
		{net: testNetwork(2, "blue_net", network.Layer3, network.RolePrimary, "dual")},
	}
	for i := range nets {
		nets[i].pods = [2][]PodPort{{nativePod(nets[i].net, a, "p", 3)}, {nativePod(nets[i].net, zones[1], "q", 4)}}
	}
	connect(t, zones, nil, nets...)
	add := func(i, k int) {
		n := &nets[i]
		pod := nativePod(n.net, a, fmt.Sprintf("more%d", k), 4+k)
		n.pods[0] = append(n.pods[0], pod)
		converge(t, a.nb, n.net, a.node, n.inputs(zones, 0))
		a.plugPod(n.net, pod)
		checkReach(t, r, []reach{{"from a pod to the new one", a.podNamespace(strings.TrimSuffix(n.net.Name, "_net"), "p"), pod.IPs[0].Addr()}}, nil)
	}
	full := map[string][]string{
		"northd":         {"northd", "lflow", "ls_stateful", "lr_stateful"},
		"ovn-controller": {"runtime_data", "logical_flow_output", "physical_flow_output"},
	}
	for i, n := range nets {
		add(i, 1) // the network's first changes may cost more
		before := map[string]map[string]int{}
		for daemon := range full {
			before[daemon] = a.computations(daemon)
		}
		for k := 2; k < 5; k++ {
			add(i, k)
		}
		for daemon, nodes := range full {
			after := a.computations(daemon)
			for _, node := range nodes {
				if _, ok := after[node]; !ok {
					t.Errorf("%s has no engine node %s", daemon, node)
				} else if more := after[node] - before[daemon][node]; more > 0 {
					t.Errorf("%s: %s of %s was recomputed %d times for three pods", n.net.Name, node, daemon, more)
				}
			}
		}
	}
}
