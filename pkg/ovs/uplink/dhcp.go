// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Ports of DHCP clients.
const (
	clientPort4 = 68
	clientPort6 = 546
)

// dhcpClient describes a DHCP client that uses the interface, or returns "". Where the kernel
// cannot list sockets it finds none: addresses with a lifetime are refused anyway.
func dhcpClient(index int, c Config) string {
	var sockets []*netlink.Socket
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		s, err := netlink.SocketDiagUDP(family)
		if err == nil {
			sockets = append(sockets, s...)
		}
	}
	for _, s := range sockets {
		local, _ := netip.AddrFromSlice(s.ID.Source)
		if s.ID.SourcePort != clientPort4 && s.ID.SourcePort != clientPort6 {
			continue
		}
		if isClientOf(index, c, int(s.ID.Interface), local.Unmap(), packetSocket(index)) {
			return fmt.Sprintf("a DHCP client has UDP port %d open there", s.ID.SourcePort)
		}
	}
	return ""
}

// isClientOf reports whether a DHCP client's socket is one for the interface: it is bound to it or to
// one of its addresses, or to nothing while a packet socket is bound to the interface, as dhclient's are.
func isClientOf(index int, c Config, device int, local netip.Addr, packet bool) bool {
	if device != 0 {
		return device == index
	}
	if local.IsUnspecified() {
		return packet
	}
	for _, a := range c.Addresses {
		if a.Prefix.Addr() == local {
			return true
		}
	}
	return false
}

// packetSocket reports whether a packet socket is bound to the interface.
func packetSocket(index int) bool {
	f, err := os.Open("/proc/thread-self/net/packet")
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && fields[4] == fmt.Sprint(index) {
			return true
		}
	}
	return false
}
