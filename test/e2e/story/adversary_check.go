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

	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
)

func adversaryChecks() []Check {
	check := func(g *group, title string, timeout time.Duration, run func(*attackSetup, context.Context) (string, error)) Check {
		return Check{Chapter: 6, Title: title, Phase: phaseAdversary, Needs: needs(fixtureAdversary), Timeout: timeout, Group: g,
			Run: func(ctx context.Context, w *World) (string, error) { return run(w.adversary, ctx) }}
	}
	return []Check{
		check(groupAttacks, "adversary: no pod or host-network process reaches another tenant or receives its packets", 25*time.Minute, (*attackSetup).table),
		check(groupAttacks, "ordinary servers in a tenant's host-network pod: kubelet, localhost and the other containers reach them", 20*time.Minute, (*attackSetup).ordinary),
		check(groupCapture, "adversary: a tenant that listens on the node's ports, and probes them, receives no connections meant for others", 20*time.Minute, (*attackSetup).capture),
		check(groupEarly, "adversary: host-network pods that the agent does not know yet enter no tenant's network", 20*time.Minute, (*attackSetup).early),
		check(groupMechanisms, "adversary: each mechanism alone stops its attacks, and they arrive when it is removed", 15*time.Minute, (*attackSetup).eachMechanismAlone),
		// Last, because it ends the attacker's network.
		check(groupWrites, "adversary: whatever a tenant or a node's token writes to the API, no id, address or network moves", 20*time.Minute, (*attackSetup).writes),
	}
}

const tunnelPort = 6081

// attackers are the containers on the attackers' node that are not green's.
func (a *attackSetup) attackers() []actor {
	return []actor{{pod: a.pods["amber-host"], container: "root"}, {pod: a.pods["amber-host"], container: "nobody"},
		{pod: a.pods["grey-host"], container: "root"}, {pod: a.pods["grey-host"], container: "nobody"}}
}

func (a *attackSetup) admin() actor { return actor{machine: a.near} }

// greenHost is green's host-network pod, which is attacked.
func (a *attackSetup) greenHost() actor { return actor{pod: a.pods["green-host"], container: "root"} }

// trials combines all actors with all attempts.
func trials(actors []actor, attempts []attack.Attempt) []trial {
	var out []trial
	for _, p := range actors {
		for _, x := range attempts {
			out = append(out, trial{p, x})
		}
	}
	return out
}

// table makes the table's attempts and returns its figures.
func (a *attackSetup) table(ctx context.Context) (figures string, err error) {
	m := newRound(a.w)
	host := a.greenHost()
	for _, v := range []string{"green-1", "green-2", "grey-1", tagged} {
		if err := m.listen(ctx, actor{pod: a.pods[v]}, attack.Listener{Kind: "sniff"}); err != nil {
			return "", err
		}
	}
	if err := m.listen(ctx, host, hostListeners()...); err != nil {
		return "", err
	}
	parts := a.parts(host)
	if !a.w.Full {
		const samples = 4
		chosen := a.w.sample("the adversary's table", samples)
		i := 0
		parts = slices.DeleteFunc(parts, func(part) bool { i++; return i%samples != chosen })
	}
	gateway, err := a.throughGateway(ctx, m)
	if err != nil {
		return "", err
	}
	localnet, err := a.onLocalnet(ctx, m)
	if err != nil {
		return "", err
	}
	impersonation, err := a.impersonation(ctx, m)
	if err != nil {
		return "", err
	}
	copies, err := a.copies(ctx, m)
	if err != nil {
		return "", err
	}
	parts = append(parts, gateway, localnet, impersonation, copies)
	forged, stop, err := a.forgedReplies(ctx)
	if err != nil {
		return "", err
	}
	defer stop()
	if len(forged.attacks) > 0 {
		parts = append(parts, forged)
	}
	more, stopMore, err := a.forged(ctx, m)
	defer stopMore()
	if err != nil {
		return "", err
	}
	parts = append(parts, more...)
	total := 0
	for _, p := range parts {
		attempts := len(p.attacks) + len(p.elsewhere)
		fmt.Fprintf(a.w.Out, "     %s: %d attempts, %d controls\n", p.what, attempts, len(p.controls))
		total += attempts
	}
	errs := []error{m.verify(ctx, parts...)}
	if _, err := m.end(ctx); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, a.samePaths(ctx))
	n, err := a.receiving(ctx)
	errs = append(errs, err)
	return fmt.Sprintf("%d attempts, none received; a control of each was", total+n), errors.Join(errs...)
}

// parts are the parts of the table: all other actors attack green, and tenants
// attack the cluster default network.
func (a *attackSetup) parts(host actor) []part {
	all := func(what string, attackers, controls []actor, ways []attack.Attempt, victim string) part {
		return part{what: what, attacks: trials(attackers, ways), controls: trials(controls, ways), victims: []string{victim}}
	}
	attackers, tenants := a.attackers(), a.attackers()[:2]
	admin, kubelet := []actor{a.admin()}, []actor{{machine: a.near, kubelet: true}}
	locked := withoutUDPLite(adversary.Locked(a.plain, a.victim("green-1", true), loader.KubeletMark))
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}
	edge := []actor{{pod: a.pods["edge-host"], container: "root"}, {pod: a.pods["edge-host"], container: "nobody"}}
	front := adversary.ToService(a.green, a.front, network.Network{ID: a.greenID}.IngressMark())
	return []part{
		// For 32-bit system calls the kernel runs no program of cgroup/setsockopt.
		all("into green, by 32-bit system calls", in32Bits(attackers), in32Bits(append(admin, host)), withoutRing(adversary.IntoNetwork(a.green, a.victim("green-1", false))), "green-1"),
		all("from a tenant into the default network, by 32-bit system calls", in32Bits(tenants), in32Bits(append(admin, actor{pod: a.pods["grey-host"], container: "root"})),
			withoutRing(withoutUDPLite(adversary.IntoNetwork(a.plain, a.victim("grey-1", false)))), "grey-1"),
		all("into green, from an ingress namespace", edge, append(admin, host), adversary.IntoNetwork(a.green, a.victim("green-1", false)), "green-1"),
		all("to a service of green, from elsewhere", attackers, append(edge, admin...), front, "green-1"),
		all("into green, on this node", attackers, append(admin, host), adversary.IntoNetwork(a.green, a.victim("green-1", false)), "green-1"),
		all("into green, on another node", attackers, append(admin, host), adversary.IntoNetwork(a.green, a.victim("green-2", false)), "green-2"),
		all("from a tenant into the default network", tenants, append(admin, actor{pod: a.pods["grey-host"], container: "root"}), withoutUDPLite(adversary.IntoNetwork(a.plain, a.victim("grey-1", false))), "grey-1"),
		all("to a locked address", append(attackers, host), kubelet, locked, "green-1"),
		// Root outside all pods can use kubelet's mark and send frames on any interface.
		all("to a locked address, root outside all pods", admin, kubelet, withoutMark(withoutFrames(locked)), "green-1"),
		all("to the overlay's port", attackers, admin, a.tunnelWays(), "green-2"),
		all("to another tenant's server on loopback", tenants, append(admin, host), adversary.Loopback(loopback, loopbackPort), host.String()),
		all("to another tenant's abstract unix sockets", tenants, append(admin, host), adversary.Abstract(abstractName), host.String()),
		all("to another tenant's server on all addresses", attackers, []actor{host}, plainOnly(adversary.Loopback(append(a.w.loopback(), addrs(a.near)...), loopbackPort+10)), host.String()),
	}
}

// abstractName begins the names of abstract unix sockets of green's host-network pod.
const abstractName = "@green"

func abstractListeners() (out []attack.Listener) {
	for _, kind := range []string{"unix-stream", "unix-dgram"} {
		out = append(out, attack.Listener{Kind: kind, At: abstractName + "-" + kind})
	}
	return out
}

// hostListeners are servers of green's host-network pod: on loopback, on all addresses, which binds them
// to the VRF, and at abstract unix sockets.
func hostListeners() []attack.Listener {
	out := abstractListeners()
	for _, kind := range []string{"udp", "tcp"} {
		out = append(out, attack.Listener{Kind: kind, At: fmt.Sprintf("127.0.0.1:%d", loopbackPort)}, attack.Listener{Kind: kind, IPv6: true, At: fmt.Sprintf("[::1]:%d", loopbackPort)},
			attack.Listener{Kind: kind, IPv6: true, At: fmt.Sprintf("[::]:%d", loopbackPort+10)})
	}
	return out
}

// plainOnly keeps the attempts that choose neither a device nor a mark: controls of
// the others need not arrive, because only plain connections are redirected.
func plainOnly(list []attack.Attempt) []attack.Attempt {
	return slices.DeleteFunc(slices.Clone(list), func(x attack.Attempt) bool {
		return x.Socket == "mptcp" || len(x.How) > 0 && x.How[0] != "connect"
	})
}

// in32Bits returns the actors with a program that makes 32-bit system calls.
func in32Bits(actors []actor) []actor {
	out := slices.Clone(actors)
	for i := range out {
		out[i].bits32 = true
	}
	return out
}

// withoutRing leaves out rings of packets: their version 1 has the kernel's word size.
func withoutRing(list []attack.Attempt) []attack.Attempt {
	return slices.DeleteFunc(slices.Clone(list), func(x attack.Attempt) bool { return slices.Contains(x.How, "ring") })
}

// withoutUDPLite drops UDP-Lite attempts: the connection tracking of the default
// network's switches drops them, whoever sends.
func withoutUDPLite(list []attack.Attempt) []attack.Attempt {
	return slices.DeleteFunc(slices.Clone(list), func(x attack.Attempt) bool { return x.Socket == "udplite" })
}

func withoutMark(list []attack.Attempt) []attack.Attempt {
	return slices.DeleteFunc(slices.Clone(list), func(x attack.Attempt) bool {
		return slices.ContainsFunc(x.How, func(h string) bool { return strings.HasPrefix(h, "mark=") })
	})
}

func isFrame(x attack.Attempt) bool { return x.SrcMAC != "" }

func withoutFrames(list []attack.Attempt) []attack.Attempt {
	return slices.DeleteFunc(slices.Clone(list), isFrame)
}

// tunnelWays forge overlay datagrams from this node to the other, for green-2.
func (a *attackSetup) tunnelWays() []attack.Attempt {
	mac := a.nodes[a.near.Name].mac["br-ex"]
	return a.tunnelWaysFrom(a.encap[a.near.Name], []adversary.Interface{{Name: "br-ex", MAC: mac}, {Name: "eth0", MAC: mac}})
}

// tunnelWaysFrom are tunnelWays from other addresses and interfaces of this node or its pods.
// All numbers in them are derived from ids.
func (a *attackSetup) tunnelWaysFrom(from []netip.Addr, links []adversary.Interface) []attack.Attempt {
	net := network.Network{ID: a.greenID, Transit: network.FilterFamilies([]netip.Prefix{netip.MustParsePrefix("100.88.0.0/16"), netip.MustParsePrefix("fd97::/64")}, true, slices.Contains(a.w.Families, "ipv6"))}
	transitMAC := func(node string) string {
		p, _ := net.TransitAddr(a.nodeIDs[node])
		return network.MAC(p.Addr())
	}
	g := attack.Geneve{VNI: uint32(net.TunnelKey()), In: uint16(a.nodeIDs[a.near.Name]), Out: uint16(a.nodeIDs[a.far.Name]),
		InnerSrc: a.victim("green-1", false).Addrs[0].String(), InnerDst: a.victim("green-2", false).Addrs[0].String(),
		SrcMAC: transitMAC(a.near.Name), DstMAC: transitMAC(a.far.Name)}
	return adversary.Tunnel(from, a.encap[a.far.Name], links, a.nodes[a.far.Name].mac["br-ex"], g, tunnelPort)
}

// withAddresses drops the listeners of an IP family of which the network has no address: nothing would
// be sent to them. Packet sockets have none.
func withAddresses(to []netip.Addr, list []attack.Listener) []attack.Listener {
	return slices.DeleteFunc(list, func(e attack.Listener) bool {
		return !strings.HasPrefix(e.Kind, "sniff") && !slices.ContainsFunc(to, func(a netip.Addr) bool { return a.Is6() == e.IPv6 })
	})
}

// receiving makes all actors listen on the node while green's pods talk to each other and to the node, also
// across nodes: the overlay's packets, which arrive at the node's own address.
func (a *attackSetup) receiving(ctx context.Context) (int, error) {
	m := newRound(a.w)
	actors := append(a.attackers(), a.admin(), a.greenHost())
	listeners := map[string][]attack.Listener{}
	var sent []attack.Attempt
	to := a.green.Nodes
	for i, p := range actors {
		list := withAddresses(to, adversary.Listeners(a.green, a.green.Nodes, 0, a.victim("green-1", false).Link.Name, "lo"))
		for j := range list {
			e := &list[j]
			if e.At == "" {
				continue
			}
			at := netip.MustParseAddrPort(e.At)
			port := uint16(10000 + 200*i + j)
			e.At = netip.AddrPortFrom(at.Addr(), port).String()
			dest := at.Addr()
			switch {
			case dest.IsUnspecified():
				dest = to[slices.IndexFunc(to, func(x netip.Addr) bool { return x.Is6() == e.IPv6 })]
			case dest.Zone() != "":
				dest = dest.WithZone("ovn-udn1")
			}
			sent = append(sent, attack.Attempt{Socket: e.Kind, To: dest.String(), Port: port})
		}
		listeners[p.String()] = list
	}
	if err := each(actors, func(p actor) error { return m.listen(ctx, p, listeners[p.String()]...) }); err != nil {
		return 0, err
	}
	for _, x := range to { // for raw sockets, which receive all packets of a protocol
		sent = append(sent, attack.Attempt{Socket: "raw-icmp", To: x.String()}, attack.Attempt{Socket: "udp", To: x.String(), Port: 7999}, attack.Attempt{Socket: "tcp", To: x.String(), Port: 7999})
	}
	var across []attack.Attempt
	for _, x := range a.victim("green-1", false).Addrs {
		across = append(across, attack.Attempt{Socket: "udp", To: x.String(), Port: 7999})
	}
	var closed []attack.Attempt // ports that answer by ICMP errors, which quote the packet
	for _, x := range a.victim("green-1", false).Addrs {
		closed = append(closed, attack.Attempt{Socket: "udp", To: x.String(), Port: 9})
	}
	local := len(sent) + len(closed)
	sends := slices.Concat(trials([]actor{a.greenHost()}, closed), trials([]actor{{pod: a.pods["green-1"]}}, sent), trials([]actor{{pod: a.pods["green-2"]}}, across))
	for range 2 {
		if err := m.try(ctx, pointers(sends)); err != nil {
			return 0, err
		}
	}
	received, err := m.end(ctx)
	if err != nil {
		return 0, err
	}
	var errs []error
	attempts := 0
	controls, byControl := map[int]string{}, map[int]bool{}
	for i, p := range actors {
		for j, h := range received[p.String()] {
			if i >= len(a.attackers()) {
				for _, id := range h.IDs {
					byControl[id] = byControl[id] || listeners[p.String()][j].Kind == "raw-udp"
				}
				if len(h.IDs) > 0 {
					controls[j] = "received"
				} else if controls[j] != "received" {
					controls[j] += fmt.Sprintf("%s: %s; ", p, h.Refused)
				}
				continue
			}
			attempts++
			if len(h.IDs) > 0 {
				errs = append(errs, fmt.Errorf("%s received %d packets of green with %+v", p, len(h.IDs), listeners[p.String()][j]))
			}
		}
	}
	for j, why := range controls {
		if e := listeners[actors[0].String()][j]; why != "received" && e.Device != "lo" {
			errs = append(errs, fmt.Errorf("no control received green's packets with %+v: %s", e, why))
		}
	}
	for _, t := range sends[local:] {
		if !byControl[t.attempt.ID] {
			errs = append(errs, fmt.Errorf("no control received green's packets from a raw socket across nodes: %s (the sender's error: %q)", t.key(), m.sendErrors[t.attempt.ID]))
		}
	}
	return attempts, errors.Join(errs...)
}

func pointers(list []trial) []*trial {
	out := make([]*trial, len(list))
	for i := range list {
		out[i] = &list[i]
	}
	return out
}
