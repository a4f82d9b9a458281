// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// defaultRoute is a default route of the main table.
type defaultRoute struct {
	metric     uint32
	preference int8 // of the router that advertised it, among routes of one metric (RFC 4191); 0: medium, or IPv4
	link       int  // of the first next hop
}

// Defaults implements Target. The links of IPv4's routes come first.
func (n *Node) Defaults(context.Context) ([]string, error) {
	var out []string
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		var routes []defaultRoute
		err := n.dump(unix.RTM_GETROUTE, unix.RTM_NEWROUTE, func() { routes = nil }, func(m []byte) {
			if r, ok := parseDefault(m, family); ok {
				routes = append(routes, r)
			}
		}, &nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Table: unix.RT_TABLE_MAIN}})
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("list default routes: %w", err)
		}
		sortDefaults(routes)
		for _, r := range routes {
			if l, err := n.h.LinkByIndex(r.link); err == nil {
				out = append(out, l.Attrs().Name)
			}
		}
	}
	return out, nil
}

// sortDefaults sorts routes as the kernel prefers them: a low metric, then the router's preference. Of equal ones it uses the first.
func sortDefaults(routes []defaultRoute) {
	slices.SortStableFunc(routes, func(a, b defaultRoute) int {
		return cmp.Or(cmp.Compare(a.metric, b.metric), cmp.Compare(b.preference, a.preference))
	})
}

// parseDefault parses a route's message; ok is false for other routes than default routes of the main table.
func parseDefault(m []byte, family uint8) (r defaultRoute, ok bool) {
	h, ok := parseHeader(m)
	if !ok || h.family != family || h.dstLen != 0 || h.kind != unix.RTN_UNICAST || h.table != unix.RT_TABLE_MAIN {
		return r, false
	}
	for _, at := range attributes(m[unix.SizeofRtMsg:]) {
		switch at.kind {
		case unix.RTA_PRIORITY:
			r.metric = at.uint32()
		case unix.RTA_OIF:
			r.link = int(at.uint32())
		case unix.RTA_MULTIPATH:
			eachHop(at.data, func(hop []byte) {
				if r.link == 0 {
					r.link = int(native.Uint32(hop[4:]))
				}
			})
		case unix.RTA_PREF:
			if len(at.data) > 0 && at.data[0] != reservedPreference {
				r.preference = int8(at.data[0]<<6) >> 6 // a signed number of two bits
			}
		}
	}
	return r, true
}

// reservedPreference counts as medium (RFC 4191, section 2.1).
const reservedPreference = 2
