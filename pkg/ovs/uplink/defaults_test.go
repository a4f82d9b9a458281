// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Default routes are used as the kernel prefers them: by metric, then by the preference in the router's advertisement.
func TestSortDefaults(t *testing.T) {
	const high, medium, reserved, low = 1, 0, 2, 3
	message := func(family, table, kind, dstLen uint8, link, metric uint32, preference uint8) []byte {
		h := routeHeader{family: family, dstLen: dstLen, table: table, kind: kind, protocol: unix.RTPROT_RA}
		m := appendAttribute(h.bytes(), unix.RTA_OIF, native.AppendUint32(nil, link))
		m = appendAttribute(m, unix.RTA_PRIORITY, native.AppendUint32(nil, metric))
		return appendAttribute(m, unix.RTA_PREF, []byte{preference})
	}
	advertised := func(link, metric uint32, preference uint8) []byte {
		return message(unix.AF_INET6, unix.RT_TABLE_MAIN, unix.RTN_UNICAST, 0, link, metric, preference)
	}
	hops := routeHeader{family: unix.AF_INET6, table: unix.RT_TABLE_MAIN, kind: unix.RTN_UNICAST}
	hop := func(link uint32) []byte {
		return append([]byte{unix.SizeofRtNexthop, 0, 0, 0}, native.AppendUint32(nil, link)...)
	}
	severalHops := appendAttribute(appendAttribute(hops.bytes(), unix.RTA_PRIORITY, native.AppendUint32(nil, 2000)), unix.RTA_MULTIPATH, append(hop(8), hop(9)...))
	for _, c := range []struct {
		name     string
		messages [][]byte
		want     []int
	}{
		{"by preference", [][]byte{advertised(2, 1024, low), advertised(3, 1024, medium), advertised(4, 1024, high)}, []int{4, 3, 2}},
		{"the metric decides first", [][]byte{advertised(2, 1024, high), advertised(3, 512, low)}, []int{3, 2}},
		{"equal ones in the kernel's order", [][]byte{advertised(5, 1024, medium), advertised(3, 1024, reserved), advertised(4, 1024, low)}, []int{5, 3, 4}},
		{"several next hops", [][]byte{severalHops, advertised(2, 1024, low)}, []int{2, 8}},
		{"other routes", [][]byte{
			message(unix.AF_INET6, unix.RT_TABLE_MAIN, unix.RTN_UNICAST, 64, 2, 1, high), message(unix.AF_INET6, 100, unix.RTN_UNICAST, 0, 3, 1, high),
			message(unix.AF_INET6, unix.RT_TABLE_MAIN, unix.RTN_UNREACHABLE, 0, 4, 1, high), message(unix.AF_INET, unix.RT_TABLE_MAIN, unix.RTN_UNICAST, 0, 5, 1, high),
			advertised(6, 1024, low), {1, 2},
		}, []int{6}},
	} {
		var routes []defaultRoute
		for _, m := range c.messages {
			if r, ok := parseDefault(m, unix.AF_INET6); ok {
				routes = append(routes, r)
			}
		}
		sortDefaults(routes)
		var got []int
		for _, r := range routes {
			got = append(got, r.link)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: links %v, want %v", c.name, got, c.want)
		}
	}
}
