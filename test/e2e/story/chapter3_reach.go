// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

func reachChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "red: pods on both nodes and in both namespaces reach each other (TCP, UDP, ICMP)", Phase: phaseReach, Needs: needs(fixtureTenants), Run: redReach},
		{Chapter: 3, Title: "network-status names both interfaces of a tenant's pod, the tenant's as default", Phase: phaseObjects, Needs: needs(fixtureTenants), Run: networkStatus},
		{Chapter: 3, Title: "two pods, one of each tenant, hold the same address, and each answers its own", Phase: phaseReach, Needs: needs(fixtureTenants), Run: sameAddress},
	}
}

// tenantPods are the tenants' pods: on each node one tenant has an address that
// the other has not, so that reaching the wrong pod is not taken for isolation.
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

// tenant returns the pods of red or blue that are not host-network pods, or for
// "" those of the cluster default network, by name.
func (w *World) tenant(name string) []*pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*pod
	for _, p := range w.pods {
		if p.Tenant == name && !p.HostNetwork {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *pod) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func setUpTenants(ctx context.Context, w *World) error { return w.create(ctx, tenantPods(w)...) }

func redReach(ctx context.Context, w *World) (string, error) {
	return w.mesh(ctx, w.tenant("red"))
}

// networkStatus reads the annotation that the multi-network working group
// defines, as the agent writes it.
func networkStatus(ctx context.Context, w *World) (string, error) {
	p, err := w.pod("red-a-1")
	if err != nil {
		return "", err
	}
	want := fmt.Sprintf("bulkhead eth0 %v false, bulkhead ovn-udn1 %v true", p.Default, p.Primary)
	return want, w.hasStatus(ctx, p, want)
}

// hasStatus waits until the pod's network-status is as wanted: each interface's network,
// name, addresses, and whether it is the default.
func (w *World) hasStatus(ctx context.Context, p *pod, want string) error {
	return w.Lab.Wait(ctx, "network-status of "+p.Name+" to be "+want, func(ctx context.Context) (bool, string, error) {
		obj, err := w.Lab.Client().CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		raw := obj.Annotations[network.AnnotationNetworkStatus]
		var status []struct {
			Name, Interface string
			IPs             []netip.Addr
			Default         bool
		}
		if err := json.Unmarshal([]byte(raw), &status); err != nil {
			return false, fmt.Sprintf("%v in %q", err, raw), nil
		}
		var got []string
		for _, s := range status {
			got = append(got, fmt.Sprintf("%s %s %v %t", s.Name, s.Interface, s.IPs, s.Default))
		}
		return strings.Join(got, ", ") == want, raw, nil
	})
}

func sameAddress(ctx context.Context, w *World) (string, error) {
	pods, err := w.podsNamed("red-b-1", "blue-3")
	if err != nil {
		return "", err
	}
	fromRed, fromBlue := pods[0], pods[1]
	for _, r := range w.tenant("red") {
		for _, b := range w.tenant("blue") {
			shared := slices.DeleteFunc(slices.Clone(r.Primary), func(a netip.Addr) bool { return !slices.Contains(b.Primary, a) })
			if len(shared) == 0 {
				continue
			}
			for from, want := range map[*pod]*pod{fromRed: r, fromBlue: b} {
				if from == want {
					continue
				}
				answers := map[string]string{}
				for _, t := range dropICMP(targets(shared...)) {
					answers[t] = want.Namespace + "/" + want.Name
				}
				if _, err := w.reach(ctx, from, "", answers); err != nil {
					return "", fmt.Errorf("from %s: %w", from.Name, err)
				}
			}
			return fmt.Sprintf("%v: %s and %s", shared, r.Name, b.Name), nil
		}
	}
	return "", fmt.Errorf("no red pod shares an address with a blue one")
}
