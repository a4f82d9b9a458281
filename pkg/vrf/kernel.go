// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
	"bulkhead/pkg/network"
)

// Kernel implements Target over netlink, for the network namespace of the thread
// that opened it.
//
// The cost of reading one network does not depend on the number of networks:
// routes and addresses are dumped with the kernel's filters. The kernel has no
// filter for rules and no lookup of a VRF device by table, so Kernel caches
// ours. It fills the cache once and updates it from events and its own changes
// (watch.go). A stale cache may repeat a change, which succeeds; the late event
// triggers another reconcile.
type Kernel struct {
	h      *netlink.Handle
	strict *netlink.Handle // the kernel applies filters, not the library
	raw    map[int]*nl.SocketHandle
	events *nl.NetlinkSocket
	sysctl string
	bridge string
	// guardLink is called before a VRF device or management port is set up. If it
	// fails, the link stays down. It may be nil.
	guardLink func(Link) error

	// ruleMu is held while a rule is added or deleted together with its branches.
	ruleMu sync.Mutex

	mu    sync.Mutex
	cache cache
}

// Open fills the cache and subscribes to events, which Watch receives.
// sysctlRoot is /proc/sys or a writable mount of it; bridge is the external
// bridge's name. guard, which may be nil, is called before a VRF device or
// management port is set up; if it fails, the link stays down.
func Open(sysctlRoot, bridge string, guard func(Link) error) (*Kernel, error) {
	k := &Kernel{sysctl: sysctlRoot, bridge: bridge, guardLink: guard, cache: newCache()}
	var err error
	if k.h, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	if k.strict, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		k.Close()
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	if err := k.strict.SetStrictCheck(true); err != nil {
		k.Close()
		return nil, fmt.Errorf("set strict checking on netlink socket (Linux 4.20 or later): %w", err)
	}
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		k.Close()
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	k.raw = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		k.Close()
		return nil, fmt.Errorf("set strict checking on netlink socket: %w", err)
	}
	if k.events, err = subscribe(); err != nil {
		k.Close()
		return nil, err
	}
	if err := k.fillCache(); err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

// Close closes the sockets. Objects in the kernel stay.
func (k *Kernel) Close() {
	if k.h != nil {
		k.h.Close()
	}
	if k.strict != nil {
		k.strict.Close()
	}
	if k.raw != nil {
		k.raw[unix.NETLINK_ROUTE].Close()
	}
	if k.events != nil {
		k.events.Close()
	}
}

// HasIPv6 reports whether this kernel has IPv6. Where it is disabled, some interface may still have it: the sysctl
// disable_ipv6 of all interfaces says nothing about a single one, and the kernel accepts rules and unreachable routes.
func (k *Kernel) HasIPv6() bool {
	_, err := os.Stat(filepath.Join(k.sysctl, "net/ipv6/conf"))
	return err == nil
}

// Read implements Target.
func (k *Kernel) Read(ctx context.Context, owner Owner) (State, error) {
	st := State{ID: owner.ID, Network: owner.Network}
	k.mu.Lock()
	st.Rules = k.cache.rulesOf(owner.Table)
	devices := k.cache.devicesOf(owner.Table)
	st.Taken = k.cache.foreignDeviceOf(owner.Table)
	k.mu.Unlock()
	for _, n := range owner.Names {
		if !slices.Contains(devices, n) {
			devices = append(devices, n)
		}
	}
	names := map[int]string{} // ifindex → name
	for _, name := range devices {
		if err := k.readDevice(&st, owner, name, names); err != nil {
			return st, err
		}
	}
	port := 0
	if owner.Port != "" {
		var err error
		if port, err = k.readPort(&st, owner, names); err != nil {
			return st, err
		}
	}
	if owner.Bridge != "" {
		l, err := k.link(owner.Bridge)
		switch {
		case err != nil:
			return st, err
		case l == nil || l.Attrs().Flags&net.FlagUp == 0:
			st.Absent = append(st.Absent, owner.Bridge)
		default:
			names[l.Attrs().Index] = owner.Bridge
			if owner.ID == network.DefaultID {
				st.Sysctls = append(st.Sysctls, k.readSysctls(bridgeSysctls(owner.Bridge, network.LocalGateway))...)
			}
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := k.routes(family, owner.Table, 0)
		if err != nil {
			return st, err
		}
		if port != 0 {
			for _, table := range []int{network.AdvertisedTable, network.MasqueradeTable} {
				shared, err := k.routes(family, table, port)
				if err != nil {
					return st, err
				}
				routes = append(routes, shared...)
			}
		}
		for _, r := range routes {
			st.Routes = append(st.Routes, k.fromNetlink(r, names))
		}
	}
	st.normalise()
	return st, ctx.Err()
}

// link returns the link with that name, or nil.
func (k *Kernel) link(name string) (netlink.Link, error) {
	l, err := k.h.LinkByName(name)
	if notFound := new(netlink.LinkNotFoundError); errors.As(err, notFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read link %s: %w", name, err)
	}
	return l, nil
}

func ours(l netlink.Link) bool {
	a := l.Attrs()
	return l.Type() == "vrf" && (a.Group == Group || strings.HasPrefix(a.Alias, AliasPrefix))
}

func (k *Kernel) readDevice(st *State, owner Owner, name string, names map[int]string) error {
	l, err := k.link(name)
	if err != nil || l == nil {
		return err
	}
	vrf, ok := l.(*netlink.Vrf)
	if !ok || !ours(l) {
		if slices.Contains(owner.Names, name) {
			st.Foreign = append(st.Foreign, name)
		}
		return nil
	}
	a := l.Attrs()
	names[a.Index] = name
	st.Devices = append(st.Devices, Device{Name: name, Table: int(vrf.Table), Alias: a.Alias, Up: a.Flags&net.FlagUp != 0})
	st.Sysctls = append(st.Sysctls, k.readSysctls(vrfSysctls(name, true))...)
	return nil
}

// readPort reads the management port. index is 0 if it does not exist.
func (k *Kernel) readPort(st *State, owner Owner, names map[int]string) (index int, err error) {
	l, err := k.link(owner.Port)
	if err != nil {
		return 0, err
	}
	if l == nil {
		st.Absent = append(st.Absent, owner.Port)
		return 0, nil
	}
	a := l.Attrs()
	names[a.Index] = owner.Port
	st.Port = Port{Name: owner.Port, MTU: a.MTU, Up: a.Flags&net.FlagUp != 0}
	if a.MasterIndex != 0 {
		st.Port.Master = k.nameOf(a.MasterIndex, names)
	}
	if st.Port.Addrs, err = k.addresses(a.Index); err != nil {
		return 0, fmt.Errorf("read addresses of %s: %w", owner.Port, err)
	}
	st.Sysctls = append(st.Sysctls, k.readSysctls(allPortSysctls(owner.Port))...)
	return a.Index, nil
}

func (k *Kernel) nameOf(index int, names map[int]string) string {
	if n, ok := names[index]; ok {
		return n
	}
	l, err := k.h.LinkByIndex(index)
	if err != nil { // deleted in the meantime, with its routes
		return fmt.Sprintf("if%d", index)
	}
	names[index] = l.Attrs().Name
	return l.Attrs().Name
}

func (k *Kernel) readSysctls(paths []Sysctl) []Sysctl {
	var out []Sysctl
	for _, s := range paths {
		b, err := os.ReadFile(filepath.Join(k.sysctl, s.Path))
		if err != nil { // no such device or IP family: setting the sysctl will fail
			continue
		}
		out = append(out, Sysctl{s.Path, strings.TrimSpace(string(b))})
	}
	return out
}

// addresses lists the addresses of one link, without link-local ones. The
// library's AddrList does not filter in the kernel: it would dump every address
// of the node.
func (k *Kernel) addresses(index int) ([]netip.Prefix, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.Sockets = k.raw
	msg := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	msg.Index = uint32(index)
	req.AddData(msg)
	var out []netip.Prefix
	err := netdump.Retry(func() error {
		out = nil
		return req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWADDR, func(m []byte) bool {
			if a, i, ok := parseAddress(m); ok && i == index {
				out = append(out, a)
			}
			return true
		})
	})
	return out, err
}

// routes lists our routes of one table (0: all tables), through one link (0: all links).
func (k *Kernel) routes(family, table, link int) ([]netlink.Route, error) {
	filter, mask := &netlink.Route{Table: table, Protocol: Protocol, LinkIndex: link}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL
	if link != 0 {
		mask |= netlink.RT_FILTER_OIF
	}
	routes, err := netdump.List(func() ([]netlink.Route, error) { return k.strict.RouteListFiltered(family, filter, mask) })
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // no such table yet, or no such IP family
	}
	if err != nil {
		return nil, fmt.Errorf("read routes of table %d: %w", table, err)
	}
	return routes, nil
}

func (k *Kernel) fromNetlink(r netlink.Route, names map[int]string) Route {
	out := Route{Table: r.Table, Metric: r.Priority, Unreachable: r.Type == unix.RTN_UNREACHABLE}
	if out.Dst = prefixOf(r.Dst); !out.Dst.IsValid() {
		out.Dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if r.Family == netlink.FAMILY_V6 {
			out.Dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	}
	if out.Unreachable {
		return out // IPv6 unreachable routes have the loopback device
	}
	if a, ok := netip.AddrFromSlice(r.Gw); ok {
		out.Via = a.Unmap()
	}
	if a, ok := netip.AddrFromSlice(r.Src); ok {
		out.Src = a.Unmap()
	}
	if r.LinkIndex != 0 {
		out.Dev = k.nameOf(r.LinkIndex, names)
	}
	return out
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}
	}
	ones, bits := n.Mask.Size()
	if a = a.Unmap(); bits == 128 && a.Is4() {
		ones -= 96
	}
	return netip.PrefixFrom(a, ones)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Tables implements Target.
func (k *Kernel) Tables(ctx context.Context) ([]int, error) {
	k.mu.Lock()
	tables := k.cache.tables()
	k.mu.Unlock()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := k.routes(family, 0, 0)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			tables = append(tables, r.Table)
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables), ctx.Err()
}
