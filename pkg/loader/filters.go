// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
)

// Before Linux 6.6 there are no links on interfaces. There the guard's programs are
// filters of a clsact qdisc, which exists as long as the interface. A filter is
// replaced atomically, so an upgrade has no gap. Bulkhead's filters are identified
// by name prefix and priority.
const (
	filterPriority = 1
	filterHandle   = 0xb01d
	filterPrefix   = "bh_grd_"
)

func (l *Loader) attachFilters(ifindex int, names []string) error {
	qdisc := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	err := netlink.QdiscAdd(qdisc)
	if errors.Is(err, unix.EEXIST) {
		err = checkClsact(ifindex)
	}
	if err != nil {
		return fmt.Errorf("add clsact to interface %d: %w", ifindex, err)
	}
	var errs []error
	for _, name := range names {
		parent := l.parent(name)
		filter := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: ifindex, Parent: parent, Handle: filterHandle, Protocol: unix.ETH_P_ALL, Priority: filterPriority},
			Fd:          l.programs[name].FD(), Name: name, DirectAction: true,
		}
		if err := netlink.FilterReplace(filter); err != nil {
			errs = append(errs, fmt.Errorf("attach %s to interface %d: %w", name, ifindex, err))
		}
	}
	// Detach filters of the kind that the interface had before.
	have, err := l.filters(ifindex)
	errs = append(errs, err)
	for _, f := range have {
		if !slices.Contains(names, f.Name) {
			if err := netlink.FilterDel(f); err != nil {
				errs = append(errs, fmt.Errorf("delete the filter %s of interface %d: %w", f.Name, ifindex, err))
			}
		}
	}
	return errors.Join(errs...)
}

// ErrNoClsact is wrapped by AttachDoor's error if the interface has an ingress qdisc. It has clsact's handle, so there cannot be
// both, and the kernel would attach a filter for egress to ingress.
var ErrNoClsact = errors.New("an interface has either clsact or another ingress qdisc")

// checkClsact returns an error if the qdisc with clsact's handle is another one.
func checkClsact(ifindex int) error {
	attrs := netlink.LinkAttrs{Index: ifindex}
	list, err := netdump.List(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(&netlink.GenericLink{LinkAttrs: attrs}) })
	if err != nil {
		return fmt.Errorf("list its qdiscs: %w", err)
	}
	for _, q := range list {
		if q.Attrs().Parent != netlink.HANDLE_CLSACT || q.Type() == "clsact" {
			continue
		}
		if link, err := netlink.LinkByIndex(ifindex); err == nil {
			attrs.Name = link.Attrs().Name
		}
		return fmt.Errorf("%w: %s has the qdisc %s: remove what adds it, such as a policing rate or hw-offload of Open vSwitch, and then the qdisc itself (tc qdisc del dev %s ingress), or use Linux 6.6 or newer", ErrNoClsact, attrs.Name, q.Type(), attrs.Name)
	}
	return nil
}

func (l *Loader) parent(name string) uint32 {
	if l.attachTypes[name] == ebpf.AttachTCXIngress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

// filters lists Bulkhead's filters on one interface.
func (l *Loader) filters(ifindex int) ([]*netlink.BpfFilter, error) {
	var out []*netlink.BpfFilter
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		list, err := netlink.FilterList(link, parent)
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
			continue // the interface is gone, or has no such qdisc
		}
		if err != nil {
			return nil, fmt.Errorf("list filters of interface %d: %w", ifindex, err)
		}
		for _, f := range list {
			if b, ok := f.(*netlink.BpfFilter); ok && strings.HasPrefix(b.Name, filterPrefix) && b.Priority == filterPriority {
				out = append(out, b)
			}
		}
	}
	return out, nil
}

func (l *Loader) detachFilters(ifindex int) error {
	list, err := l.filters(ifindex)
	errs := []error{err}
	for _, f := range list {
		if err := netlink.FilterDel(f); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove filter %s from interface %d: %w", f.Name, ifindex, err))
		}
	}
	return errors.Join(errs...)
}

// filterAttachments reads the filters of every interface. It leaves out a filter
// with another program than the loaded one, so that the caller replaces it.
func (l *Loader) filterAttachments(ids map[string]ebpf.ProgramID) ([]Attachment, error) {
	links, err := netdump.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []Attachment
	for _, link := range links {
		list, err := l.filters(link.Attrs().Index)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			continue
		}
		a := Attachment{Ifindex: link.Attrs().Index}
		for _, f := range list {
			if ids[f.Name] == ebpf.ProgramID(f.Id) {
				a.Programs = append(a.Programs, f.Name)
			}
		}
		out = append(out, a)
	}
	return out, nil
}
