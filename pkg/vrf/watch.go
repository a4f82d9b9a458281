// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Change says what may have to be looked at again.
type Change struct {
	ID     int  // network of that id, when neither of the following
	Bridge bool // the external bridge, its addresses or the node's default routes
	Links  bool // an interface that is none of ours came or went
	All    bool // events were lost
}

// Watched says which tables belong to which network.
type Watched struct {
	TableBase int // Plan.VRFTableBase
	MaxID     int
}

const portPrefix = "ovn-k8s-mp"

func subscribe() (*nl.NetlinkSocket, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink events: %w", err)
	}
	// Room for a burst of a few hundred networks; without the capability for
	// it the usual size has to do, and lost events are noticed.
	_ = s.SetReceiveBufferSize(8<<20, true)
	return s, nil
}

// Watch tells notify about changes until ctx ends. There is one watch,
// whatever the number of networks. Routes are watched in every table. The
// kernel says nothing of the IPv4 routes that go with a link that goes down:
// the link's own event stands for them.
func (k *Kernel) Watch(ctx context.Context, w Watched, notify func(Change)) error {
	stop := context.AfterFunc(ctx, k.events.Close)
	defer stop()
	for {
		msgs, from, err := k.events.Receive()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, unix.ENOBUFS) {
			if err := errors.Join(k.drain(ctx), k.fillMirror()); err != nil {
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
			if c, ok := k.event(m, w); ok && !slices.Contains(seen, c) {
				seen = append(seen, c)
				notify(c)
			}
		}
	}
}

// drain reads what waits in the socket: until it is empty, the kernel drops what
// comes without another ENOBUFS, so that a list read before would stay behind.
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

// event keeps the mirror and says whose business a message is.
func (k *Kernel) event(m syscall.NetlinkMessage, w Watched) (Change, bool) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		hdr := unix.NlMsghdr{Len: m.Header.Len, Type: m.Header.Type, Flags: m.Header.Flags, Seq: m.Header.Seq, Pid: m.Header.Pid}
		l, err := netlink.LinkDeserialize(&hdr, m.Data)
		if err != nil {
			return Change{}, false
		}
		return k.linkEvent(l, m.Header.Type == unix.RTM_DELLINK, w)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		_, index, ok := parseAddress(m.Data)
		if !ok {
			return Change{}, false
		}
		k.mu.Lock()
		name := k.mirror.links[index]
		k.mu.Unlock()
		return k.changeOfLink(name, w)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		table, protocol, dflt := parseRoute(m.Data)
		if table == MainTable && dflt && protocol != Protocol {
			return Change{Bridge: true}, true
		}
		if protocol != Protocol || m.Header.Type == unix.RTM_NEWROUTE {
			return Change{}, false // a route of ours that came: we made it
		}
		return changeOfTable(table, w)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		r, ok := parseRule(m.Data)
		if !ok {
			return Change{}, false
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if m.Header.Type == unix.RTM_NEWRULE {
			k.mirror.addRule(r)
			return Change{}, false
		}
		k.mirror.delRule(r)
		return changeOfTable(r.Table, w)
	}
	return Change{}, false
}

func (k *Kernel) linkEvent(l netlink.Link, gone bool, w Watched) (Change, bool) {
	a := l.Attrs()
	k.mu.Lock()
	defer k.mu.Unlock()
	_, seen := k.mirror.all[a.Index]
	device, known := k.mirror.devices[a.Index]
	if gone {
		delete(k.mirror.all, a.Index)
		delete(k.mirror.links, a.Index)
	} else {
		k.mirror.all[a.Index] = struct{}{}
		if a.Name == k.bridge || strings.HasPrefix(a.Name, portPrefix) {
			k.mirror.links[a.Index] = a.Name
		}
	}
	v, isVRF := l.(*netlink.Vrf)
	isOurs := isVRF && ours(l)
	switch {
	case known && (gone || !isOurs):
		k.mirror.delDevice(a.Index)
		return changeOfTable(device.table, w)
	case isOurs && gone: // who deleted it has told the mirror
		return changeOfTable(int(v.Table), w)
	case isOurs:
		k.mirror.setDevice(a.Index, a.Name, int(v.Table))
		return changeOfTable(int(v.Table), w)
	}
	if c, ok := k.changeOfLink(a.Name, w); ok {
		return c, true
	}
	return Change{Links: true}, seen == gone
}

func changeOfTable(table int, w Watched) (Change, bool) {
	if table == MainTable {
		return Change{}, true // the cluster default network's
	}
	id := table - w.TableBase
	return Change{ID: id}, id >= 1 && id <= w.MaxID
}

func (k *Kernel) changeOfLink(name string, w Watched) (Change, bool) {
	if name == "" {
		return Change{}, false
	}
	if name == k.bridge {
		return Change{Bridge: true}, true
	}
	rest, ok := strings.CutPrefix(name, portPrefix)
	if !ok {
		return Change{}, false
	}
	id, err := strconv.Atoi(rest)
	return Change{ID: id}, err == nil && id >= 0 && id <= w.MaxID
}

// parseAddress reads an address message. Link-local addresses are not ours to
// judge.
func parseAddress(m []byte) (addr netip.Prefix, index int, ok bool) {
	if len(m) < unix.SizeofIfAddrmsg {
		return addr, 0, false
	}
	msg := nl.DeserializeIfAddrmsg(m)
	attrs, err := nl.ParseRouteAttr(m[msg.Len():])
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
	if !a.IsValid() || a.IsLinkLocalUnicast() {
		return addr, 0, false
	}
	return netip.PrefixFrom(a, int(msg.Prefixlen)), int(msg.Index), true
}

// parseRoute reads what an event's filter needs.
func parseRoute(m []byte) (table, protocol int, isDefault bool) {
	if len(m) < unix.SizeofRtMsg {
		return 0, 0, false
	}
	msg := nl.DeserializeRtMsg(m)
	attrs, err := nl.ParseRouteAttr(m[msg.Len():])
	if err != nil {
		return 0, 0, false
	}
	table = int(msg.Table)
	for _, at := range attrs {
		if at.Attr.Type == unix.RTA_TABLE && len(at.Value) >= 4 {
			table = int(nl.NativeEndian().Uint32(at.Value))
		}
	}
	return table, int(msg.Protocol), msg.Dst_len == 0
}

// parseRule reads a rule; ok is false for one that is not ours.
func parseRule(m []byte) (r Rule, ok bool) {
	if len(m) < unix.SizeofRtMsg {
		return r, false
	}
	msg := nl.DeserializeRtMsg(m)
	attrs, err := nl.ParseRouteAttr(m[msg.Len():])
	if err != nil {
		return r, false
	}
	r.IPv6, r.Table = msg.Family == unix.AF_INET6, int(msg.Table)
	native := nl.NativeEndian()
	for _, at := range attrs {
		v := at.Value
		switch at.Attr.Type {
		case nl.FRA_PROTOCOL:
			ok = len(v) >= 1 && v[0] == Protocol
		case nl.FRA_TABLE:
			if len(v) >= 4 {
				r.Table = int(native.Uint32(v))
			}
		case nl.FRA_PRIORITY:
			if len(v) >= 4 {
				r.Priority = int(native.Uint32(v))
			}
		case nl.FRA_FWMARK:
			if len(v) >= 4 {
				r.Mark = native.Uint32(v)
			}
		case nl.FRA_DST:
			if a, valid := netip.AddrFromSlice(v); valid {
				r.To = netip.PrefixFrom(a, int(msg.Dst_len))
			}
		}
	}
	return r, ok
}
