// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
	"bulkhead/pkg/network"
)

// routeProtocol marks our routes inside pods. Routes with another protocol are
// the pod's own and stay unchanged.
const routeProtocol = 85

// Kernel implements Links over netlink. It executes no programs. It needs
// CAP_NET_ADMIN on the host and in the pod's namespace, and CAP_SYS_ADMIN to
// enter that namespace.
type Kernel struct{}

// HostNames implements Links.
func (Kernel) HostNames() (map[string]bool, error) {
	links, err := netdump.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	out := make(map[string]bool, len(links))
	for _, l := range links {
		out[l.Attrs().Name] = true
	}
	return out, nil
}

// DeleteHost implements Links.
func (Kernel) DeleteHost(name string) error {
	link, err := netlink.LinkByName(name)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if link.Type() != "veth" {
		return fmt.Errorf("link %s is not a veth: refusing to delete it", name)
	}
	if err := netlink.LinkDel(link); err != nil && !isNotFound(err) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}

func isNotFound(err error) bool { return errors.As(err, new(netlink.LinkNotFoundError)) }

// Open implements Links.
func (Kernel) Open(path string) (PodLinks, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	own, err := netns.Get()
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	defer own.Close()
	if own.Equal(ns) {
		_ = ns.Close()
		return nil, fmt.Errorf("network namespace %s is the host's", path)
	}
	pod, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("open netlink in %s: %w", path, err)
	}
	return &kernelPod{ns: ns, pod: pod}, nil
}

type kernelPod struct {
	ns  netns.NsHandle
	pod *netlink.Handle
}

// Close implements PodLinks.
func (k *kernelPod) Close() {
	k.pod.Close()
	_ = k.ns.Close()
}

// Read implements PodLinks.
func (k *kernelPod) Read(_ context.Context, names map[string]string) (State, error) {
	out := State{}
	for name, hostName := range names {
		host, err := netlink.LinkByName(hostName)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find link %s: %w", hostName, err)
		}
		link, err := k.pod.LinkByName(name)
		if err != nil && !isNotFound(err) {
			return nil, fmt.Errorf("find %s in the pod: %w", name, err)
		}
		if err != nil || !arePeers(host, link) {
			out[name] = Link{Name: name, Host: hostName, Stale: true}
			continue
		}
		l, err := k.readLink(link)
		if err != nil {
			return nil, err
		}
		l.Host = hostName
		l.Up = l.Up && host.Attrs().Flags&net.FlagUp != 0
		out[name] = l
	}
	return out, nil
}

// arePeers reports whether both veths name each other as their peer.
func arePeers(host, pod netlink.Link) bool {
	return host.Type() == "veth" && pod.Type() == "veth" &&
		host.Attrs().ParentIndex == pod.Attrs().Index && pod.Attrs().ParentIndex == host.Attrs().Index
}

func (k *kernelPod) readLink(link netlink.Link) (Link, error) {
	a := link.Attrs()
	l := Link{Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU, Up: a.Flags&net.FlagUp != 0}
	addrs, err := netdump.List(func() ([]netlink.Addr, error) { return k.pod.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return l, fmt.Errorf("list addresses of %s in the pod: %w", a.Name, err)
	}
	for _, addr := range addrs {
		ip, ok := netip.AddrFromSlice(addr.IP)
		bits, _ := addr.Mask.Size()
		if ok && addr.Scope == unix.RT_SCOPE_UNIVERSE {
			l.Addresses = append(l.Addresses, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	slices.SortFunc(l.Addresses, netip.Prefix.Compare)
	routes, err := netdump.List(func() ([]netlink.Route, error) {
		return k.pod.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: a.Index, Protocol: routeProtocol}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return l, fmt.Errorf("list routes of %s in the pod: %w", a.Name, err)
	}
	for _, r := range routes {
		via, ok := netip.AddrFromSlice(r.Gw)
		if !ok {
			continue
		}
		via = via.Unmap()
		dest := netip.PrefixFrom(unspecified(via), 0)
		if r.Dst != nil {
			ip, _ := netip.AddrFromSlice(r.Dst.IP)
			bits, _ := r.Dst.Mask.Size()
			dest = netip.PrefixFrom(ip.Unmap(), bits)
		}
		l.Routes = append(l.Routes, Route{Dest: dest, Via: via})
	}
	slices.SortFunc(l.Routes, compareRoutes)
	return l, nil
}

// Do implements PodLinks.
func (k *kernelPod) Do(_ context.Context, op Op) error {
	switch o := op.(type) {
	case AddLink:
		return k.addLink(o.Link)
	case DeleteLink:
		return Kernel{}.DeleteHost(o.Host)
	case SetLink:
		return k.setLink(o.Want)
	case AddAddress:
		return k.address(o.Link, o.Address, k.pod.AddrReplace)
	case DeleteAddress:
		return k.address(o.Link, o.Address, k.pod.AddrDel)
	case AddRoute:
		return k.route(o.Link, o.Route, k.pod.RouteReplace)
	case DeleteRoute:
		return k.route(o.Link, o.Route, k.pod.RouteDel)
	default:
		return fmt.Errorf("unknown operation %T", op)
	}
}

// addLink creates the veth pair with one end in the pod, so that no interface
// with a temporary name ever appears on the host.
func (k *kernelPod) addLink(l Link) error {
	mac, err := net.ParseMAC(l.MAC)
	if err != nil {
		return fmt.Errorf("parse MAC address %q of %s: %w", l.MAC, l.Name, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group = l.Host, l.MTU, network.PodLinkGroup
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: l.Name, PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(int(k.ns))}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create veth pair: %w", err)
	}
	// Before the link is up: the pod must not accept router advertisements, and
	// needs no duplicate address detection, as IPAM assigns each address once. Without IPAM the
	// pod sets addresses itself.
	v6 := len(l.Addresses) == 0 || slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() })
	settings := map[string]string{"accept_ra": "0", "accept_dad": "0", "autoconf": "0", "disable_ipv6": "1"}
	if v6 {
		settings["disable_ipv6"] = "0"
	}
	if err := k.inPodNamespace(func() error { return setIPv6(l.Name, settings) }); err != nil {
		return err
	}
	if err := setIPv6(l.Host, map[string]string{"disable_ipv6": "1"}); err != nil {
		return err
	}
	return k.setLink(l)
}

func (k *kernelPod) setLink(l Link) error {
	link, err := k.pod.LinkByName(l.Name)
	if err != nil {
		return fmt.Errorf("find %s in the pod: %w", l.Name, err)
	}
	host, err := netlink.LinkByName(l.Host)
	if err != nil {
		return fmt.Errorf("find %s: %w", l.Host, err)
	}
	mac, err := net.ParseMAC(l.MAC)
	if err != nil {
		return fmt.Errorf("parse MAC address %q of %s: %w", l.MAC, l.Name, err)
	}
	if link.Attrs().HardwareAddr.String() != l.MAC {
		if err := k.pod.LinkSetHardwareAddr(link, mac); err != nil {
			return fmt.Errorf("set hardware address: %w", err)
		}
	}
	if link.Attrs().MTU != l.MTU {
		if err := k.pod.LinkSetMTU(link, l.MTU); err != nil {
			return fmt.Errorf("set MTU: %w", err)
		}
		if err := netlink.LinkSetMTU(host, l.MTU); err != nil {
			return fmt.Errorf("set MTU of the host end: %w", err)
		}
	}
	if err := netlink.LinkSetUp(host); err != nil {
		return fmt.Errorf("set host end up: %w", err)
	}
	if err := k.pod.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	return nil
}

func (k *kernelPod) address(name string, p netip.Prefix, do func(netlink.Link, *netlink.Addr) error) error {
	link, err := k.pod.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s in the pod: %w", name, err)
	}
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return do(link, addr)
}

func (k *kernelPod) route(name string, r Route, do func(*netlink.Route) error) error {
	link, err := k.pod.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s in the pod: %w", name, err)
	}
	return do(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(r.Dest), Gw: r.Via.AsSlice(), Protocol: routeProtocol})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// inPodNamespace runs f on a thread in the pod's network namespace: /proc/sys/net
// shows the namespace of the thread that reads it.
func (k *kernelPod) inPodNamespace(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, so that no other
		// goroutine can run on a thread in a pod's namespace.
		runtime.LockOSThread()
		if err := netns.Set(k.ns); err != nil {
			done <- fmt.Errorf("enter the pod's network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// setIPv6 writes IPv6 sysctls of an interface. It ignores missing ones: the
// kernel may lack IPv6.
func setIPv6(link string, settings map[string]string) error {
	dir := filepath.Join("/proc/sys/net/ipv6/conf", link)
	for key, value := range settings {
		path := filepath.Join(dir, key)
		if current, err := os.ReadFile(path); err == nil && string(current) == value+"\n" {
			continue
		}
		if err := os.WriteFile(path, []byte(value), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set %s of %s: %w", key, link, err)
		}
	}
	return nil
}
