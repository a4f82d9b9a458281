// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// Link is an interface of the host, whoever made it.
type Link struct {
	Index int
	Name  string
	Type  string // as the kernel names it: veth, vrf, openvswitch, device, ...
	Table int    // of a VRF device of ours; 0: none
	// Elsewhere tells that its other end is in another network namespace.
	Elsewhere bool
}

// Links are all interfaces of the host, by index.
func (k *Kernel) Links(ctx context.Context) ([]Link, error) {
	var list []netlink.Link
	err := undisturbed(func() (err error) {
		list, err = k.h.LinkList()
		return err
	})
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

func linkOf(l netlink.Link) Link {
	a := l.Attrs()
	out := Link{Index: a.Index, Name: a.Name, Type: l.Type(), Elsewhere: a.NetNsID >= 0}
	if v, ok := l.(*netlink.Vrf); ok && ours(l) {
		out.Table = int(v.Table)
	}
	return out
}

// guard has a link guarded that is about to carry traffic.
func (k *Kernel) guard(l netlink.Link) error {
	if k.Guard == nil {
		return nil
	}
	if err := k.Guard(linkOf(l)); err != nil {
		return fmt.Errorf("it stays down, as it cannot be guarded: %w", err)
	}
	return nil
}
