// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
	"bulkhead/pkg/network"
)

// Change names what to reconcile.
type Change struct {
	ID      int  // the network with this id, if none of the following is set
	Bridge  bool // the external bridge, its addresses or the node's default routes
	Flushed bool // with Bridge: the kernel may have deleted routes of ours through the bridge
	Links   bool // an interface that is not ours was created or deleted; ID is the network whose table it has, or 0
	Foreign bool // a policy rule that is not ours was added or deleted
	All     bool // everything: events were lost
}

// TableRange maps tables to network ids.
type TableRange struct {
	TableBase int // Plan.VRFTableBase
	MaxID     int
}

func subscribe() (*nl.NetlinkSocket, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink events: %w", err)
	}
	// Large enough for a burst of a few hundred networks. Without the capability
	// for it the default size remains; Watch detects lost events.
	_ = s.SetReceiveBufferSize(8<<20, true)
	return s, nil
}

// Watch calls notify for changes until ctx ends. One watch covers all networks
// and the routes of all tables. The kernel sends no event for IPv4 routes that
// it deletes when a link goes down: the link's event covers them.
func (k *Kernel) Watch(ctx context.Context, tables TableRange, notify func(Change)) error {
	stop := context.AfterFunc(ctx, k.events.Close)
	defer stop()
	for {
		msgs, from, err := k.events.Receive()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, unix.ENOBUFS) {
			if err := k.resynchronize(ctx); err != nil {
				return err
			}
			notify(Change{All: true})
			continue
		}
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive netlink events: %w", err)
		}
		if from.Pid != nl.PidKernel {
			continue
		}
		var seen []Change
		for _, m := range msgs {
			if c, ok := k.event(m, tables); ok && !slices.Contains(seen, c) {
				seen = append(seen, c)
				notify(c)
			}
		}
	}
}

// resynchronize fills the cache again after events were lost, which happens while very much changes: then dumps are interrupted, too.
func (k *Kernel) resynchronize(ctx context.Context) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		err := errors.Join(k.drain(ctx), k.fillCache())
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// drain reads all events that wait in the socket. Until the socket is empty, the
// kernel drops new events without another ENOBUFS, so that a list read earlier
// would miss them.
func (k *Kernel) drain(ctx context.Context) error {
	wait := unix.NsecToTimeval(int64(10 * time.Millisecond))
	if err := k.events.SetReceiveTimeout(&wait); err != nil {
		return fmt.Errorf("drain netlink events: %w", err)
	}
	for ctx.Err() == nil {
		_, _, err := k.events.Receive()
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("drain netlink events: %w", err)
		}
	}
	return k.events.SetReceiveTimeout(&unix.Timeval{})
}

// event updates the cache and returns the change that a message means, if any.
func (k *Kernel) event(m syscall.NetlinkMessage, tables TableRange) (Change, bool) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		hdr := unix.NlMsghdr{Len: m.Header.Len, Type: m.Header.Type, Flags: m.Header.Flags, Seq: m.Header.Seq, Pid: m.Header.Pid}
		l, err := netlink.LinkDeserialize(&hdr, m.Data)
		if err != nil {
			return Change{}, false
		}
		return k.linkEvent(l, m.Header.Type == unix.RTM_DELLINK, tables)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		_, index, ok := parseAddress(m.Data)
		if !ok {
			return Change{}, false
		}
		k.mu.Lock()
		name := k.cache.links[index]
		k.mu.Unlock()
		c, ok := k.changeOfLink(name, tables)
		c.Flushed = c.Bridge && m.Header.Type == unix.RTM_DELADDR
		return c, ok
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		table, protocol, link, dflt := parseRoute(m.Data)
		if table == MainTable && dflt && protocol != Protocol {
			return Change{Bridge: true}, true
		}
		if protocol != Protocol || m.Header.Type == unix.RTM_NEWROUTE {
			return Change{}, false // a new route of ours: the agent added it
		}
		if isShared(table) {
			k.mu.Lock()
			name := k.cache.links[link]
			k.mu.Unlock()
			return k.changeOfLink(name, tables)
		}
		return changeOfTable(table, tables)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		parsed, isOurs := parseRule(m.Data)
		if !isOurs {
			return Change{Foreign: true}, true
		}
		r := parsed.Rule
		k.mu.Lock()
		defer k.mu.Unlock()
		if m.Header.Type == unix.RTM_NEWRULE {
			k.cache.addRule(r)
			return Change{}, false
		}
		k.cache.delRule(r)
		if r.isBranch() {
			return Change{All: true}, k.cache.leaves[r] > 0
		}
		return changeOfTable(r.owner(), tables)
	}
	return Change{}, false
}

func (k *Kernel) linkEvent(l netlink.Link, deleted bool, tables TableRange) (Change, bool) {
	a := l.Attrs()
	k.mu.Lock()
	defer k.mu.Unlock()
	master, seen := k.cache.all[a.Index]
	device, known := k.cache.devices[a.Index]
	if deleted {
		delete(k.cache.all, a.Index)
		delete(k.cache.links, a.Index)
	} else {
		k.cache.all[a.Index] = a.MasterIndex
		if a.Name == k.bridge || strings.HasPrefix(a.Name, network.ManagementPrefix) {
			k.cache.links[a.Index] = a.Name
		}
	}
	v, isVRF := l.(*netlink.Vrf)
	isOurs := isVRF && ours(l)
	other, isOther := k.cache.foreign[a.Index]
	delete(k.cache.foreign, a.Index)
	if isVRF && !isOurs && !deleted {
		other, isOther = cachedDevice{a.Name, int(v.Table)}, true
		k.cache.foreign[a.Index] = other
	}
	switch {
	case known && (deleted || !isOurs):
		k.cache.delDevice(a.Index)
		return changeOfTable(device.table, tables)
	case isOurs && deleted: // delDevice has removed it from the cache
		return changeOfTable(int(v.Table), tables)
	case isOurs:
		k.cache.setDevice(a.Index, a.Name, int(v.Table))
		return changeOfTable(int(v.Table), tables)
	}
	if c, ok := k.changeOfLink(a.Name, tables); ok {
		if up := !deleted && a.RawFlags&unix.IFF_UP != 0; c.Bridge && up != k.cache.bridgeUp {
			k.cache.bridgeUp, c.Flushed = up, true
		}
		return c, true
	}
	c := Change{Links: true}
	if isOther {
		if taken, ok := changeOfTable(other.table, tables); ok {
			c.ID = taken.ID
		}
	}
	return c, seen == deleted || !deleted && master != a.MasterIndex
}

func changeOfTable(table int, tables TableRange) (Change, bool) {
	if table == MainTable {
		return Change{}, true // the cluster default network, id 0
	}
	id := table - tables.TableBase
	return Change{ID: id}, id >= 1 && id <= tables.MaxID
}

func (k *Kernel) changeOfLink(name string, tables TableRange) (Change, bool) {
	if name == "" {
		return Change{}, false
	}
	if name == k.bridge {
		return Change{Bridge: true}, true
	}
	id, ok := network.ManagementPortID(name)
	return Change{ID: id}, ok && id <= tables.MaxID
}

// parseAddress parses an address message. ok is false for link-local addresses,
// which the agent does not manage.
func parseAddress(m []byte) (addr netip.Prefix, index int, ok bool) {
	if len(m) < unix.SizeofIfAddrmsg {
		return addr, 0, false
	}
	msg := nl.DeserializeIfAddrmsg(m)
	attrs, err := netdump.Attributes(m[msg.Len():])
	if err != nil {
		return addr, 0, false
	}
	var a netip.Addr
	for _, at := range attrs {
		switch at.Attr.Type {
		case unix.IFA_LOCAL:
			a, _ = netip.AddrFromSlice(at.Value)
		case unix.IFA_ADDRESS:
			if !a.IsValid() {
				a, _ = netip.AddrFromSlice(at.Value)
			}
		}
	}
	if !a.IsValid() || a.Is6() && a.IsLinkLocalUnicast() {
		return addr, 0, false
	}
	return netip.PrefixFrom(a, int(msg.Prefixlen)), int(msg.Index), true
}

// parseRoute parses the attributes that event filters by.
func parseRoute(m []byte) (table, protocol, link int, isDefault bool) {
	if len(m) < unix.SizeofRtMsg {
		return 0, 0, 0, false
	}
	msg := nl.DeserializeRtMsg(m)
	attrs, err := netdump.Attributes(m[msg.Len():])
	if err != nil {
		return 0, 0, 0, false
	}
	table = int(msg.Table)
	for _, at := range attrs {
		switch {
		case len(at.Value) < 4:
		case at.Attr.Type == unix.RTA_TABLE:
			table = int(nl.NativeEndian().Uint32(at.Value))
		case at.Attr.Type == unix.RTA_OIF:
			link = int(nl.NativeEndian().Uint32(at.Value))
		}
	}
	return table, int(msg.Protocol), link, msg.Dst_len == 0
}
