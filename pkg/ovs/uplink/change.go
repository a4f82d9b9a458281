// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
)

// Do implements Target.
func (n *Node) Do(ctx context.Context, op Op) error {
	switch op.Verb {
	case SaveRecord:
		return n.save(op.Record)
	case AddBridge:
		return n.bridges.AddExternalBridge(ctx, op.Owner.Bridge, op.MAC)
	case SetMAC:
		return n.bridges.SetBridgeMAC(ctx, op.Owner.Bridge, op.MAC)
	case AddPort:
		return n.bridges.AddUplink(ctx, op.Owner.Bridge, op.Owner.Uplink)
	case DelPort:
		return n.bridges.DeleteUplink(ctx, op.Owner.Bridge, op.Owner.Uplink)
	case DelBridge:
		return n.bridges.DeleteExternalBridge(ctx, op.Owner.Bridge)
	case SetAcceptRA:
		return os.WriteFile(n.sysctlPath(op.Link, "accept_ra"), []byte(strconv.Itoa(op.Value)), 0)
	}
	name := op.Link
	if op.Verb == BridgeUp {
		name = op.Owner.Bridge
	}
	l, err := n.link(name)
	if err != nil {
		return err
	}
	if l == nil {
		return fmt.Errorf("link %s does not exist", name)
	}
	index := l.Attrs().Index
	switch op.Verb {
	case BridgeUp:
		return n.h.LinkSetUp(l)
	case AddAddress:
		return n.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, addressMessage(op.Address, index, name))
	case DelAddress:
		err := n.request(unix.RTM_DELADDR, 0, keyMessage(op.Address, index))
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil
		}
		return err
	case CopyNeighbors:
		return n.copyNeighbors(op.Owner, l)
	case AddRoute:
		// Appended: the route through the other link stays until it is deleted, and so does anybody else's.
		err := n.request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, routeMessage(op.Route, index))
		if errors.Is(err, unix.EEXIST) {
			return nil
		}
		return err
	case DelRoute:
		err := n.request(unix.RTM_DELROUTE, 0, deleteMessage(op.Route, index))
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	default:
		return fmt.Errorf("unknown operation %d", op.Verb)
	}
}

// copyNeighbors makes the neighbours of the other link known on l. The kernel uses them at once and
// checks them after some seconds.
func (n *Node) copyNeighbors(o Owner, l netlink.Link) error {
	from, err := n.link(o.Uplink)
	if l.Attrs().Name == o.Uplink {
		from, err = n.link(o.Bridge)
	}
	if err != nil || from == nil {
		return err
	}
	neighbours, err := netdump.List(func() ([]netlink.Neigh, error) { return n.h.NeighList(from.Attrs().Index, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list neighbours of %s: %w", from.Attrs().Name, err)
	}
	const known = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
	for _, x := range neighbours {
		state := netlink.NUD_STALE
		switch {
		case x.State&netlink.NUD_PERMANENT != 0:
			state = netlink.NUD_PERMANENT
		case x.State&known == 0:
			continue
		}
		copied := &netlink.Neigh{LinkIndex: l.Attrs().Index, Family: x.Family, State: state, IP: x.IP, HardwareAddr: x.HardwareAddr, Flags: x.Flags & netlink.NTF_ROUTER}
		// One that exists is as good. Without any the kernel asks.
		if err := n.h.NeighAdd(copied); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("neighbour %s: %w", x.IP, err)
		}
	}
	return nil
}

type rawData []byte

func (d rawData) Len() int          { return len(d) }
func (d rawData) Serialize() []byte { return d }

func (n *Node) request(kind, flags int, message []byte) error {
	req := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	req.Sockets = n.raw
	req.AddData(rawData(message))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

var _ Target = (*Node)(nil)
