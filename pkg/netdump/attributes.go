// SPDX-License-Identifier: Apache-2.0

package netdump

import (
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
)

// Attributes parses the attributes of a netlink message. nl.ParseRouteAttr panics if the last one lacks its padding.
func Attributes(b []byte) ([]syscall.NetlinkRouteAttr, error) {
	if missing := -len(b) & (syscall.NLMSG_ALIGNTO - 1); missing > 0 {
		b = append(slices.Clip(b), make([]byte, missing)...)
	}
	return nl.ParseRouteAttr(b)
}
