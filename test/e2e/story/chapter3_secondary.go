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
	"bulkhead/test/lab"
)

func secondaryChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "secondary networks: pods have the interfaces that they request, and reach each other there", Phase: phaseReach, Needs: needs(fixtureSecondary), Run: secondaryReach, Group: groupSecondary},
		{Chapter: 3, Title: "Localnet networks on the external bridge: untagged pods, nodes and hosts beside the cluster reach each other", Phase: phaseReach, Needs: needs(fixtureSecondary, fixturePlain), Run: localnetReach, Group: groupSecondary},
		{Chapter: 4, Title: "secondary networks: other pods and the nodes do not reach them", Phase: phaseIsolation, Needs: needs(fixtureSecondary, fixturePlain, fixtureTenants), Run: secondaryIsolated, Group: groupSecondary},
	}
}

// secondaryManifest is a namespace of the cluster default network with a Layer 3 and a
// Layer 2 secondary network, and with two Localnet networks: quay has addresses of the
// nodes' own network, dock is tagged.
func (w *World) secondaryManifest() string {
	layer2, quay, dock := w.cidrs("10.85.0.0/16", "fd85::/64"), w.cidrs("172.30.0.0/24", "fd00:172:30::/64"), w.cidrs("10.86.0.0/16", "fd86::/64")
	exclude := w.cidrs("172.30.0.0/25", "172.30.0.192/26", "fd00:172:30::/112")
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
---
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: quay}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: storage}}
  network:
    topology: Localnet
    localnet: {role: Secondary, physicalNetworkName: harbor, subnets: %s, excludeSubnets: %s}
---
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: dock}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: storage}}
  network:
    topology: Localnet
    localnet: {role: Secondary, physicalNetworkName: harbor, subnets: %s, vlan: {mode: Access, access: {id: 20}}}
`, w.subnets(84), layer2, quay, exclude, dock)
}

// secondaryInterfaces are the pods' interfaces on secondary networks.
var secondaryInterfaces = map[string]string{"net1": "routed", "disk": "flat", "quay0": "quay", "dock0": "dock"}

// harbor is the physical network of quay and dock.
const harbor = "harbor"

// mapPhysical maps a physical network to every node's external bridge, or removes the
// mapping.
func (w *World) mapPhysical(ctx context.Context, name string, mapped bool) error {
	script := `m=$(ovs-vsctl get Open_vSwitch . external_ids:ovn-bridge-mappings | tr -d '"' | sed 's/,*` + name + `:br-ex//')
ovs-vsctl set Open_vSwitch . external_ids:ovn-bridge-mappings="$m`
	if mapped {
		script += "," + name + ":br-ex"
	}
	return each(w.Lab.Nodes(), func(n *lab.Node) error {
		res, err := n.Run(ctx, script+`"`)
		if err == nil && res.ExitCode != 0 {
			err = fmt.Errorf("map the physical network %s on %s: %s", name, n.Name, res.Stderr)
		}
		return err
	})
}

func undoSecondary(ctx context.Context, w *World) error { return w.mapPhysical(ctx, harbor, false) }

func setUpSecondary(ctx context.Context, w *World) error {
	if err := w.Lab.Apply(ctx, w.secondaryManifest()); err != nil {
		return err
	}
	if err := w.mapPhysical(ctx, harbor, true); err != nil {
		return err
	}
	for _, name := range []string{"routed", "flat"} {
		if err := w.conditions(ctx, udns, "storage", name, "True"); err != nil {
			return err
		}
	}
	for _, name := range []string{"quay", "dock"} {
		if err := w.conditions(ctx, cudns, "", name, "True"); err != nil {
			return err
		}
	}
	nodes := w.Lab.Nodes()
	var pods []*pod
	for i, node := range []string{nodes[0].Name, nodes[len(nodes)-1].Name, nodes[len(nodes)-1].Name} {
		pods = append(pods, &pod{Namespace: "storage", Name: fmt.Sprintf("storage-%d", i+1), Node: node, Tenant: "storage", Networks: "routed, flat@disk, quay@quay0, dock@dock0"})
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

// localnetReach has the pods of the cluster default network, the nodes and the external host
// reach the pods on quay, and those reach the external host there.
func localnetReach(ctx context.Context, w *World) (string, error) {
	pods, external := w.tenant("storage"), w.Lab.External()
	want := map[string]string{}
	for _, p := range pods {
		for _, t := range targets(p.On["quay"]...) {
			want[t] = p.Namespace + "/" + p.Name
			if strings.HasPrefix(t, "icmp:") {
				want[t] = ""
			}
		}
	}
	if len(want) != 3*len(pods)*len(w.Families) {
		return "", fmt.Errorf("%d targets on quay, want %d", len(want), 3*len(pods)*len(w.Families))
	}
	for _, n := range append(slices.Clone(w.Lab.Nodes()), external) {
		if _, err := reach(w.fromNode(ctx, n), want); err != nil {
			return "", fmt.Errorf("%s to pods on quay: %w", n.Name, err)
		}
	}
	if err := each(w.tenant(""), func(from *pod) error {
		if _, err := w.reach(ctx, from, "", want); err != nil {
			return fmt.Errorf("%s, of the cluster default network, to pods on quay: %w", from.Name, err)
		}
		return nil
	}); err != nil {
		return "", err
	}
	outside := map[string]string{}
	for _, n := range append(slices.Clone(w.Lab.Nodes()), external) {
		for _, a := range addrs(n) {
			outside["icmp:"+a.String()] = ""
		}
	}
	return fmt.Sprintf("%d targets", len(want)), each(pods, func(from *pod) error {
		if _, err := w.reach(ctx, from, "", outside); err != nil {
			return fmt.Errorf("%s to the nodes and the external host: %w", from.Name, err)
		}
		return nil
	})
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
		for _, name := range []string{"routed", "flat", "dock"} { // quay is the nodes' own network
			if len(p.On[name]) != len(w.Families) {
				return "", fmt.Errorf("%s has the addresses %v on %s", p.Name, p.On[name], name)
			}
			list = append(list, targets(p.On[name]...)...)
		}
	}
	sources := slices.Concat(w.tenant(""), w.tenant("red"))
	if err := each(sources, func(from *pod) error {
		got, err := w.attempt(ctx, from, "", list...)
		if err != nil {
			return err
		}
		return reachedAny(from.Name, got)
	}); err != nil {
		return "", err
	}
	for _, n := range w.Lab.Nodes() {
		got, err := w.nodeAttempt(ctx, n, list...)
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
