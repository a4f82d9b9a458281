// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"bulkhead/test/lab/internal/guest"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// createNetwork creates the lab's networks in this process's network namespace: the
// bridge `underlay` with the nodes' first cards, and the bridge `management` with
// their second cards.
func (s Spec) createNetwork() error {
	if err := guest.Configure("lo", nil, nil); err != nil {
		return err
	}
	for _, b := range []struct {
		name      string
		addresses []netip.Prefix
	}{
		{"underlay", underlay(hostNumber, s.Families)}, {"management", []netip.Prefix{nth(management, hostNumber)}},
	} {
		off := false
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: b.name}, MulticastSnooping: &off}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("create the bridge %s: %w", b.name, err)
		}
		if err := guest.Configure(b.name, b.addresses, nil); err != nil {
			return err
		}
	}
	for _, n := range s.Nodes {
		for tap, bridge := range map[string]string{n.Name: "underlay", n.Name + "-m": "management"} {
			link := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: tap}, Mode: netlink.TUNTAP_MODE_TAP}
			if err := netlink.LinkAdd(link); err != nil {
				return fmt.Errorf("create the tap device %s: %w", tap, err)
			}
			if err := join(link, bridge); err != nil {
				return err
			}
		}
	}
	return nil
}

// connectExternal creates the external host's card, the peer of a veth device on the
// underlay.
func connectExternal(pid int) error {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "external"}, PeerName: "eth0", PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create the external host's card: %w", err)
	}
	return join(veth, "underlay")
}

func join(link netlink.Link, bridge string) error {
	master, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find the bridge %s: %w", bridge, err)
	}
	if err := netlink.LinkSetMaster(link, master); err != nil {
		return fmt.Errorf("add %s to the bridge %s: %w", link.Attrs().Name, bridge, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", link.Attrs().Name, err)
	}
	return nil
}

// Dial connects from the network namespace of the process pid. Only from there are the
// lab's networks reachable.
func Dial(ctx context.Context, pid int, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		err := InNetwork(pid, func() error {
			r.conn, r.err = (&net.Dialer{}).DialContext(ctx, network, address)
			return nil
		})
		if err != nil {
			r.err = err
		}
		done <- r
	}()
	r := <-done
	if r.err != nil {
		return nil, fmt.Errorf("connect to %s in the lab: %w", address, r.err)
	}
	return r.conn, nil
}

// InNetwork calls do on a thread in the network namespace of the process pid. do must
// not resolve names: Go would resolve them on another thread.
func InNetwork(pid int, do func() error) error {
	runtime.LockOSThread()
	original, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the current network namespace: %w", err)
	}
	defer original.Close()
	lab, err := netns.GetFromPid(pid)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the lab's network namespace: %w", err)
	}
	defer lab.Close()
	if err := netns.Set(lab); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the lab's network namespace: %w", err)
	}
	err = do()
	// A thread that cannot return to its namespace stays locked and ends with its
	// goroutine.
	if netns.Set(original) == nil {
		runtime.UnlockOSThread()
	}
	return err
}
