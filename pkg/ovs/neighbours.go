// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
)

// Neighbours finds the MAC addresses of hosts on the link of a bridge.
type Neighbours interface {
	// MACs returns the bridge's link and the MAC addresses that are known there, and asks for the others.
	MACs(bridge string, hosts []netip.Addr) (link int, macs map[netip.Addr]string, err error)
	// Watch calls changed for each MAC address that is learnt on any link, until ctx ends.
	Watch(ctx context.Context, changed func(link int, host netip.Addr, mac string))
}

// KernelNeighbours are the kernel's neighbour tables.
type KernelNeighbours struct{}

// MACs implements Neighbours.
func (KernelNeighbours) MACs(bridge string, hosts []netip.Addr) (index int, macs map[netip.Addr]string, err error) {
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return 0, nil, fmt.Errorf("external bridge %s: %w", bridge, err)
	}
	index = link.Attrs().Index
	entries, err := netdump.List(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, netlink.FAMILY_ALL) })
	if err != nil {
		return index, nil, fmt.Errorf("list neighbours on %s: %w", bridge, err)
	}
	known := map[netip.Addr]string{}
	for _, e := range entries {
		if host, mac, ok := neighbour(e); ok {
			known[host] = mac
		}
	}
	macs = map[netip.Addr]string{}
	var errs []error
	for _, host := range hosts {
		if mac, ok := known[host]; ok {
			macs[host] = mac
			continue
		}
		// The kernel asks as for a packet of its own (neighbour flag NTF_USE).
		err := netlink.NeighSet(&netlink.Neigh{LinkIndex: index, Family: family(host), IP: host.AsSlice(), Flags: netlink.NTF_USE})
		if err != nil {
			errs = append(errs, fmt.Errorf("ask for the MAC address of %s on %s: %w", host, bridge, err))
		}
	}
	return index, macs, errors.Join(errs...)
}

// Watch implements Neighbours. It has subscribed when it returns; if events are lost later, the
// periodic read of MACs finds what they said.
func (KernelNeighbours) Watch(ctx context.Context, changed func(link int, host netip.Addr, mac string)) {
	s, err := subscribeNeighbours()
	go func() {
		for ctx.Err() == nil {
			if err == nil {
				s.receive(ctx, changed)
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
				s, err = subscribeNeighbours()
			}
		}
	}()
}

// subscription is a subscription to the events of the neighbour tables.
type subscription struct {
	updates chan netlink.NeighUpdate
	failed  chan struct{}
	done    chan struct{}
}

func subscribeNeighbours() (subscription, error) {
	s := subscription{updates: make(chan netlink.NeighUpdate), failed: make(chan struct{}, 1), done: make(chan struct{})}
	return s, netlink.NeighSubscribeWithOptions(s.updates, s.done, netlink.NeighSubscribeOptions{ErrorCallback: func(error) {
		select {
		case s.failed <- struct{}{}:
		default:
		}
	}})
}

// receive handles events until the subscription fails or ctx ends, and ends the subscription.
func (s subscription) receive(ctx context.Context, changed func(link int, host netip.Addr, mac string)) {
	defer func() {
		close(s.done)
		for range s.updates { // until the subscription has ended
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.failed:
			return
		case u, open := <-s.updates:
			if !open {
				return
			}
			if host, mac, ok := neighbour(u.Neigh); ok && u.Type == unix.RTM_NEWNEIGH {
				changed(u.LinkIndex, host, mac)
			}
		}
	}
}

// neighbour returns an entry's addresses; ok is false for an entry without a usable MAC address, and
// for those of the kernel's bridges.
func neighbour(n netlink.Neigh) (host netip.Addr, mac string, ok bool) {
	const unresolved = netlink.NUD_INCOMPLETE | netlink.NUD_FAILED | netlink.NUD_NOARP
	host, ok = netip.AddrFromSlice(n.IP)
	if !ok || n.Family == unix.AF_BRIDGE || n.State&unresolved != 0 || len(n.HardwareAddr) != 6 || n.HardwareAddr[0]&1 != 0 {
		return host, "", false
	}
	mac = n.HardwareAddr.String()
	return host.Unmap(), mac, mac != "00:00:00:00:00:00"
}

func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}
