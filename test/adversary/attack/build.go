// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// sum is the Internet checksum's sum (RFC 1071).
func sum(b []byte, start uint32) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		start += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		start += uint32(b[0]) << 8
	}
	return start
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// fillChecksum writes the checksum of b and a pseudo header's sum at offset at.
func fillChecksum(b []byte, at int, pseudo uint32) {
	binary.BigEndian.PutUint16(b[at:], 0)
	binary.BigEndian.PutUint16(b[at:], fold(sum(b, pseudo)))
}

func pseudo(src, dst netip.Addr, proto uint8, length int) uint32 {
	return sum(dst.AsSlice(), sum(src.AsSlice(), uint32(proto)+uint32(length)))
}

func echoRequest(fam int, id uint16) []byte {
	b := []byte{8, 0, 0, 0, 0, 0, 0, 1}
	if fam == unix.AF_INET6 {
		b[0] = 128
	}
	binary.BigEndian.PutUint16(b[4:], id)
	return b
}

// ip prepends an IP header to an upper-layer packet.
func ip(src, dst netip.Addr, proto, hops uint8, upper []byte) []byte {
	if dst.Is4() {
		h := make([]byte, 20, 20+len(upper))
		h[0], h[8], h[9] = 0x45, hops, proto
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(upper)))
		copy(h[12:], src.AsSlice())
		copy(h[16:], dst.AsSlice())
		fillChecksum(h, 10, 0)
		return append(h, upper...)
	}
	h := make([]byte, 40, 40+len(upper))
	h[0], h[6], h[7] = 0x60, proto, hops
	binary.BigEndian.PutUint16(h[4:], uint16(len(upper)))
	copy(h[8:], src.AsSlice())
	copy(h[24:], dst.AsSlice())
	return append(h, upper...)
}

func ipUDP(src, dst netip.Addr, sport, dport uint16, payload []byte) []byte {
	u := binary.BigEndian.AppendUint16(nil, sport)
	u = binary.BigEndian.AppendUint16(u, dport)
	u = binary.BigEndian.AppendUint16(u, uint16(8+len(payload)))
	u = append(append(u, 0, 0), payload...)
	fillChecksum(u, 6, pseudo(src, dst, unix.IPPROTO_UDP, len(u)))
	return ip(src, dst, unix.IPPROTO_UDP, 64, u)
}

func ipICMP6(src, dst netip.Addr, hops uint8, body []byte) []byte {
	fillChecksum(body, 2, pseudo(src, dst, unix.IPPROTO_ICMPV6, len(body)))
	return ip(src, dst, unix.IPPROTO_ICMPV6, hops, body)
}

// fragments splits an IP packet into two fragments, after the UDP header.
func fragments(p []byte, id uint32) [][]byte {
	const first = 8
	if p[0]>>4 == 4 {
		body := p[20:]
		cut := func(part []byte, offset int, more bool) []byte {
			h := append([]byte{}, p[:20]...)
			binary.BigEndian.PutUint16(h[2:], uint16(20+len(part)))
			binary.BigEndian.PutUint16(h[4:], uint16(id))
			frag := uint16(offset / 8)
			if more {
				frag |= 0x2000
			}
			binary.BigEndian.PutUint16(h[6:], frag)
			fillChecksum(h, 10, 0)
			return append(h, part...)
		}
		return [][]byte{cut(body[:first], 0, true), cut(body[first:], first, false)}
	}
	body := p[40:]
	cut := func(part []byte, offset int, more bool) []byte {
		h := append([]byte{}, p[:40]...)
		next := h[6]
		h[6] = 44
		binary.BigEndian.PutUint16(h[4:], uint16(8+len(part)))
		f := []byte{next, 0, 0, 0}
		word := uint16(offset)
		if more {
			word |= 1
		}
		binary.BigEndian.PutUint16(f[2:], word)
		return append(append(append(h, f...), binary.BigEndian.AppendUint32(nil, id)...), part...)
	}
	return [][]byte{cut(body[:first], 0, true), cut(body[first:], first, false)}
}

// etherType returns the protocol of what follows a link header: an IP or ARP packet,
// whose first byte is of its version or of the hardware type.
func etherType(packet []byte) uint16 {
	switch {
	case len(packet) > 0 && packet[0]>>4 == 6:
		return unix.ETH_P_IPV6
	case len(packet) > 0 && packet[0]>>4 == 0:
		return unix.ETH_P_ARP
	}
	return unix.ETH_P_IP
}

// announcement returns an ARP announcement (RFC 5227).
func announcement(mac net.HardwareAddr, addr netip.Addr) []byte {
	b := append([]byte{0, 1, 0x08, 0, 6, 4, 0, 1}, mac...)
	b = append(append(b, addr.AsSlice()...), make([]byte, 6)...)
	return append(b, addr.AsSlice()...)
}

// ethernet prepends a link header to a packet, with the tags of VLANs. VLAN 0 is a priority tag.
func ethernet(src, dst net.HardwareAddr, vlans []uint16, packet []byte) []byte {
	f := append(append([]byte{}, dst...), src...)
	for _, vlan := range vlans {
		f = binary.BigEndian.AppendUint16(append(f, 0x81, 0), vlan)
	}
	return append(binary.BigEndian.AppendUint16(f, etherType(packet)), packet...)
}

// packet returns the Geneve packet with the attempt's token in an inner
// datagram. OVN's option holds the logical ports.
func (g Geneve) packet(a Attempt) ([]byte, error) {
	src, err := netip.ParseAddr(g.InnerSrc)
	if err != nil {
		return nil, err
	}
	dst, err := netip.ParseAddr(g.InnerDst)
	if err != nil {
		return nil, err
	}
	from, err := net.ParseMAC(g.SrcMAC)
	if err != nil {
		return nil, err
	}
	to, err := net.ParseMAC(g.DstMAC)
	if err != nil {
		return nil, err
	}
	h := []byte{2, 0, 0x65, 0x58, byte(g.VNI >> 16), byte(g.VNI >> 8), byte(g.VNI), 0}
	h = append(h, 0x01, 0x02, 0x80, 1) // class OVN, type 0x80, one word
	h = binary.BigEndian.AppendUint16(h, g.In&0x7fff)
	h = binary.BigEndian.AppendUint16(h, g.Out)
	return append(h, ethernet(from, to, nil, ipUDP(src, dst, a.SourcePort(), a.Port, a.Token()))...), nil
}

// icmpError returns an ICMP error that quotes a datagram: that nobody listens there, that it was too long, or that another
// router is nearer. The token is the datagram's content.
func (a Attempt) icmpError(src, dst netip.Addr) ([]byte, error) {
	if a.Quoted == nil || a.Quoted.From.Addr().Is4() != dst.Is4() || a.Quoted.To.Addr().Is4() != dst.Is4() {
		return nil, fmt.Errorf("ICMP error to %s: want a quoted datagram of the same IP family, not %+v", dst, a.Quoted)
	}
	quoted := ipUDP(a.Quoted.From.Addr(), a.Quoted.To.Addr(), a.Quoted.From.Port(), a.Quoted.To.Port(), a.Token())
	if dst.Is4() {
		head := map[string][]byte{"unreachable": {3, 3, 0, 0, 0, 0, 0, 0}, "too-long": {3, 4, 0, 0, 0, 0, 0x03, 0xe8}, "other-router": append([]byte{5, 1, 0, 0}, src.AsSlice()...)}[a.Frame]
		b := append(head, quoted...)
		fillChecksum(b, 2, 0)
		return ip(src, dst, unix.IPPROTO_ICMP, 64, b), nil
	}
	head := map[string][]byte{"unreachable": {1, 4, 0, 0, 0, 0, 0, 0}, "too-long": {2, 0, 0, 0, 0, 0, 0x05, 0x14}}[a.Frame]
	if head == nil {
		return nil, fmt.Errorf("%s has no form in IPv6: use redirect", a.Frame)
	}
	return ipICMP6(src, dst, 255, append(head, quoted...)), nil
}

// packet returns the IP packet of a frame: what follows the link header.
func (a Attempt) packet() ([]byte, error) {
	dst, err := netip.ParseAddr(a.To)
	if err != nil {
		return nil, fmt.Errorf("address: %w", err)
	}
	dst = dst.WithZone("")
	src, err := netip.ParseAddr(a.Src)
	if err != nil {
		return nil, fmt.Errorf("source address: %w", err)
	}
	var mac net.HardwareAddr
	if a.Socket != "hdrincl" || a.SrcMAC != "" { // a raw socket's packet has none, unless an option contains it
		if mac, err = net.ParseMAC(a.SrcMAC); err != nil {
			return nil, fmt.Errorf("source hardware address: %w", err)
		}
	}
	// An option of a private kind carries the token through ICMPv6.
	token := append([]byte{253, 2}, append(a.Token(), 0)...)
	lladdr := append([]byte{1, 1}, mac...)
	switch a.Frame {
	case "", "udp":
		payload := a.Token()
		if a.Geneve != nil {
			if payload, err = a.Geneve.packet(a); err != nil {
				return nil, err
			}
		}
		return ipUDP(src, dst, a.udpSource(), a.Port, payload), nil
	case "echo":
		if dst.Is4() {
			b := append(echoRequest(unix.AF_INET, uint16(a.ID)), a.Token()...)
			fillChecksum(b, 2, 0)
			return ip(src, dst, unix.IPPROTO_ICMP, 64, b), nil
		}
		return ipICMP6(src, dst, 64, append(echoRequest(unix.AF_INET6, uint16(a.ID)), a.Token()...)), nil
	case "unreachable", "too-long", "other-router":
		return a.icmpError(src, dst)
	case "arp-announcement": // the token follows the packet, as padding does
		if !src.Is4() {
			return nil, fmt.Errorf("ARP announcement of %s, which is no IPv4 address", src)
		}
		return append(announcement(mac, src), a.Token()...), nil
	case "router-advertisement":
		b := append([]byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}, lladdr...)
		return ipICMP6(src, dst, 255, append(b, token...)), nil
	case "router-advertisement-hidden": // behind a destination options header, which lax filters do not skip
		b := append([]byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}, token...)
		fillChecksum(b, 2, pseudo(src, dst, unix.IPPROTO_ICMPV6, len(b)))
		return ip(src, dst, 60, 255, append([]byte{unix.IPPROTO_ICMPV6, 0, 1, 4, 0, 0, 0, 0}, b...)), nil
	case "redirect":
		b := make([]byte, 40)
		b[0] = 137
		copy(b[8:], src.AsSlice())
		copy(b[24:], dst.AsSlice())
		return ipICMP6(src, dst, 255, append(b, token...)), nil
	case "router-solicitation":
		return ipICMP6(src, dst, 255, append([]byte{133, 0, 0, 0, 0, 0, 0, 0}, token...)), nil
	case "neighbour-solicitation", "neighbour-advertisement":
		b := make([]byte, 8, 24)
		b[0] = 135
		if a.Frame == "neighbour-advertisement" {
			b[0], b[4] = 136, 0x20
		}
		target := dst
		if v, ok := a.option("target"); ok {
			if target, err = netip.ParseAddr(v); err != nil {
				return nil, err
			}
		}
		return ipICMP6(src, dst, 255, append(append(b, target.AsSlice()...), token...)), nil
	case "listener-report": // MLD has no room for an option: the group carries the id
		b := make([]byte, 24)
		b[0] = 131
		copy(b[8:], append([]byte{0xff, 2, 0}, a.Token()...))
		return ipICMP6(src, dst, 1, b), nil
	case "dhcp-answer":
		if dst.Is4() {
			b := make([]byte, 240)
			b[0], b[1], b[2] = 2, 1, 6
			copy(b[236:], []byte{0x63, 0x82, 0x53, 0x63})
			b = append(append(b, 53, 1, 2, 224, 13), a.Token()...)
			return ipUDP(src, dst, cmp.Or(a.SrcPort, 67), 68, append(b, 255)), nil
		}
		return ipUDP(src, dst, cmp.Or(a.SrcPort, 547), 546, append([]byte{2, 0, 0, 1}, a.Token()...)), nil
	}
	return nil, fmt.Errorf("unknown frame %q", a.Frame)
}
