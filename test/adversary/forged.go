// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"net/netip"
	"slices"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary/attack"
)

// Sender is the interface on which a pod sends forged frames.
type Sender struct {
	Device, MAC string
	NextMAC     string // the next hop's
	Addrs       []netip.Addr
}

// Sources lists packets that a pod with NET_RAW sends from these addresses to others: as datagrams, also from a port on
// which the owner of the address has connections, and as echo requests.
func Sources(s Sender, from, to []netip.Addr, ownersPort uint16) []attack.Attempt {
	var out []attack.Attempt
	for _, src := range from {
		for _, dst := range to {
			if src.Is4() != dst.Is4() {
				continue
			}
			f := frame(s.Device, s.MAC, s.NextMAC, src, dst)
			out = append(out, f)
			f.SrcPort = ownersPort
			echo := frame(s.Device, s.MAC, s.NextMAC, src, dst, "bypass")
			echo.Frame = "echo"
			out = append(out, f, echo)
		}
	}
	return out
}

// Claims lists the ways to take addresses from other pods of the same switch, or from its router: announcements, and neighbour
// discovery from the owner's address and from the sender's own, to all and to one victim.
func Claims(s Sender, claimed []netip.Addr, v Victim) []attack.Attempt {
	var out []attack.Attempt
	add := func(kind string, src, dst netip.Addr, mac string, how ...string) {
		f := frame(s.Device, s.MAC, mac, src, dst, how...)
		f.Frame = kind
		out = append(out, f)
	}
	ll := network.LinkLocal(s.MAC)
	for _, a := range claimed {
		if a.Is4() {
			add("arp-announcement", a, a, broadcastMAC)
			add("arp-announcement", a, a, v.MAC)
			continue
		}
		target := "target=" + a.String()
		for _, src := range []netip.Addr{a, ll} {
			add("neighbour-advertisement", src, allNodes6, allNodesMAC, target)
			add("neighbour-advertisement", src, sameFamily(v.Addrs, a), v.MAC, target)
		}
		add("neighbour-solicitation", a, sameFamily(v.Addrs, a), v.MAC)
	}
	return out
}

// RouterFrames lists what only a router or a DHCP server sends, as a raw socket of a tenant's host-network process writes it into its
// network, from the link-local address of the node's port there.
func RouterFrames(port Interface, v Victim) []attack.Attempt {
	var out []attack.Attempt
	from := network.LinkLocal(port.MAC)
	to := slices.DeleteFunc(slices.Clone(v.Addrs), netip.Addr.Is4)
	for _, kind := range []string{"router-advertisement", "redirect", "neighbour-advertisement", "neighbour-solicitation"} {
		for _, dst := range slices.Concat(to, []netip.Addr{allNodes6.WithZone(port.Name)}) {
			how := []string{"bindtodevice"}
			if kind == "neighbour-advertisement" {
				how = append(how, "target="+from.String())
			}
			out = append(out, attack.Attempt{Socket: "hdrincl", Frame: kind, Device: port.Name, SrcMAC: port.MAC, Src: from.String(), To: dst.String(), How: how})
		}
	}
	return out
}

// DHCPAnswers lists datagrams to the port of DHCP clients, by sockets for which a process needs no capability.
func DHCPAnswers(v Victim) []attack.Attempt {
	var out []attack.Attempt
	for _, to := range v.Addrs {
		for _, port := range []uint16{68, 546} {
			out = append(out, attack.Attempt{Socket: "udp", To: to.String(), Port: port})
		}
	}
	return out
}

// Errors lists ICMP errors that quote somebody else's datagram, to an address, by the way of an attempt: its socket, device and addresses.
func Errors(by attack.Attempt, quoted attack.Quoted) []attack.Attempt {
	kinds := []string{"unreachable", "too-long"}
	if quoted.From.Addr().Is4() {
		kinds = append(kinds, "other-router")
	}
	var out []attack.Attempt
	for _, kind := range kinds {
		x := by
		x.Frame, x.Port, x.Quoted = kind, 0, &quoted
		out = append(out, x)
	}
	return out
}

// FromOutside lists what a machine beside the cluster sends to addresses that mean something inside, by the node as next hop: with its
// own address, and with those that a network would believe.
func FromOutside(device, mac, nodeMAC string, from, to []netip.Addr) []attack.Attempt {
	var out []attack.Attempt
	for _, src := range from {
		for _, dst := range to {
			if src.Is4() != dst.Is4() {
				continue
			}
			for _, how := range [][]string{nil, {"tagged"}} {
				out = append(out, frame(device, mac, nodeMAC, src, dst, how...))
				echo := frame(device, mac, nodeMAC, src, dst, how...)
				echo.Frame = "echo"
				out = append(out, echo)
			}
			// A switch floods what is for nobody.
			out = append(out, frame(device, mac, broadcastMAC, src, dst))
		}
	}
	return out
}
