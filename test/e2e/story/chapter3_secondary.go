// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

func secondaryChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "secondary networks: pods have the interfaces that they request, and reach each other there", Phase: phaseReach, Needs: needs(fixtureSecondary), Run: secondaryReach},
		{Chapter: 4, Title: "secondary networks have no way in: other pods and the nodes do not reach them", Phase: phaseIsolation, Needs: needs(fixtureSecondary, fixturePlain, fixtureTenants), Run: secondaryIsolated},
	}
}

// secondaryManifest is a namespace of the cluster default network with a Layer 3 and a
// Layer 2 secondary network.
func (w *World) secondaryManifest() string {
	layer2 := `["10.85.0.0/16"]`
	if len(w.Families) > 1 {
		layer2 = `["10.85.0.0/16", "fd85::/64"]`
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: storage}
---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: routed, namespace: storage}
spec:
  topology: Layer3
  layer3: {role: Secondary, subnets: %s}
---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: flat, namespace: storage}
spec:
  topology: Layer2
  layer2: {role: Secondary, subnets: %s}
`, w.subnets(84), layer2)
}

// secondaryInterfaces are the pods' interfaces on the networks routed and flat.
var secondaryInterfaces = map[string]string{"net1": "routed", "disk": "flat"}

func setUpSecondary(ctx context.Context, w *World) error {
	if err := w.Lab.Apply(ctx, w.secondaryManifest()); err != nil {
		return err
	}
	for _, name := range []string{"routed", "flat"} {
		if err := w.conditions(ctx, udns, "storage", name, "True"); err != nil {
			return err
		}
	}
	nodes := w.Lab.Nodes()
	var pods []*pod
	for i, node := range []string{nodes[0].Name, nodes[len(nodes)-1].Name, nodes[len(nodes)-1].Name} {
		pods = append(pods, &pod{Namespace: "storage", Name: fmt.Sprintf("storage-%d", i+1), Node: node, Tenant: "storage", Networks: "routed, flat@disk"})
	}
	return w.create(ctx, pods...)
}

func secondaryReach(ctx context.Context, w *World) (string, error) {
	for _, p := range w.tenant("storage") {
		if err := w.secondaryStatus(ctx, p); err != nil {
			return "", err
		}
	}
	return w.mesh(ctx, w.tenant("storage"))
}

// secondaryStatus checks the pod's network status, and that its default route is on
// the cluster default network.
func (w *World) secondaryStatus(ctx context.Context, p *pod) error {
	obj, err := w.Lab.Client().CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	raw := obj.Annotations[network.AnnotationNetworkStatus]
	var status []struct {
		Name, Interface string
		IPs             []netip.Addr
		Default         bool
	}
	if err := json.Unmarshal([]byte(raw), &status); err != nil {
		return fmt.Errorf("network status of %s: %w in %q", p.Name, err, raw)
	}
	found := 0
	for _, s := range status {
		name, requested := secondaryInterfaces[s.Interface]
		if s.Default != (s.Interface == "eth0") || requested && s.Name != "storage/"+name {
			return fmt.Errorf("network status of %s: %s", p.Name, raw)
		}
		for _, a := range s.IPs {
			if requested && slices.Contains(p.Primary, a) {
				found++
			}
		}
	}
	if found != len(p.Primary) {
		return fmt.Errorf("network status of %s has %d of the addresses %v: %s", p.Name, found, p.Primary, raw)
	}
	return nil
}

// secondaryIsolated has pods of the cluster default network and of red, and the nodes,
// try the addresses on secondary networks.
func secondaryIsolated(ctx context.Context, w *World) (string, error) {
	var list []string
	for _, p := range w.tenant("storage") {
		list = append(list, targets(p.Primary...)...)
	}
	sources := slices.Concat(w.tenant(""), w.tenant("red"))
	if err := each(sources, func(from *pod) error {
		got, err := w.check(ctx, from, "", 3*time.Second, list...)
		if err != nil {
			return err
		}
		return reachedAny(from.Name, got)
	}); err != nil {
		return "", err
	}
	for _, n := range w.Lab.Nodes() {
		got, err := nodeProbe(ctx, n, 3*time.Second, list...)
		if err != nil {
			return "", err
		}
		if err := reachedAny("node "+n.Name, got); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d attempts", len(list)*(len(sources)+len(w.Lab.Nodes()))), nil
}

func reachedAny(from string, got []probe) error {
	var reached []string
	for _, g := range got {
		if g.OK {
			reached = append(reached, fmt.Sprintf("%s (%q)", g.Target, g.Who))
		}
	}
	if len(reached) > 0 {
		return fmt.Errorf("%s reached %s", from, strings.Join(reached, ", "))
	}
	return nil
}
