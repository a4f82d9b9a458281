// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"bulkhead/test/lab"
)

func sctpChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "SCTP: pods, nodes and host-network pods reach pods and services as over TCP", Phase: phaseReach, Needs: needs(fixtureSCTP, fixtureRedHost), Run: sctpReached, Group: groupSCTP},
		{Chapter: 4, Title: "SCTP: no network's pods, host-network pods or nodes reach another network", Phase: phaseIsolation, Needs: needs(fixtureSCTP, fixtureRedHost), Run: sctpConfined, Group: groupSCTP},
	}
}

// sctpExternal are external IPs of each network's service sctp.
var sctpExternal = []netip.Addr{netip.MustParseAddr("198.51.100.12"), netip.MustParseAddr("2001:db8:10::12")}

// sctpTargets are the pods' SCTP servers at addresses.
func sctpTargets(addrs ...netip.Addr) []string {
	n, _ := strconv.Atoi(port)
	return addrTargets("sctp", addrs, uint16(n))
}

// setUpSCTP creates a service in a namespace of each network.
func setUpSCTP(ctx context.Context, w *World) error {
	var quoted, manifests []string
	for _, a := range w.served(sctpExternal) {
		quoted = append(quoted, strconv.Quote(a.String()))
	}
	for _, s := range storyServices {
		manifests = append(manifests, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: sctp, namespace: %s}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  externalIPs: [%s]
  selector: {role: server}
  ports: [{port: 80, targetPort: web-sctp, protocol: SCTP}]
`, s.namespace, strings.Join(quoted, ", ")))
	}
	return w.Lab.Apply(ctx, strings.Join(manifests, "---\n"))
}

// sctpService returns the targets of a namespace's service at its cluster IPs, and at its
// node port of each node.
func (w *World) sctpService(ctx context.Context, namespace string) (cluster []string, ports map[string][]string, err error) {
	list, err := w.clusterIPs(ctx, namespace, "sctp", 80)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range list {
		if at, ok := strings.CutPrefix(t, "tcp:"); ok {
			cluster = append(cluster, "sctp:"+at)
		}
	}
	ports = map[string][]string{}
	for _, n := range w.Lab.Nodes() {
		if ports[n.Name], err = w.nodePortsOf(ctx, namespace, "sctp", addrs(n)); err != nil {
			return nil, nil, err
		}
	}
	return cluster, ports, nil
}

// sctpReached has a pod on each node ask the pods and the service of its network in each
// way, nodes ask all networks' node ports, and red's host-network pod red's pods and
// service.
func sctpReached(ctx context.Context, w *World) (string, error) {
	var answers atomic.Int32
	count := func(n int, err error) error {
		answers.Add(int32(n))
		return err
	}
	sources, err := w.perNode()
	if err != nil {
		return "", err
	}
	host, err := w.pod("red-host")
	if err != nil {
		return "", err
	}
	external := addrTargets("sctp", w.served(sctpExternal), 80)
	for _, s := range storyServices {
		cluster, ports, err := w.sctpService(ctx, s.namespace)
		if err != nil {
			return "", err
		}
		everywhere := slices.Concat(slices.Collect(maps.Values(ports))...)
		servers := w.webServers(s.tenant, s.namespace)
		pods := map[string]string{}
		for _, to := range w.tenant(s.tenant) {
			for _, t := range sctpTargets(to.Primary...) {
				pods[t] = to.Namespace + "/" + to.Name
			}
		}
		err = each(sources, func(from *pod) error {
			ask := w.fromPod(ctx, from)
			if from.Tenant != s.tenant { // it sees the node's address, as from outside
				return count(answered(ask, everywhere, servers, 1))
			}
			if _, err := reach(ask, pods); err != nil {
				return err
			}
			answers.Add(int32(len(pods)))
			return count(answered(ask, slices.Concat(cluster, external, ports[from.Node]), servers, len(servers)))
		})
		if err != nil {
			return "", fmt.Errorf("pods to %q: %w", s.tenant, err)
		}
		err = each(w.Lab.Nodes(), func(n *lab.Node) error {
			return count(answered(w.fromNode(ctx, n), everywhere, servers, 1))
		})
		if err != nil {
			return "", fmt.Errorf("nodes to node ports of %q: %w", s.tenant, err)
		}
		if s.tenant != host.Tenant {
			continue
		}
		for _, container := range []string{"root", "nobody"} {
			ask := func(targets []string) ([]probe, error) { return w.ask(ctx, host, container, targets) }
			if _, err := reach(ask, pods); err != nil {
				return "", fmt.Errorf("%s in red's host-network pod: %w", container, err)
			}
			if err := count(answered(ask, cluster, servers, len(servers))); err != nil {
				return "", fmt.Errorf("%s in red's host-network pod: %w", container, err)
			}
		}
	}
	return fmt.Sprintf("%d answers", answers.Load()), nil
}

// sctpConfined has pods, red's host-network pod and nodes try the pods of networks that are
// not theirs, at both addresses, and the cluster IPs of these networks. An address may be
// one of the source's own network, too: then only its own pods may answer.
func sctpConfined(ctx context.Context, w *World) (string, error) {
	type target struct{ tenant, at string }
	var all []target
	for _, s := range storyServices {
		cluster, _, err := w.sctpService(ctx, s.namespace)
		if err != nil {
			return "", err
		}
		for _, t := range cluster {
			all = append(all, target{s.tenant, t})
		}
		for _, p := range w.tenant(s.tenant) {
			for _, t := range sctpTargets(append(slices.Clone(p.Default), p.Primary...)...) {
				all = append(all, target{s.tenant, t})
			}
		}
	}
	type source struct {
		name, tenant string
		check        func(...string) ([]probe, error)
	}
	var sources []source
	pods, err := w.perNode()
	if err != nil {
		return "", err
	}
	host, err := w.pod("red-host")
	if err != nil {
		return "", err
	}
	for _, p := range pods {
		sources = append(sources, source{p.Name, p.Tenant, func(list ...string) ([]probe, error) { return w.attempt(ctx, p, "", list...) }})
	}
	for _, container := range []string{"root", "nobody"} {
		sources = append(sources, source{"red-host " + container, host.Tenant, func(list ...string) ([]probe, error) {
			return w.attempt(ctx, host, container, list...)
		}})
	}
	for _, n := range w.Lab.Nodes() {
		sources = append(sources, source{n.Name, "", func(list ...string) ([]probe, error) { return w.nodeAttempt(ctx, n, list...) }})
	}
	var tried atomic.Int32
	err = each(sources, func(from source) error {
		var own, list []string
		for _, p := range w.tenant(from.tenant) {
			own = append(own, p.Namespace+"/"+p.Name)
		}
		for _, t := range all {
			if t.tenant != from.tenant {
				list = append(list, t.at)
			}
		}
		tried.Add(int32(len(list)))
		got, err := from.check(list...)
		if err != nil {
			return err
		}
		return reachedAny(from.name, slices.DeleteFunc(got, func(g probe) bool { return slices.Contains(own, g.Who) }))
	})
	return fmt.Sprintf("%d sources, %d attempts", len(sources), tried.Load()), err
}
