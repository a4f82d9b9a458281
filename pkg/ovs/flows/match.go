// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Flows are compared with what ovs-ofctl prints, so that matches have its order:
// conntrack state, protocol, registers, port, VLAN, Ethernet, IP, transport.

// anywhere is a source or destination that a match leaves open.
var anywhere netip.Prefix

// matchIP returns the match of packets between two prefixes of one IP family, of which
// one may be anywhere. field is a register or port ("": any).
func matchIP(field string, src, dst netip.Prefix) string {
	return matchTransport("", field, src, dst, "")
}

// matchTransport is matchIP for a transport protocol, "" for any. ports is the end of the
// match, such as tp_dst=80.
func matchTransport(protocol, field string, src, dst netip.Prefix, ports string) string {
	v6 := src.Addr().Is6() || dst.Addr().Is6()
	name, addr := "ip", "nw_"
	if v6 {
		name, addr = "ipv6", "ipv6_"
	}
	if protocol != "" {
		name = protocol
		if v6 {
			name += "6"
		}
	}
	match := join(name, field)
	if src != anywhere {
		match += "," + addr + "src=" + prefixText(src)
	}
	if dst != anywhere {
		match += "," + addr + "dst=" + prefixText(dst)
	}
	return join(match, ports)
}

func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.Masked().String()
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func inPort(port int) string { return fmt.Sprintf("in_port=%d", port) }

// join joins the parts of a match or actions that are not empty.
func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ",")
}

// outputs returns the actions that send to OpenFlow ports.
func outputs(ports []int) string {
	var list []string
	for _, p := range slices.Sorted(slices.Values(ports)) {
		list = append(list, fmt.Sprintf("output:%d", p))
	}
	return strings.Join(list, ",")
}

func setMAC(mac string) string { return "mod_dl_dst:" + mac }

func resubmit(table int) string { return fmt.Sprintf("resubmit(,%d)", table) }
