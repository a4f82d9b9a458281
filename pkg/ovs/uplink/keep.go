// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
)

// Keeper keeps the interface in the bridge: what the operating system configures on it later moves
// too, and a port that somebody removes comes back.
type Keeper struct {
	Node       *Node
	Bridge     string
	Configured string // an interface, or Auto
	Log        *slog.Logger
	// Report is called with the result of each run; nil is success.
	Report func(error)

	uplink  atomic.Value // string: the interface, once it is known
	pending chan struct{}
}

const (
	// eventDelay is the delay between an event and the run. Programs configure an address and then the routes
	// that depend on it: without the delay these would find no address.
	eventDelay = 500 * time.Millisecond
	// interval is between runs without an event.
	interval = time.Minute
)

// NewKeeper returns a keeper, which Run runs.
func NewKeeper(n *Node, bridge, configured string, log *slog.Logger, report func(error)) *Keeper {
	return &Keeper{Node: n, Bridge: bridge, Configured: configured, Log: log, Report: report, pending: make(chan struct{}, 1)}
}

// Notify says that the bridge or the interface may have changed.
func (k *Keeper) Notify() {
	select {
	case k.pending <- struct{}{}:
	default:
	}
}

// Sync moves once.
func (k *Keeper) Sync(ctx context.Context) error {
	name, err := Sync(ctx, k.Node, k.Bridge, k.Configured, k.Log)
	if name != "" {
		k.uplink.Store(name)
	}
	k.Report(err)
	return err
}

// Run moves whatever appears until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	if err := k.watch(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	backoff, last := time.Second, ""
	for {
		err := k.Sync(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var retry <-chan time.Time
		if err != nil {
			if err.Error() != last {
				k.Log.Warn("cannot keep the uplink on the external bridge, will retry", "error", err)
			}
			last, retry = err.Error(), time.After(backoff)
			backoff = min(2*backoff, 30*time.Second)
		} else {
			last, backoff = "", time.Second
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
		case <-tick.C:
		case <-k.pending:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(eventDelay):
			}
		}
	}
}

// watch calls Notify for changes of the two links, their addresses and their routes.
func (k *Keeper) watch(ctx context.Context) error {
	s, err := subscribe(ctx)
	if err != nil {
		return err
	}
	indexes := map[string]int{}
	if links, err := netdump.List(k.Node.h.LinkList); err == nil {
		for _, l := range links {
			indexes[l.Attrs().Name] = l.Attrs().Index
		}
	}
	go func() {
		for ctx.Err() == nil {
			msgs, _, err := s.Receive()
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, unix.ENOBUFS):
				k.Notify() // events were lost
				continue
			case err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN):
				k.Log.Warn("netlink events of the uplink cannot be read, subscribing again", "error", err)
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Second):
				}
				if again, err := subscribe(ctx); err == nil {
					s.Close()
					s = again
					k.Notify() // events were lost
				}
				continue
			}
			for _, m := range msgs {
				if k.concerns(m, indexes) {
					k.Notify()
				}
			}
		}
	}()
	return nil
}

// subscribe subscribes to events of links, addresses and routes until ctx ends.
func subscribe(ctx context.Context) (*nl.NetlinkSocket, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink events: %w", err)
	}
	context.AfterFunc(ctx, s.Close)
	return s, nil
}

// concerns reports whether a message is about the bridge or the interface.
func (k *Keeper) concerns(m syscall.NetlinkMessage, indexes map[string]int) bool {
	uplink, _ := k.uplink.Load().(string)
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		hdr := unix.NlMsghdr{Len: m.Header.Len, Type: m.Header.Type, Flags: m.Header.Flags, Seq: m.Header.Seq, Pid: m.Header.Pid}
		l, err := netlink.LinkDeserialize(&hdr, m.Data)
		if err != nil {
			return false
		}
		name := l.Attrs().Name
		if m.Header.Type == unix.RTM_DELLINK {
			delete(indexes, name)
		} else {
			indexes[name] = l.Attrs().Index
		}
		return name == k.Bridge || name == uplink
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		_, index, ok := parseAddress(m.Data, "")
		return ok && (index == indexes[uplink] || index == indexes[k.Bridge])
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		for _, name := range []string{uplink, k.Bridge} {
			if index, ok := indexes[name]; ok && len(parseRoutes(m.Data, index)) > 0 {
				return true
			}
		}
	}
	return false
}
