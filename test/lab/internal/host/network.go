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

// makeNetwork builds the lab's networks in this process's network namespace:
// the bridge `underlay` with the nodes' first cards, and the bridge
// `management` with their second.
func (s Spec) makeNetwork() error {
	if err := guest.Configure("lo", nil, nil); err != nil {
		return err
	}
	for _, b := range []struct {
		name      string
		addresses []netip.Prefix
	}{
		{"underlay", underlay(hostNumber, s.Dual)}, {"management", []netip.Prefix{nth(management, hostNumber)}},
	} {
		off := false
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: b.name}, MulticastSnooping: &off}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("make the bridge %s: %w", b.name, err)
		}
		if err := guest.Configure(b.name, b.addresses, nil); err != nil {
			return err
		}
	}
	for _, n := range s.Nodes {
		for tap, bridge := range map[string]string{n.Name: "underlay", n.Name + "-m": "management"} {
			link := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: tap}, Mode: netlink.TUNTAP_MODE_TAP}
			if err := netlink.LinkAdd(link); err != nil {
				return fmt.Errorf("make the tap device %s: %w", tap, err)
			}
			if err := join(link, bridge); err != nil {
				return err
			}
		}
	}
	return nil
}

// connectExternal gives the external host its card: the other end of a veth
// pair on the underlay.
func connectExternal(pid int) error {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "external"}, PeerName: "eth0", PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make the external host's card: %w", err)
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

// Dial connects from inside the network namespace of the process pid: the only
// place from which the lab's networks are reached.
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

// InNetwork calls do on a thread that has entered the network namespace of the
// process pid. Addresses must be given as numbers: looking a name up would move
// to another thread.
func InNetwork(pid int, do func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("find this network namespace: %w", err)
	}
	defer home.Close()
	lab, err := netns.GetFromPid(pid)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("find the lab's network namespace: %w", err)
	}
	defer lab.Close()
	if err := netns.Set(lab); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the lab's network namespace: %w", err)
	}
	err = do()
	// A thread that cannot go home stays locked and ends with its goroutine.
	if netns.Set(home) == nil {
		runtime.UnlockOSThread()
	}
	return err
}
