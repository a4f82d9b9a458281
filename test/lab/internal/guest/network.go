// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"time"

	"bulkhead/test/lab/internal/sys"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// managementListener moves the management card into an unnamed network namespace and
// listens there. The lab can thus run commands whatever a test or the product does to
// the node's network, and the node's own network namespace has no second card.
func managementListener(card string, address netip.Prefix) (net.Listener, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	nodeNS, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("open the current network namespace: %w", err)
	}
	defer nodeNS.Close()
	link, err := waitLink(card)
	if err != nil {
		return nil, err
	}
	managementNS, err := netns.New() // also enters it
	if err != nil {
		return nil, fmt.Errorf("create the management namespace: %w", err)
	}
	defer netns.Set(nodeNS)
	// The listener keeps the namespace alive.
	defer managementNS.Close()
	node, err := netlink.NewHandleAt(nodeNS)
	if err != nil {
		return nil, fmt.Errorf("open netlink in the node's namespace: %w", err)
	}
	defer node.Close()
	if err := node.LinkSetNsFd(link, int(managementNS)); err != nil {
		return nil, fmt.Errorf("move %s to the management namespace: %w", card, err)
	}
	if err := Configure(card, []netip.Prefix{address}, nil); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(address.Addr().String(), strconv.Itoa(ExecPort)))
	if err != nil {
		return nil, fmt.Errorf("listen for commands: %w", err)
	}
	return l, nil
}

// Configure sets a link up with its addresses and default routes, in the
// namespace of the calling thread.
func Configure(name string, addresses []netip.Prefix, gateways []netip.Addr) error {
	link, err := waitLink(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	for _, a := range addresses {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}}
		if a.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("add %s to %s: %w", a, name, err)
		}
	}
	for _, gw := range gateways {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw.AsSlice(), Family: family(gw)}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("add the default route via %s on %s: %w", gw, name, err)
		}
	}
	return nil
}

func family(a netip.Addr) int {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// moveAddresses moves the underlay's addresses and default routes from one link to
// another with the same MAC address, so that open connections survive.
func moveAddresses(from, to string, addresses []netip.Prefix, gateways []netip.Addr) error {
	link, err := netlink.LinkByName(from)
	if err != nil {
		return fmt.Errorf("find %s: %w", from, err)
	}
	for _, a := range addresses {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}}
		if err := netlink.AddrDel(link, addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove %s from %s: %w", a, from, err)
		}
	}
	return Configure(to, addresses, gateways)
}

// waitLink waits for a link that another process or a driver creates.
func waitLink(name string) (netlink.Link, error) {
	return sys.Poll(30*time.Second, "link "+name, func() (netlink.Link, error) { return netlink.LinkByName(name) })
}
