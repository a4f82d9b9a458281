// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// set sets the options of How on the socket. If the kernel refuses one, the
// attempt continues, as a careless program would.
//
//	bindtodevice bindtoifindex unicastif stickypktinfo  choose Device for all traffic
//	multicastif multicastifaddr join                    choose Device for multicast
//	mark=N                                              SO_MARK
//	lsrr=ADDRESS                                        IPv4 loose source route
//	broadcast gso bindscope=ADDRESS
//	transparent                                         from Src and SrcPort, whoever has them
func (a Attempt) set(fd int, v6 bool) (problems []string) {
	fail := func(what string, err error) {
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", what, err))
		}
	}
	ifindex := 0
	if a.Device != "" {
		var err error
		ifindex, err = index(a.Device)
		fail("device", err)
	}
	for _, h := range a.How {
		name, value, _ := strings.Cut(h, "=")
		switch name {
		case "bindtodevice":
			fail(h, unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, a.Device))
		case "bindtoifindex":
			fail(h, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, ifindex))
		case "unicastif":
			n := int(int32(binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, uint32(ifindex)))))
			if v6 {
				fail(h, unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_UNICAST_IF, n))
			} else {
				fail(h, unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_UNICAST_IF, n))
			}
		case "stickypktinfo":
			fail(h, unix.SetsockoptString(fd, unix.SOL_IPV6, unix.IPV6_PKTINFO, string(binary.NativeEndian.AppendUint32(make([]byte, 16), uint32(ifindex)))))
		case "multicastif":
			if v6 {
				fail(h, unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_IF, ifindex))
			} else {
				fail(h, unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(ifindex)}))
			}
		case "multicastifaddr":
			addr, err := netip.ParseAddr(value)
			fail(h, err)
			if addr.Is4() {
				fail(h, unix.SetsockoptInet4Addr(fd, unix.SOL_IP, unix.IP_MULTICAST_IF, addr.As4()))
			}
		case "join":
			to, _ := a.dest()
			if v6 {
				fail(h, unix.SetsockoptIPv6Mreq(fd, unix.SOL_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: to.As16(), Interface: uint32(ifindex)}))
			} else {
				fail(h, unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: to.As4(), Ifindex: int32(ifindex)}))
			}
		case "mark":
			n, _, err := a.number("mark")
			fail(h, err)
			fail(h, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(n)))
		case "lsrr":
			hop, err := netip.ParseAddr(value)
			fail(h, err)
			if hop.Is4() {
				b := hop.As4()
				fail(h, unix.SetsockoptString(fd, unix.SOL_IP, unix.IP_OPTIONS, string([]byte{1, 131, 7, 4, b[0], b[1], b[2], b[3]})))
			}
		case "transparent":
			level, option := unix.SOL_IP, unix.IP_TRANSPARENT
			if v6 {
				level, option = unix.SOL_IPV6, unix.IPV6_FREEBIND // needs no capability
			}
			fail(h, unix.SetsockoptInt(fd, level, option, 1))
			fail(h, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
			from, err := netip.ParseAddr(a.Src)
			fail(h, err)
			sa, err := sockaddr(from, a.SrcPort)
			fail(h, err)
			if err == nil {
				fail(h, unix.Bind(fd, sa))
			}
		case "broadcast":
			fail(h, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
		case "gso":
			fail(h, unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, 512))
		case "bindscope":
			addr, err := netip.ParseAddr(value)
			fail(h, err)
			sa, err := sockaddr(addr, 0)
			fail(h, err)
			if err == nil {
				fail(h, unix.Bind(fd, sa))
			}
		}
	}
	return problems
}

// control returns the control messages of the options in How:
//
//	cmsg-pktinfo cmsg-mark=N
func (a Attempt) control(v6 bool) ([]byte, error) {
	var out []byte
	if _, ok := a.option("cmsg-pktinfo"); ok {
		i, err := index(a.Device)
		if err != nil {
			return nil, err
		}
		if v6 {
			info := unix.Inet6Pktinfo{Ifindex: uint32(i)}
			if _, mapped := a.option("mapped"); mapped {
				info.Addr = netip.IPv4Unspecified().As16()
			}
			out = append(out, unix.PktInfo6(&info)...)
		} else {
			out = append(out, unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(i)})...)
		}
	}
	mark, ok, err := a.number("cmsg-mark")
	if err != nil {
		return nil, err
	}
	if ok {
		b := make([]byte, unix.CmsgSpace(4))
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		h.Level, h.Type = unix.SOL_SOCKET, unix.SO_MARK
		h.SetLen(unix.CmsgLen(4))
		binary.NativeEndian.PutUint32(b[unix.CmsgLen(0):], mark)
		out = append(out, b...)
	}
	return out, nil
}
