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

	"bulkhead/test/adversary/attack"
	"bulkhead/test/lab"
)

func outsideChecks() []Check {
	return []Check{
		{Chapter: 4, Title: "a host outside, with routes by the nodes, reaches no pod and no cluster IP", Phase: phaseIsolation, Needs: needs(fixtureServices), Run: outsideConfined, Timeout: 15 * time.Minute, Group: groupOutside},
	}
}

// outsideConfined has the external machine send to the pods' addresses, on their networks and on the cluster default network,
// and to the cluster IPs of each network, by each of tenantNodes. None of these networks is advertised. Packets that any pod
// receives count. In the controls, pods of the same network, and kubelet for locked addresses, do the same.
func outsideConfined(ctx context.Context, w *World) (_ string, err error) {
	var pods []*pod
	for _, s := range storyServices {
		pods = append(pods, w.tenant(s.tenant)...)
	}
	m := newRound(w)
	defer func() {
		_, ended := m.end(context.WithoutCancel(ctx))
		err = errors.Join(err, ended)
	}()
	if err := each(pods, func(p *pod) error { return m.listen(ctx, actor{pod: p}, attack.Listener{Kind: "sniff"}) }); err != nil {
		return "", err
	}
	external, total := actor{machine: w.Lab.External()}, 0
	fmt.Fprintf(w.Out, "     %-12s %-10s %-25s %5s  %s\n", "FROM", "BY", "TO", "TRIED", "RESULT")
	for _, by := range w.tenantNodes() {
		parts, routes, err := w.partsFromOutside(ctx, external)
		if err != nil {
			return "", err
		}
		for _, to := range routes {
			if err := w.externalRoute(ctx, to, by); err != nil {
				return "", err
			}
			defer external.machine.Run(context.WithoutCancel(ctx), "ip route del "+to.String())
		}
		confined := m.verify(ctx, parts...)
		for _, p := range parts {
			result := "isolated"
			if confined != nil {
				result = "FAILED, see below"
			}
			fmt.Fprintf(w.Out, "     %-12s %-10s %-25s %5d  %s\n", external, by.Name, p.what, len(p.attacks), result)
			total += len(p.attacks)
		}
		if confined != nil {
			return "", fmt.Errorf("by %s: %w", by.Name, confined)
		}
	}
	return fmt.Sprintf("%d attempts, none received; a control of each was", total), nil
}

// partsFromOutside returns the attempts on each network and their controls, and the addresses that they need routes to.
func (w *World) partsFromOutside(ctx context.Context, external actor) (parts []part, routes []netip.Addr, err error) {
	var victims []string
	for _, s := range storyServices {
		for _, p := range w.tenant(s.tenant) {
			victims = append(victims, actor{pod: p}.String())
		}
	}
	add := func(what string, by actor, p *part, ways []attack.Attempt) {
		p.what, p.victims = what, victims
		p.attacks, p.controls = append(p.attacks, trials([]actor{external}, ways)...), append(p.controls, trials([]actor{by}, ways)...)
		for _, way := range ways {
			if to := netip.MustParseAddr(way.To); !slices.Contains(routes, to) {
				routes = append(routes, to)
			}
		}
	}
	victimsOf, err := w.perNode()
	if err != nil {
		return nil, nil, err
	}
	for _, s := range storyServices {
		var onNetwork, locked, service part
		name := s.tenant
		if name == "" {
			name = "default"
		}
		for _, victim := range victimsOf {
			if victim.Tenant != s.tenant {
				continue
			}
			own, err := w.another(victim)
			if err != nil {
				return nil, nil, err
			}
			addresses := victim.Default
			if s.tenant != "" {
				addresses = victim.Primary
				kubelet, err := w.kubeletOf(victim)
				if err != nil {
					return nil, nil, err
				}
				add(name+", locked addresses", kubelet, &locked, plainWays(victim.Default, attack.Port, "udp", "tcp"))
			}
			add(name+", pods", own, &onNetwork, plainWays(addresses, attack.Port, "udp", "tcp", "raw-icmp"))
		}
		clusterIPs, err := w.serviceAddresses(ctx, s.namespace, "web")
		if err != nil {
			return nil, nil, err
		}
		add(name+", cluster IPs", actor{pod: w.tenant(s.tenant)[0]}, &service, plainWays(clusterIPs, 80, "udp", "tcp"))
		parts = append(parts, onNetwork, service)
		if len(locked.attacks) > 0 {
			parts = append(parts, locked)
		}
	}
	return parts, routes, nil
}

// plainWays are attempts at addresses without any trick, by these kinds of sockets.
func plainWays(to []netip.Addr, port uint16, sockets ...string) (out []attack.Attempt) {
	for _, a := range to {
		for _, socket := range sockets {
			out = append(out, attack.Attempt{Socket: socket, To: a.String(), Port: port})
		}
	}
	return out
}

// another returns another pod of a pod's network.
func (w *World) another(than *pod) (actor, error) {
	for _, p := range w.tenant(than.Tenant) {
		if p.Name != than.Name {
			return actor{pod: p}, nil
		}
	}
	return actor{}, fmt.Errorf("the network of %s has no other pod", than.Name)
}

// kubeletOf returns the kubelet of a pod's node.
func (w *World) kubeletOf(p *pod) (actor, error) {
	i := slices.IndexFunc(w.Lab.Nodes(), func(n *lab.Node) bool { return n.Name == p.Node })
	if i < 0 {
		return actor{}, fmt.Errorf("%s is on the unknown node %s", p.Name, p.Node)
	}
	return actor{machine: w.Lab.Nodes()[i], kubelet: true}, nil
}

// serviceAddresses returns a service's cluster IPs.
func (w *World) serviceAddresses(ctx context.Context, namespace, name string) (out []netip.Addr, err error) {
	targets, err := w.clusterIPs(ctx, namespace, name, 80)
	for _, t := range targets {
		if at, isTCP := strings.CutPrefix(t, "tcp:"); isTCP {
			out = append(out, netip.MustParseAddrPort(at).Addr()) // clusterIPs wrote it
		}
	}
	return out, err
}
