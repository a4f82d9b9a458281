// SPDX-License-Identifier: Apache-2.0

package network

import (
	"strings"
	"testing"
)

func TestOlderPods(t *testing.T) {
	plan := testPlan()
	cdn := Network{Name: DefaultName, Topology: Layer3, Role: RolePrimary, Subnets: plan.ClusterSubnets}
	for _, tt := range []struct {
		name string
		nets PodNetworks
		want bool
	}{
		{"no networks yet", nil, false},
		{"a secondary network only", PodNetworks{"a/l2": {Role: RoleSecondary}}, false},
		{"the default network only", PodNetworks{DefaultName: NewPodNetwork(cdn, plan, pfx("10.244.0.3/24"), false)}, true},
		{"the default and a secondary network", PodNetworks{DefaultName: NewPodNetwork(cdn, plan, pfx("10.244.0.3/24"), false), "a/l2": {Role: RoleSecondary}}, true},
		{"a primary network and the locked default network", PodNetworks{DefaultName: NewPodNetwork(cdn, plan, pfx("10.244.0.3/24"), true), "a/red": {Role: RolePrimary}}, false},
	} {
		if got := tt.nets.WithoutPrimary(); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if err := OlderPods("red", nil); err != nil {
		t.Errorf("no pods: %v", err)
	}
	for _, tt := range []struct {
		pods []string
		want string
	}{{[]string{"b", "a"}, "(a, b)"}, {[]string{"d", "b", "c", "a", "e"}, "(a, b, c and 2 more)"}} {
		if err := OlderPods("red", tt.pods); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "delete them") {
			t.Errorf("%v: %v, want %s", tt.pods, err, tt.want)
		}
	}
}
