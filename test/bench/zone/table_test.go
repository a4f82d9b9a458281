// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// OVN's memory is that of three processes, and has a target at as many networks as the first rows were measured at.
func TestOVNMemory(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		networks int
		memory   int64 // of each
		verdict  string
	}{{targetNetworks, 432 * mb, "met"}, {targetNetworks, 434 * mb, "MISSED"}, {targetNetworks, 0, "MISSED"}, {targetNetworks - 1, 434 * mb, ""}} {
		r := &result{shape: shape{networks: c.networks, nodes: 1}}
		for _, name := range []string{"NB server", "SB server", "ovn-controller", "ovn-northd", "ovs-vswitchd"} {
			r.daemons = append(r.daemons, daemon{name: name, memory: c.memory})
		}
		if got := ovnMemory(r).Verdict(); got != c.verdict {
			t.Errorf("%d networks, %d MB each: %q, want %q", c.networks, c.memory/mb, got, c.verdict)
		}
	}
}
