// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
)

// Link is an interface of the host, ours or not.
type Link struct {
	Index int
	Name  string
	Type  string // the kernel's: veth, vrf, openvswitch, device, ...
	Table int    // of our VRF device; otherwise 0
	// Master is the index of the VRF, bridge or bond that the interface belongs to; 0: none.
	Master int
	// PeerInOtherNetns: the peer is in another network namespace.
	PeerInOtherNetns bool
}

// Links lists all interfaces of the host, sorted by index.
func (k *Kernel) Links(ctx context.Context) ([]Link, error) {
	list, err := netdump.List(k.h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	out := make([]Link, len(list))
	for i, l := range list {
		out[i] = linkOf(l)
	}
	slices.SortFunc(out, func(a, b Link) int { return a.Index - b.Index })
	return out, ctx.Err()
}

// linksIn lists the links in a VRF or another master. The kernel filters them, because the library would dump all links of the
// node for each network that is deleted. The cache may be behind.
func (k *Kernel) linksIn(master int) ([]netlink.Link, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.Sockets = k.raw
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))))
	return netdump.List(func() ([]netlink.Link, error) {
		msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if err != nil {
			return nil, err
		}
		out := make([]netlink.Link, len(msgs))
		for i, m := range msgs {
			if out[i], err = netlink.LinkDeserialize(nil, m); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

func linkOf(l netlink.Link) Link {
	a := l.Attrs()
	out := Link{Index: a.Index, Name: a.Name, Type: l.Type(), Master: a.MasterIndex, PeerInOtherNetns: a.NetNsID >= 0}
	if v, ok := l.(*netlink.Vrf); ok && ours(l) {
		out.Table = int(v.Table)
	}
	return out
}

// guard calls guardLink for a link that is about to be set up.
func (k *Kernel) guard(l netlink.Link) error {
	if k.guardLink == nil {
		return nil
	}
	if err := k.guardLink(linkOf(l)); err != nil {
		return fmt.Errorf("the link stays down: cannot guard it: %w", err)
	}
	return nil
}
