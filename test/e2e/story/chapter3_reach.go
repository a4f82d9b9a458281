// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"time"
)

func reachChecks() []Check {
	return []Check{
		{3, "red: pods on both nodes and in both namespaces reach each other (TCP, UDP, ICMP)", redReach, 5 * time.Minute},
		{3, "two pods, one of each tenant, hold the same address, and each answers its own", sameAddress, 0},
	}
}

// The tenants' pods: on each node one tenant has an address that the other
// has not, so that "unreachable" cannot be "reached the wrong one".
func tenantPods(w *World) []*pod {
	nodes := w.Lab.Nodes()
	n1, n2 := nodes[0].Name, nodes[len(nodes)-1].Name
	return []*pod{
		{Namespace: "red-a", Name: "red-a-1", Node: n1, Tenant: "red"},
		{Namespace: "red-a", Name: "red-a-2", Node: n2, Tenant: "red"},
		{Namespace: "red-b", Name: "red-b-1", Node: n1, Tenant: "red"},
		{Namespace: "blue", Name: "blue-1", Node: n1, Tenant: "blue"},
		{Namespace: "blue", Name: "blue-2", Node: n2, Tenant: "blue"},
		{Namespace: "blue", Name: "blue-3", Node: n2, Tenant: "blue"},
	}
}

func (w *World) tenant(name string) []*pod {
	var out []*pod
	for _, p := range tenantPods(w) {
		if p.Tenant == name && w.pods[p.Name] != nil {
			out = append(out, w.pods[p.Name])
		}
	}
	return out
}

func redReach(ctx context.Context, w *World) (string, error) {
	if err := w.create(ctx, tenantPods(w)...); err != nil {
		return "", err
	}
	return w.mesh(ctx, w.tenant("red"))
}

func sameAddress(ctx context.Context, w *World) (string, error) {
	for _, r := range w.tenant("red") {
		for _, b := range w.tenant("blue") {
			if r.Primary[0] != b.Primary[0] {
				continue
			}
			for from, want := range map[*pod]*pod{w.pods["red-b-1"]: r, w.pods["blue-3"]: b} {
				if from == want {
					continue
				}
				got, err := w.check(ctx, from, "", probeTime, targets(r.Primary...)[:2]...)
				if err != nil {
					return "", err
				}
				for _, g := range got {
					if !g.OK || g.Who != want.Namespace+"/"+want.Name {
						return "", fmt.Errorf("%s at %s reached %q (%s), want %s", from.Name, g.Target, g.Who, g.Detail, want.Name)
					}
				}
			}
			return fmt.Sprintf("%s is %s and %s", r.Primary[0], r.Name, b.Name), nil
		}
	}
	return "", fmt.Errorf("no red pod shares an address with a blue one")
}
