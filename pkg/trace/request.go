// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Port is a port binding of the southbound database.
type Port struct {
	Name     string
	Type     string // OVN's: "" for an interface, patch, l3gateway, localnet, remote, ...
	Datapath string // the name of its switch or router
	Network  string
	Primary  bool   // of a pod's port: the network's role is primary
	Pod      string // namespace/name, of a pod's port
	Node     string // of a port that leads to another node
	MAC      string
	Addrs    []netip.Addr
	Prefixes []netip.Prefix // of a router's port
	Peer     string         // of a port that connects a switch and a router
}

// Packet is what a pod would send.
type Packet struct {
	To       netip.Addr
	Protocol string // icmp, tcp, udp or sctp
	Port     uint16 // 0 for icmp
}

// sourcePort is the port that the pod sends from.
const sourcePort = 40000

func (p Packet) String() string {
	if p.Protocol == "icmp" {
		return p.To.String() + ", icmp"
	}
	return netip.AddrPortFrom(p.To, p.Port).String() + ", " + p.Protocol
}

// ParsePacket parses a destination, an address with or without a port: icmp is sent to
// an address alone.
func ParsePacket(destination, protocol string) (Packet, error) {
	if strings.Contains(destination, "%") {
		return Packet{}, fmt.Errorf("%q has a zone: use the address alone, the pod's interface follows from -network", destination)
	}
	if a, err := netip.ParseAddr(destination); err == nil {
		a = a.Unmap()
		if protocol != "" && protocol != "icmp" {
			return Packet{}, fmt.Errorf("%s needs a port: use %s", protocol, netip.AddrPortFrom(a, 80))
		}
		return Packet{To: a, Protocol: "icmp"}, nil
	}
	ap, err := netip.ParseAddrPort(destination)
	if err != nil || ap.Port() == 0 {
		return Packet{}, fmt.Errorf("%q is neither an address nor an address and a port", destination)
	}
	switch protocol {
	case "":
		protocol = "tcp"
	case "tcp", "udp", "sctp":
	default:
		return Packet{}, fmt.Errorf("protocol %q with a port: use tcp, udp or sctp", protocol)
	}
	return Packet{To: ap.Addr().Unmap(), Protocol: protocol, Port: ap.Port()}, nil
}

// microflow is a packet as a pod sends it.
type microflow struct {
	Packet
	from     Port
	source   netip.Addr
	mac, dst string
}

// microflow addresses the packet as the pod does: to the destination's MAC if that is
// on the same subnet, else to the router's.
func (p Packet) microflow(from Port, ports []Port) (microflow, error) {
	m := microflow{Packet: p, from: from, mac: from.MAC}
	for _, a := range from.Addrs {
		if a.Is4() == p.To.Is4() && !m.source.IsValid() {
			m.source = a
		}
	}
	if !m.source.IsValid() {
		return m, fmt.Errorf("pod %s has no address of the IP family of %s on network %s, only %v", from.Pod, p.To, from.Network, from.Addrs)
	}
	var err error
	m.dst, err = nextMAC(from, p.To, ports)
	return m, err
}

// logical returns the packet in the language of ovn-trace.
func (m microflow) logical() string {
	ip, proto := "ip4", "icmp4 && icmp4.type == 8"
	if m.To.Is6() {
		ip, proto = "ip6", "icmp6 && icmp6.type == 128"
	}
	if m.Protocol != "icmp" {
		proto = fmt.Sprintf("%s && %s.src == %d && %s.dst == %d", m.Protocol, m.Protocol, sourcePort, m.Protocol, m.Port)
	}
	return fmt.Sprintf("inport == %q && eth.src == %s && eth.dst == %s && %s.src == %s && %s.dst == %s && ip.ttl == 64 && %s",
		m.from.Name, m.mac, m.dst, ip, m.source, ip, m.To, proto)
}

// openFlow returns the packet in the language of ofproto/trace, from an interface.
func (m microflow) openFlow(link string) string {
	proto, prefix, more := m.Protocol, "nw", ""
	switch {
	case proto != "icmp":
		more = fmt.Sprintf(",tp_src=%d,tp_dst=%d", sourcePort, m.Port)
	case m.To.Is4():
		more = ",icmp_type=8"
	default:
		more = ",icmpv6_type=128"
	}
	if m.To.Is6() {
		proto, prefix = proto+"6", "ipv6"
	}
	return fmt.Sprintf("in_port=%s,%s,dl_src=%s,dl_dst=%s,%s_src=%s,%s_dst=%s,nw_ttl=64%s", link, proto, m.mac, m.dst, prefix, m.source, prefix, m.To, more)
}

// hostMAC stands for the MAC of a host on a physical network, which OVN does not know: it sends what is for
// unknown addresses there.
const hostMAC = "02:00:00:00:00:01"

// nextMAC returns the MAC to which a pod sends packets for an address.
func nextMAC(from Port, to netip.Addr, ports []Port) (string, error) {
	byName := map[string]Port{}
	for _, p := range ports {
		byName[p.Name] = p
	}
	router, onLink, physical := "", false, false
	for _, p := range ports {
		if p.Datapath != from.Datapath {
			continue
		}
		physical = physical || p.Type == "localnet"
		if slices.Contains(p.Addrs, to) {
			return p.MAC, nil
		}
		for _, prefix := range byName[p.Peer].Prefixes {
			router = byName[p.Peer].MAC
			if prefix.Addr() == to {
				return router, nil
			}
			onLink = onLink || prefix.Contains(to)
		}
	}
	switch {
	case physical && (router == "" || onLink):
		return hostMAC, nil
	case onLink:
		return "", fmt.Errorf("%s is in the subnet of switch %s, but none of its ports has it: nothing answers the pod's neighbour request", to, from.Datapath)
	case router == "":
		return "", fmt.Errorf("no port of switch %s has the address %s, and it has no router", from.Datapath, to)
	}
	return router, nil
}

// FindPod returns the port of a pod's interface: on the network on if that is not empty,
// else on its primary network.
func FindPod(ports []Port, pod, on string) (Port, error) {
	var found []Port
	for _, p := range ports {
		if p.Pod == pod && p.Type == "" && (on == "" || p.Network == on) {
			found = append(found, p)
		}
	}
	if primary := slices.DeleteFunc(slices.Clone(found), func(p Port) bool { return !p.Primary }); on == "" && len(found) > 1 {
		// A tenant's pod has a port on the default network beside its own.
		if tenant := slices.DeleteFunc(slices.Clone(primary), func(p Port) bool { return p.Network == network.DefaultName }); len(tenant) > 0 {
			primary = tenant
		}
		found = primary
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return Port{}, fmt.Errorf("pod %s has no port on this node%s: it runs on another node (run the trace there), is a host-network pod, or has not started (see its events)", pod, of(on))
	}
	var names []string
	for _, p := range found {
		names = append(names, p.Name)
	}
	return Port{}, fmt.Errorf("pod %s has several ports on network %s: %s", pod, found[0].Network, strings.Join(names, ", "))
}

func of(on string) string {
	if on == "" {
		return ""
	}
	return " on network " + on
}
