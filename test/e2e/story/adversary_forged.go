// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
)

// Ports of the connections that forged ICMP errors quote.
const (
	quotedPort = 7985 // of green-1; the next one with the second IP family
	lostPort   = 7987 // of a server outside the cluster, which does not answer
)

// forged are the parts in which pods and host-network processes with NET_RAW forge addresses, claims, errors and what
// routers and DHCP servers send. stop ends what the parts have started.
func (a *attackSetup) forged(ctx context.Context, m *round) (parts []part, stop func(), err error) {
	stop = func() {}
	external, near := actor{machine: a.w.Lab.External()}, actor{machine: a.near}
	if err := m.listenOnce(ctx, external, attack.Listener{Kind: "sniff"}); err != nil {
		return nil, stop, err
	}
	// What the node receives from green, and what its own IP stack takes.
	list := []attack.Listener{{Kind: "sniff-device", Device: a.green.Port.Name}}
	for _, v6 := range []bool{false, true} {
		list = append(list, attack.Listener{Kind: "raw-udp", IPv6: v6})
	}
	if err := m.listenOnce(ctx, near, list...); err != nil {
		return nil, stop, err
	}
	inside, err := a.insideAddresses(ctx)
	if err != nil {
		return nil, stop, err
	}
	parts = []part{a.forgedSources(inside), a.claims(), a.asRouter(), a.onNodesLink(), a.inVLAN()}
	quoting, stop, err := a.forgedErrors(ctx)
	if err != nil {
		return nil, stop, err
	}
	outside, err := a.fromOutside(ctx, inside)
	return append(append(parts, quoting), outside...), stop, err
}

// listenOnce has a victim listen that does not yet.
func (m *round) listenOnce(ctx context.Context, p actor, listeners ...attack.Listener) error {
	if _, listens := m.listeners[p.String()]; listens {
		return nil
	}
	return m.listen(ctx, p, listeners...)
}

// insideAddresses are addresses of green that mean something inside the cluster or its node only: pods', locked ones, the
// router's, the node's, cluster IPs, the join addresses, and the masquerade addresses.
func (a *attackSetup) insideAddresses(ctx context.Context) ([]netip.Addr, error) {
	masquerade, err := a.w.masquerade(ctx)
	if err != nil {
		return nil, err
	}
	plan := network.Plan{Masquerade: masquerade}
	green := network.Network{ID: a.greenID}
	list := slices.Concat(a.victim("green-1", false).Addrs, a.victim("green-1", true).Addrs, a.victim("green-2", false).Addrs, a.green.Nodes, a.front)
	for _, p := range slices.Concat(gatewaysOf(a.green.Nodes), plan.MasqueradeGateway(green), plan.MasqueradeManagement(green)) {
		list = append(list, p.Addr())
	}
	// Of the default join subnets: the cluster router's end and the gateway router's.
	joins := network.FilterFamilies([]netip.Prefix{netip.MustParsePrefix("100.65.0.0/16"), netip.MustParsePrefix("fd99::/64")}, a.w.has(netip.IPv4Unspecified()), a.w.has(netip.IPv6Unspecified()))
	green.JoinSubnets = joins
	for _, p := range slices.Concat(green.JoinRouter(), green.JoinGateway(a.nodeIDs[a.near.Name])) {
		list = append(list, p.Addr())
	}
	return list, nil
}

// podSender describes a pod's interface on its primary network.
func (a *attackSetup) podSender(name, device string, nodes []netip.Addr) adversary.Sender {
	v := a.victim(name, false)
	return adversary.Sender{Device: device, MAC: v.MAC, NextMAC: network.MACOf(gatewaysOf(nodes)), Addrs: v.Addrs}
}

// amberNodes are the node's addresses on amber.
func (a *attackSetup) amberNodes() []netip.Addr { return a.nodes[a.near.Name].addrs[a.amber.Name] }

// forgedSources is the part in which a pod sends from others' addresses. The same pod's packets from its own arrive.
func (a *attackSetup) forgedSources(inside []netip.Addr) part {
	amber := actor{pod: a.pods["amber-1"]}
	sender := a.podSender("amber-1", "ovn-udn1", a.amberNodes())
	outside := addrs(a.w.Lab.External())
	others := slices.Concat(inside, a.amberNodes(), addrs(a.near), addrs(a.far), a.routers)
	for _, p := range gatewaysOf(a.amberNodes()) {
		others = append(others, p.Addr())
	}
	to := slices.Concat(outside, addrs(a.near), addrs(a.far), a.victim("green-1", false).Addrs)
	return part{what: "from others' addresses, from a pod", victims: []string{actor{machine: a.w.Lab.External()}.String(), "green-1", actor{machine: a.near}.String()},
		elsewhere: trials([]actor{amber}, adversary.Sources(sender, others, to, askingPort)),
		controls:  trials([]actor{amber}, adversary.Sources(sender, sender.Addrs, outside, askingPort))}
}

// claims is the part in which a pod claims the addresses of its network's router, node and other pods, and sends what only
// routers and DHCP servers send, to its own network. Its other packets arrive.
func (a *attackSetup) claims() part {
	green := actor{pod: a.pods["green-3"]}
	sender := a.podSender("green-3", "ovn-udn1", a.green.Nodes)
	v := a.victim("green-1", false)
	claimed := slices.Concat(v.Addrs, a.victim("green-2", false).Addrs, a.green.Nodes)
	for _, p := range gatewaysOf(a.green.Nodes) {
		claimed = append(claimed, p.Addr())
	}
	own := sender
	own.NextMAC = v.MAC
	port := adversary.Victim{Name: "the node", Addrs: a.green.Nodes, MAC: a.green.Port.MAC}
	list := slices.Concat(adversary.Claims(sender, claimed, v), adversary.Claims(sender, claimed, port),
		adversary.FromPod(sender.Device, sender.MAC, sender.Addrs, v, false), adversary.FromPod(sender.Device, sender.MAC, sender.Addrs, port, false))
	return part{what: "in the name of a router or another pod, from a pod to its network", victims: []string{"green-1", actor{machine: a.near}.String()},
		elsewhere: trials([]actor{green}, list), controls: trials([]actor{green}, adversary.Sources(own, own.Addrs, v.Addrs, askingPort))}
}

// asRouter is the part in which the host-network pod of a tenant sends to its own network what only routers and DHCP servers send. Root
// outside all pods can.
func (a *attackSetup) asRouter() part {
	v := a.victim("green-1", false)
	root, nobody := a.greenHost(), actor{pod: a.pods["green-host"], container: "nobody"}
	answers := adversary.DHCPAnswers(v)
	for i := range answers { // root outside all pods reaches the network by its port
		answers[i].Device, answers[i].How = a.green.Port.Name, []string{"bindtodevice"}
	}
	out := part{what: "in the name of a router or DHCP server, from a host-network pod to its network", victims: []string{"green-1"},
		attacks: trials([]actor{root, nobody}, answers), controls: trials([]actor{a.admin()}, answers), elsewhere: trials([]actor{root, nobody}, adversary.DHCPAnswers(v))}
	if a.w.has(netip.IPv6Unspecified()) {
		ways := adversary.RouterFrames(a.green.Port, v)
		out.attacks = append(out.attacks, trials([]actor{root, nobody}, ways)...)
		out.controls = append(out.controls, trials([]actor{a.admin()}, ways)...)
	}
	return out
}

// onNodesLink is the part in which a tenant's host-network pod claims addresses on the node's link, by frames and by raw
// sockets. Root outside all pods can.
func (a *attackSetup) onNodesLink() part {
	attackers := a.attackers()[:2]
	mac := a.nodes[a.near.Name].mac[bridgeOfANode]
	out := part{what: "in the name of a node or router, from a tenant's host-network pod", victims: []string{actor{machine: a.w.Lab.External()}.String()}}
	for _, to := range addrs(a.w.Lab.External()) {
		for _, address := range slices.Concat(a.w.served(free), addrs(a.far), a.routers) {
			if address.Is4() != to.Is4() {
				continue
			}
			list := claims(address, mac, to)
			for i := range list {
				list[i].Device = bridgeOfANode
			}
			if address.Is6() { // a raw socket needs no frame
				raw := list[len(list)-1]
				raw.Socket, raw.To, raw.How = "hdrincl", allNodes+"%"+bridgeOfANode, append(slices.Clone(raw.How), "bindtodevice")
				list = append(list, raw)
			}
			if slices.Contains(free, address) {
				out.attacks = append(out.attacks, trials(attackers, list)...)
				out.controls = append(out.controls, trials([]actor{a.admin()}, list)...)
				continue
			}
			out.elsewhere = append(out.elsewhere, trials(attackers, list)...)
		}
	}
	return out
}

// inVLAN is the part in which host-network pods send frames with the tag of a Localnet network's VLAN. Root outside all
// pods can.
func (a *attackSetup) inVLAN() part {
	ways := a.vlanWays()
	return part{what: "into a Localnet network's VLAN, from host-network pods", victims: []string{tagged}, attacks: trials(a.attackers(), ways), controls: trials([]actor{a.admin()}, ways)}
}

// vlanWays are frames to the pod in the VLAN.
func (a *attackSetup) vlanWays() (out []attack.Attempt) {
	for _, address := range a.w.served(free) {
		for _, how := range [][]string{nil, {"ring"}, {"unbound"}} {
			out = append(out, attack.Attempt{Socket: "packet", Device: bridgeOfANode, SrcMAC: a.nodes[a.near.Name].mac[bridgeOfANode], DstMAC: a.annotations[tagged]["grey/mole"].MAC,
				Src: address.String(), To: address.String(), Port: attack.Port, How: append(slices.Clone(how), fmt.Sprintf("vlan=%d", moleVLAN))})
		}
	}
	return out
}

// forgedErrors is the part in which pods of other networks send ICMP errors about green-1's connection to a server outside. A router
// outside, which is on the connection's path, can.
func (a *attackSetup) forgedErrors(ctx context.Context) (out part, stop func(), err error) {
	stop = func() {}
	local, err := a.w.localGateway(ctx)
	if err != nil {
		return out, stop, err
	}
	masquerade, err := a.w.masquerade(ctx)
	if err != nil {
		return out, stop, err
	}
	plan, green := network.Plan{Masquerade: masquerade}, network.Network{ID: a.greenID}
	leaves := plan.MasqueradeGateway(green)
	if local {
		leaves = plan.MasqueradeManagement(green)
	}
	command := []string{"/tools/netprobe", "check", "--timeout", "1h"}
	servers := make([]netip.Addr, len(leaves))
	for i, from := range leaves {
		server, ok := network.FirstOfFamily(addrs(a.w.Lab.External()), from.Addr())
		if !ok {
			return out, stop, fmt.Errorf("the external machine has no address of the family of %s", from)
		}
		servers[i] = server
		command = append(command, fmt.Sprintf("udp@%d:%s", quotedPort+i, netip.AddrPortFrom(server, lostPort)))
	}
	asking, err := a.w.start(ctx, a.pods["green-1"], "netprobe", command...)
	if err != nil {
		return out, stop, err
	}
	out = part{what: "ICMP errors about another network's connection", victims: []string{"green-1"}}
	amber, grey := a.podSender("amber-1", "ovn-udn1", a.amberNodes()), a.podSender("grey-1", "eth0", a.plain.Nodes)
	for i, from := range leaves {
		port, outside, err := a.portOutside(ctx, from.Addr(), servers[i], lostPort)
		if err != nil {
			return out, asking.kill, err
		}
		server := netip.AddrPortFrom(servers[i], lostPort)
		pod, _ := network.FirstOfFamily(a.victim("green-1", false).Addrs, server.Addr())
		hosts := attack.Attempt{Socket: "hdrincl", Src: server.Addr().String(), To: outside.Addr().String()}
		out.controls = append(out.controls, trials([]actor{{machine: a.w.Lab.External()}}, adversary.Errors(hosts, attack.Quoted{From: outside, To: server})[:2])...)
		// The connection as it is known outside, to the node's router, and to green.
		for _, client := range []netip.AddrPort{outside, netip.AddrPortFrom(from.Addr(), port), netip.AddrPortFrom(pod, uint16(quotedPort+i))} {
			quoted := attack.Quoted{From: client, To: server}
			for _, to := range []netip.Addr{outside.Addr(), from.Addr(), pod} {
				hosts.To = to.String()
				out.elsewhere = append(out.elsewhere, trials(a.attackers(), adversary.Errors(hosts, quoted))...)
				for name, s := range map[string]adversary.Sender{"amber-1": amber, "grey-1": grey} {
					own, ok := network.FirstOfFamily(s.Addrs, to)
					if !ok {
						continue
					}
					frame := attack.Attempt{Socket: "packet", Device: s.Device, SrcMAC: s.MAC, DstMAC: s.NextMAC, Src: own.String(), To: to.String()}
					out.elsewhere = append(out.elsewhere, trials([]actor{{pod: a.pods[name]}}, adversary.Errors(frame, quoted))...)
				}
			}
		}
	}
	return out, asking.kill, nil
}

// samePaths returns an error if the near node believes that the path to the other node's tunnel addresses has become narrower.
func (a *attackSetup) samePaths(ctx context.Context) error {
	if len(a.encap[a.far.Name]) == 0 {
		return fmt.Errorf("%s has no tunnel address", a.far.Name)
	}
	var errs []error
	for _, to := range a.encap[a.far.Name] {
		res, err := a.near.Run(ctx, "ip route get "+to.String())
		if err == nil && (res.ExitCode != 0 || strings.Contains(res.Stdout, " mtu ")) {
			err = fmt.Errorf("%s to %s: the path is %q %s", a.near.Name, to, res.Stdout, res.Stderr)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
