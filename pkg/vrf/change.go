// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// Do implements Target. Adding an existing object and deleting a missing one
// succeeds, so that a stale cache does no harm.
func (k *Kernel) Do(ctx context.Context, op Op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch op.Verb {
	case AddRoute:
		return k.addRoute(op.Route)
	case DelRoute:
		return k.delRoute(op.Route)
	case AddRule:
		return k.addRule(op.Rule)
	case DelRule:
		return k.delRule(op.Rule)
	case AddDevice:
		return k.addDevice(op.Device)
	case DelDevice:
		return k.delDevice(op.Device)
	case SetSysctl:
		return k.setSysctl(op.Sysctl)
	}
	return k.changeLink(op)
}

// changeLink applies operations on an existing link.
func (k *Kernel) changeLink(op Op) error {
	name := op.Port.Name
	if op.Verb == SetAlias || op.Verb == DeviceUp {
		name = op.Device.Name
	}
	l, err := k.link(name)
	if err != nil {
		return err
	}
	if l == nil {
		switch op.Verb {
		case PortDown, DelAddr: // deleted with the link
			return nil
		case SetMaster:
			if op.Port.Master == "" {
				return nil
			}
		}
		return fmt.Errorf("link %s does not exist", name)
	}
	switch op.Verb {
	case SetAlias:
		if !ours(l) {
			return fmt.Errorf("link %s is not Bulkhead's", name)
		}
		return k.h.LinkSetAlias(l, op.Device.Alias)
	case DeviceUp, PortUp:
		if err := k.guard(l); err != nil {
			return err
		}
		return k.h.LinkSetUp(l)
	case PortDown:
		return k.h.LinkSetDown(l)
	case SetMTU:
		return k.h.LinkSetMTU(l, op.Port.MTU)
	case SetMaster:
		if op.Port.Master == "" {
			return k.h.LinkSetNoMaster(l)
		}
		m, err := k.link(op.Port.Master)
		if err != nil {
			return err
		}
		if m == nil {
			return fmt.Errorf("VRF %s does not exist", op.Port.Master)
		}
		return k.h.LinkSetMasterByIndex(l, m.Attrs().Index)
	case AddAddr:
		a := &netlink.Addr{IPNet: ipNet(op.Addr)}
		if op.Addr.Addr().Is6() {
			// The node's id determines the address, so that it is unique.
			// Duplicate address detection would delay traffic for a second.
			a.Flags = unix.IFA_F_NODAD
		}
		if err := k.h.AddrAdd(l, a); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nil
	case DelAddr:
		if err := k.h.AddrDel(l, &netlink.Addr{IPNet: ipNet(op.Addr)}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return err
		}
		return nil
	default:
		return fmt.Errorf("unknown operation %d", op.Verb)
	}
}

func (k *Kernel) toNetlink(r Route) (*netlink.Route, error) {
	out := &netlink.Route{Table: r.Table, Dst: ipNet(r.Dst), Priority: r.Metric, Protocol: Protocol}
	if r.Unreachable {
		out.Type = unix.RTN_UNREACHABLE
		return out, nil
	}
	if r.Via.IsValid() {
		out.Gw = r.Via.AsSlice()
		out.Flags = int(netlink.FLAG_ONLINK)
	}
	if r.Src.IsValid() {
		out.Src = r.Src.AsSlice()
	}
	if r.Dev != "" {
		l, err := k.link(r.Dev)
		if err != nil {
			return nil, err
		}
		if l == nil {
			return nil, fmt.Errorf("link %s does not exist", r.Dev)
		}
		out.LinkIndex = l.Attrs().Index
	}
	return out, nil
}

// addRoute never replaces a route: if a route that is not ours has the same
// destination and metric, it returns an error.
func (k *Kernel) addRoute(r Route) error {
	want, err := k.toNetlink(r)
	if err != nil {
		return err
	}
	err = k.h.RouteAdd(want)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	family := netlink.FAMILY_V4
	if r.Dst.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	have, readErr := k.routes(family, r.Table, 0)
	if readErr != nil {
		return readErr
	}
	names := map[int]string{}
	if slices.ContainsFunc(have, func(h netlink.Route) bool { return k.fromNetlink(h, names) == r }) {
		return nil
	}
	return fmt.Errorf("a route with the same destination and metric that is not Bulkhead's exists: delete it: %w", err)
}

// delRoute sets the protocol, so that the kernel deletes only a route of ours.
func (k *Kernel) delRoute(r Route) error {
	route, err := k.toNetlink(Route{Table: r.Table, Dst: r.Dst, Metric: r.Metric, Unreachable: r.Unreachable, Via: r.Via})
	if err != nil {
		return err
	}
	route.Flags = 0
	if err := k.h.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// addRule adds a rule and, if it is a leaf, the branches that are missing above it.
func (k *Kernel) addRule(r Rule) error {
	k.ruleMu.Lock()
	defer k.ruleMu.Unlock()
	for _, x := range append([]Rule{r}, r.branches()...) {
		k.mu.Lock()
		has := k.cache.has(x)
		k.mu.Unlock()
		if has {
			continue
		}
		if err := k.h.RuleAdd(netlinkRule(x)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("rule %s: %w", x, err)
		}
		k.mu.Lock()
		k.cache.addRule(x)
		k.mu.Unlock()
	}
	return nil
}

// delRule deletes a rule and, if it is a leaf, the branches that lead to no other leaf. It
// keeps a branch that leads to a leaf.
func (k *Kernel) delRule(r Rule) error {
	k.ruleMu.Lock()
	defer k.ruleMu.Unlock()
	for _, x := range append([]Rule{r}, r.branches()...) {
		k.mu.Lock()
		leads := k.cache.leaves[x] > 0
		k.mu.Unlock()
		if leads {
			return nil
		}
		if err := k.h.RuleDel(netlinkRule(x)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("rule %s: %w", x, err)
		}
		k.mu.Lock()
		k.cache.delRule(x)
		k.mu.Unlock()
	}
	return nil
}

func netlinkRule(r Rule) *netlink.Rule {
	out := netlink.NewRule()
	out.Family, out.Priority, out.Table, out.Type, out.Protocol = netlink.FAMILY_V4, r.Priority, r.Table, uint8(r.Action), Protocol
	if r.IPv6 {
		out.Family = netlink.FAMILY_V6
	}
	if r.To.IsValid() {
		out.Dst = ipNet(r.To)
	}
	if r.Mask != 0 {
		out.Mark, out.Mask = r.Mark, &r.Mask
	}
	if r.Action == Goto {
		out.Goto = r.Goto
	}
	if out.IifName = r.From; r.Specific {
		out.SuppressPrefixlen = 0
	}
	return out
}

func (k *Kernel) addDevice(d Device) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Group = d.Name, Group
	err := k.h.LinkAdd(&netlink.Vrf{LinkAttrs: attrs, Table: uint32(d.Table)})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", ErrNoVRF, err)
	case err != nil && !errors.Is(err, unix.EEXIST):
		return err
	}
	l, readErr := k.link(d.Name)
	if readErr != nil {
		return readErr
	}
	if l == nil {
		return errors.New("the device was deleted right after its creation")
	}
	if v, ok := l.(*netlink.Vrf); !ok || !ours(l) || int(v.Table) != d.Table {
		return fmt.Errorf("a link of that name that is not this network's VRF device exists: rename or delete it: %w", unix.EEXIST)
	}
	k.mu.Lock()
	k.cache.setDevice(l.Attrs().Index, d.Name, d.Table)
	k.mu.Unlock()
	return nil
}

// delDevice deletes a VRF device. The kernel moves a deleted device's links to the main table, so
// management ports in it, which may be another network's that had the name, are set down before.
func (k *Kernel) delDevice(d Device) error {
	l, err := k.link(d.Name)
	if err != nil || l == nil {
		return err
	}
	if v, ok := l.(*netlink.Vrf); !ok || !ours(l) || int(v.Table) != d.Table {
		return nil // another link, or another network's device, has the name by now
	}
	links, err := k.linksIn(l.Attrs().Index)
	if err != nil {
		return fmt.Errorf("list the links in VRF %s: %w", d.Name, err)
	}
	for _, port := range links {
		if !strings.HasPrefix(port.Attrs().Name, network.ManagementPrefix) {
			continue
		}
		if err := k.h.LinkSetDown(port); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("set %s down: %w", port.Attrs().Name, err)
		}
	}
	if err := k.h.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	k.mu.Lock()
	k.cache.delDevice(l.Attrs().Index)
	k.mu.Unlock()
	return nil
}

func (k *Kernel) setSysctl(s Sysctl) error {
	f, err := os.OpenFile(filepath.Join(k.sysctl, s.Path), os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: mount the host's /proc/sys/net writable", err)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(s.Value)
	return errors.Join(err, f.Close())
}
