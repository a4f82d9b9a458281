// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// Server is a socket of the node that waits for peers. Those of tenants' host-network pods have their network's
// mark, and most are bound to its VRF.
type Server struct {
	Protocol string     // tcp, udp or sctp
	Addr     netip.Addr // 0.0.0.0: all IPv4 addresses; ::, all addresses, without IPv4 if V6Only
	V6Only   bool
	Port     uint16
}

// Serves reports whether the server gets what is sent to an address and port.
func (s Server) Serves(protocol string, at netip.Addr, port uint16) bool {
	all := s.Addr.IsUnspecified() && (s.Addr.Is4() == at.Is4() || s.Addr.Is6() && !s.V6Only)
	return s.Protocol == protocol && s.Port == port && (all || s.Addr == at)
}

// Servers lists the servers in the agent's network namespace, which is the node's, without tenants'.
func Servers() ([]Server, error) {
	var out []Server
	for _, p := range []struct {
		name   string
		number uint8
		waits  uint8
	}{{"tcp", unix.IPPROTO_TCP, stateListen}, {"udp", unix.IPPROTO_UDP, stateClosed}, {"sctp", unix.IPPROTO_SCTP, stateListen}} {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			err := diagSockets(family, p.number, 1<<p.waits, func(s diagSocket) {
				if s.state != p.waits || s.port == 0 || s.device != 0 || s.mark >= network.FirstPacketMark && s.mark <= network.LastPacketMark {
					return
				}
				addr := netip.AddrFrom16(s.source).Unmap()
				if family == unix.AF_INET {
					addr = netip.AddrFrom4([4]byte(s.source[:4]))
				}
				out = append(out, Server{Protocol: p.name, Addr: addr, V6Only: s.v6Only, Port: s.port})
			})
			if p.number == unix.IPPROTO_SCTP && errors.Is(err, unix.ENOENT) {
				continue // a kernel without SCTP
			}
			if err != nil {
				return nil, fmt.Errorf("list %s sockets of family %d: %w", p.name, family, err)
			}
		}
	}
	return out, nil
}
