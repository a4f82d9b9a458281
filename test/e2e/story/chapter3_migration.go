// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
)

func migrationChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "live migration: a virtual machine's addresses move to its pod on another node, on Layer 2 and Localnet networks", Phase: phaseFaults, Needs: needs(fixtureFerry), Run: liveMigration, Timeout: 10 * time.Minute, Group: groupMigration},
	}
}

const ferryPhysical = "ferry"

// pierRequest has the virtual machine's claim on pier, a Localnet network.
const pierRequest = `[{"name": "pier", "ipam-claim-reference": "vm-pier"}]`

// ferryManifest is a namespace with a Layer 2 primary network and a Localnet network, both
// with persistent addresses, and a virtual machine's claims on them.
func (w *World) ferryManifest() string {
	net, pier := w.cidrs("10.20.0.0/16", "fd20::/64"), w.cidrs("10.88.0.0/16", "fd88::/64")
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: ferry, labels: {k8s.ovn.org/primary-user-defined-network: ""}}
---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: net, namespace: ferry}
spec:
  topology: Layer2
  layer2: {role: Primary, subnets: %s, ipam: {lifecycle: Persistent}}
---
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: pier}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ferry}}
  network:
    topology: Localnet
    localnet: {role: Secondary, physicalNetworkName: %s, subnets: %s, ipam: {lifecycle: Persistent}, vlan: {mode: Access, access: {id: 30}}}
---
apiVersion: k8s.cni.cncf.io/v1alpha1
kind: IPAMClaim
metadata: {name: vm, namespace: ferry}
spec: {network: ferry_net, interface: net}
---
apiVersion: k8s.cni.cncf.io/v1alpha1
kind: IPAMClaim
metadata: {name: vm-pier, namespace: ferry}
spec: {network: cluster_udn_pier, interface: pier}
`, net, ferryPhysical, pier)
}

func setUpFerry(ctx context.Context, w *World) error {
	if err := w.Lab.Apply(ctx, w.ferryManifest()); err != nil {
		return err
	}
	if err := w.mapPhysical(ctx, ferryPhysical, true); err != nil {
		return err
	}
	if err := w.conditions(ctx, udns, "ferry", "net", "True"); err != nil {
		return err
	}
	if err := w.conditions(ctx, cudns, "", "pier", "True"); err != nil {
		return err
	}
	nodes := w.Lab.Nodes()
	return w.create(ctx,
		&pod{Namespace: "ferry", Name: "vm-source", Node: nodes[0].Name, Tenant: "ferry", VM: "vm", Networks: pierRequest},
		&pod{Namespace: "ferry", Name: "ferry-1", Node: nodes[0].Name, Tenant: "ferry", Networks: "pier"},
		&pod{Namespace: "ferry", Name: "ferry-2", Node: nodes[len(nodes)-1].Name, Tenant: "ferry", Networks: "pier"})
}

func undoFerry(ctx context.Context, w *World) error {
	return w.mapPhysical(ctx, ferryPhysical, false)
}

// longestLoss is how long packets to a virtual machine that migrates may be lost, besides what the machine that runs the lab
// delays packets.
const longestLoss = time.Second

// liveMigration has two pods play the source and the target of a virtual machine's live
// migration, as KubeVirt annotates them. Pods on both nodes talk to the virtual machine's
// addresses: one of the two pods answers at any time, and the other reaches nobody.
func liveMigration(ctx context.Context, w *World) (string, error) {
	pods, err := w.podsNamed("vm-source", "ferry-1", "ferry-2")
	if err != nil {
		return "", err
	}
	source, near, far := pods[0], pods[1], pods[2]
	peers := []*pod{near, far}
	target := &pod{Namespace: "ferry", Name: "vm-target", Node: far.Node, Tenant: "ferry", VM: "vm", Networks: pierRequest}
	lease, err := w.lease(ctx, source)
	if err != nil {
		return "", err
	}
	if err := w.create(ctx, target); err != nil {
		return "", err
	}
	if !slices.Equal(target.On["net"], source.On["net"]) || !slices.Equal(target.On["pier"], source.On["pier"]) {
		return "", fmt.Errorf("the source has addresses %v, the target %v", source.On, target.On)
	}
	if err := w.onlyActive(ctx, source, target, peers); err != nil {
		return "", fmt.Errorf("before the handover: %w", err)
	}
	// From the source's node on the Layer 2 network, from the target's on the Localnet. The third is between pods that stay,
	// and shows how slow the lab is.
	var watches []*watch
	for _, s := range []struct {
		from *pod
		to   netip.Addr
	}{{near, source.On["net"][0]}, {far, source.On["pier"][len(source.On["pier"])-1]}, {near, far.On["net"][0]}} {
		traffic, err := w.watch(ctx, s.from, "--ping", s.to.String())
		if err != nil {
			return "", err
		}
		defer traffic.kill()
		watches = append(watches, traffic)
	}
	ready := time.Now().String()
	if err := w.annotate(ctx, network.AnnotationMigrationTargetReady, &ready, target); err != nil {
		return "", err
	}
	begin := time.Now()
	if err := each(peers, func(from *pod) error { return w.answeredBy(ctx, from, target) }); err != nil {
		return "", fmt.Errorf("after the handover: %w", err)
	}
	took := time.Since(begin)
	outages, err := handoverLosses(ctx, watches)
	if err != nil {
		return "", err
	}
	if err := w.onlyActive(ctx, target, source, peers); err != nil {
		return "", fmt.Errorf("after the handover: %w", err)
	}
	again, err := w.lease(ctx, target)
	if err != nil {
		return "", err
	}
	if again != lease {
		return "", fmt.Errorf("the target's lease is %q, the source's was %q", again, lease)
	}
	if err := w.deletePod(ctx, source); err != nil {
		return "", err
	}
	if err := each(peers, func(from *pod) error { return w.answeredBy(ctx, from, target) }); err != nil {
		return "", fmt.Errorf("without the source: %w", err)
	}
	return fmt.Sprintf("%s; all answers moved within %.1f s; lease %s", outages, took.Seconds(), lease), nil
}

// handoverLosses ends the traffic to the virtual machine, on Layer 2 and Localnet, and that between pods that stay. It returns
// what was lost, and an error if pings were answered twice, or lost for too long.
func handoverLosses(ctx context.Context, watches []*watch) (string, error) {
	names := []string{"Layer 2", "Localnet", "pods that stay"}
	results := make([]watched, len(watches))
	var errs []error
	for i, traffic := range watches {
		r, err := traffic.result(ctx)
		if err == nil {
			err = r.pingsError()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", names[i], err))
		}
		results[i] = r
	}
	stay := results[len(results)-1]
	allowed := longestLoss + time.Duration(max(stay.SlowestMillis, stay.LongestLossMillis))*time.Millisecond
	var outages []string
	for i, r := range results {
		outages = append(outages, fmt.Sprintf("%s: %d of %d pings lost, at once for %d ms, slowest %d ms, %d answered twice", names[i], len(r.Lost), r.Sent, r.LongestLossMillis, r.SlowestMillis, r.Duplicates))
		if lost := time.Duration(r.LongestLossMillis) * time.Millisecond; lost > allowed {
			errs = append(errs, fmt.Errorf("%s: all pings were lost for %s, want at most %s", names[i], lost, allowed))
		}
	}
	text := strings.Join(outages, "; ")
	if err := errors.Join(errs...); err != nil {
		return "", fmt.Errorf("%s: %w", text, err)
	}
	return text, nil
}

// vmTargets are the virtual machine's addresses on both networks.
func vmTargets(p *pod) []string {
	return targets(append(slices.Clone(p.On["net"]), p.On["pier"]...)...)
}

// onlyActive checks that peers reach one of the virtual machine's pods, never the other,
// and that only that one reaches them.
func (w *World) onlyActive(ctx context.Context, active, other *pod, peers []*pod) error {
	want := map[string]string{}
	var list []string
	for _, t := range vmTargets(active) {
		want[t] = active.Namespace + "/" + active.Name
	}
	out := map[string]string{}
	for _, p := range peers {
		for _, t := range vmTargets(p) {
			out[t], list = p.Namespace+"/"+p.Name, append(list, t)
		}
	}
	for _, p := range peers {
		if _, err := w.reach(ctx, p, "", want); err != nil {
			return fmt.Errorf("from %s: %w", p.Name, err)
		}
	}
	if _, err := w.reach(ctx, active, "", out); err != nil {
		return fmt.Errorf("from %s: %w", active.Name, err)
	}
	got, err := w.check(ctx, other, "", probeTime, list...)
	if err != nil {
		return err
	}
	var errs []error
	for _, g := range got {
		if g.OK {
			errs = append(errs, fmt.Errorf("%s, which does not run the virtual machine, reached %s (%q)", other.Name, g.Target, g.Who))
		}
	}
	return errors.Join(append(errs, w.silent(ctx, active, other, peers))...)
}

// silent sends the same frames, by packet sockets, from both of the virtual machine's
// pods: peers receive all of active's and none of other's.
func (w *World) silent(ctx context.Context, active, other *pod, peers []*pod) (err error) {
	m := newRound(w)
	defer func() {
		_, ended := m.end(ctx)
		err = errors.Join(err, ended)
	}()
	var frames []attack.Attempt
	p := part{what: "frames of a pod that does not run its virtual machine"}
	for _, peer := range peers {
		listener := actor{pod: peer}
		if err := m.listen(ctx, listener, attack.Listener{Kind: "sniff"}); err != nil {
			return err
		}
		p.victims = append(p.victims, listener.String())
		for device, nad := range map[string]string{network.PrimaryInterface: "net", "net1": "pier"} {
			own, addrs := active.On[nad], peer.On[nad]
			frames = append(frames, adversary.Sharing(device, network.MAC(own[0]), own, adversary.Victim{Addrs: addrs, MAC: network.MAC(addrs[0])})...)
		}
	}
	p.attacks, p.controls = trials([]actor{{pod: other}}, frames), trials([]actor{{pod: active}}, frames)
	return m.verify(ctx, p)
}

// answeredBy waits until the pod answers at all addresses of its virtual machine.
func (w *World) answeredBy(ctx context.Context, from, target *pod) error {
	list := slices.DeleteFunc(vmTargets(target), func(t string) bool { return strings.HasPrefix(t, "icmp:") })
	return w.Lab.Wait(ctx, fmt.Sprintf("%s to answer %s", target.Name, from.Name), func(ctx context.Context) (bool, string, error) {
		got, err := w.ask(ctx, from, "", list)
		var others []string
		for _, g := range got {
			if !g.OK || g.Who != target.Namespace+"/"+target.Name {
				others = append(others, fmt.Sprintf("%s: %q %s", g.Target, g.Who, g.Detail))
			}
		}
		return err == nil && len(got) == len(list) && len(others) == 0, strings.Join(others, ", "), err
	})
}

// lease has DHCP clients in the pod ask for what a virtual machine needs, and returns the address of each
// IP family, and of IPv4 also router, MTU and host name, with the DNS server.
func (w *World) lease(ctx context.Context, p *pod) (string, error) {
	const script = `printf '#!/bin/sh\n[ "$1" != bound ] || echo "lease: %s"\n' > /tmp/lease && chmod +x /tmp/lease && busybox %s -i ` + network.PrimaryInterface + ` -f -n -q -t 20 -T 1 -s /tmp/lease 2>&1`
	var leases []string
	for _, a := range p.On["net"] {
		client, says := "udhcpc -O mtu -O hostname", "$ip/$mask via $router dns $dns mtu $mtu name $hostname"
		begin, end := a.String()+"/16 via 10.20.0.1 dns ", " name "+p.VM
		if a.Is6() {
			client, says = "udhcpc6", "$ipv6 dns $dns"
			begin, end = a.StringExpanded()+" dns ", ""
		}
		out, err := w.exec(ctx, p, "", "/bin/sh", "-c", fmt.Sprintf(script, says, client))
		if err != nil {
			return "", fmt.Errorf("%s gets no lease of %s: %w: %s", p.Name, a, err, out)
		}
		var got string
		for line := range strings.Lines(out) {
			if l, ok := strings.CutPrefix(line, "lease: "); ok {
				got = strings.TrimSpace(l)
			}
		}
		if !strings.HasPrefix(got, begin) || !strings.HasSuffix(got, end) {
			return "", fmt.Errorf("the lease of %s is %q, want %s…%s: %s", p.Name, got, begin, end, out)
		}
		leases = append(leases, got)
	}
	if len(leases) == 0 {
		return "", fmt.Errorf("%s has no address on net", p.Name)
	}
	return strings.Join(leases, ", "), nil
}
