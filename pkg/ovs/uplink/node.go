// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
)

// Bridges is what Node uses from Open vSwitch. Changes return when ovs-vswitchd has made them.
type Bridges interface {
	ReadUplink(ctx context.Context, bridge, iface string) (Switch, error)
	AddExternalBridge(ctx context.Context, bridge, mac string) error
	SetBridgeMAC(ctx context.Context, bridge, mac string) error
	AddUplink(ctx context.Context, bridge, iface string) error
	DeleteUplink(ctx context.Context, bridge, iface string) error
	DeleteExternalBridge(ctx context.Context, bridge string) error
}

// Node implements Target for the network namespace of the thread that opened it.
type Node struct {
	bridges Bridges
	file    string // the record
	sysctl  string
	h       *netlink.Handle
	raw     map[int]*nl.SocketHandle
}

// Open opens the node. file is the record's, sysctlRoot is /proc/sys or a writable mount of it.
func Open(bridges Bridges, file, sysctlRoot string) (*Node, error) {
	n := &Node{bridges: bridges, file: file, sysctl: sysctlRoot}
	var err error
	if n.h, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	n.raw = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		n.Close()
		return nil, fmt.Errorf("set strict checking on netlink socket: %w", err)
	}
	return n, nil
}

// Close closes the sockets.
func (n *Node) Close() {
	if n.h != nil {
		n.h.Close()
	}
	if n.raw != nil {
		n.raw[unix.NETLINK_ROUTE].Close()
	}
}

// Switch implements Target.
func (n *Node) Switch(ctx context.Context, bridge, uplink string) (Switch, error) {
	return n.bridges.ReadUplink(ctx, bridge, uplink)
}

// link returns the link with that name, or nil.
func (n *Node) link(name string) (netlink.Link, error) {
	l, err := n.h.LinkByName(name)
	if notFound := new(netlink.LinkNotFoundError); errors.As(err, notFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read link %s: %w", name, err)
	}
	return l, nil
}

// Read implements Target.
func (n *Node) Read(ctx context.Context, o Owner) (State, error) {
	st := State{BridgeRA: -1, Interface: Interface{AcceptRA: -1}}
	l, err := n.link(o.Uplink)
	if err != nil {
		return st, err
	}
	if l != nil {
		if st.OnUplink, err = n.config(l); err != nil {
			return st, err
		}
		st.Interface = n.readInterface(l)
		if !st.OnUplink.empty() {
			st.Interface.DHCP = dhcpClient(l.Attrs().Index, st.OnUplink)
		}
	}
	b, err := n.link(o.Bridge)
	if err != nil || b == nil {
		return st, err
	}
	st.LinkIndex, st.BridgeUp, st.BridgeRA = b.Attrs().Index, b.Attrs().Flags&net.FlagUp != 0, n.readSysctl(o.Bridge, "accept_ra")
	st.OnBridge, err = n.config(b)
	return st, errors.Join(err, ctx.Err())
}

func (n *Node) readInterface(l netlink.Link) Interface {
	a := l.Attrs()
	i := Interface{Exists: true, Kind: l.Type(), MAC: a.HardwareAddr.String(), Ethernet: a.EncapType == "ether" && len(a.HardwareAddr) == 6,
		Loopback: a.Flags&net.FlagLoopback != 0, AcceptRA: n.readSysctl(a.Name, "accept_ra")}
	i.RA = i.AcceptRA == 2 || i.AcceptRA == 1 && n.readSysctl(a.Name, "forwarding") == 0
	for _, sign := range []string{"wireless", "phy80211"} {
		if _, err := os.Stat(filepath.Join("/sys/class/net", a.Name, sign)); err == nil {
			i.Wireless = true
		}
	}
	if a.MasterIndex != 0 {
		i.Master = fmt.Sprintf("interface %d", a.MasterIndex)
		if m, err := n.h.LinkByIndex(a.MasterIndex); err == nil {
			i.Master = m.Attrs().Name
			if m.Type() == "openvswitch" {
				i.Master = ""
			}
		}
	}
	return i
}

// readSysctl reads a number below net.ipv6.conf of a link; -1: the link has no IPv6.
func (n *Node) readSysctl(link, key string) int {
	b, err := os.ReadFile(n.sysctlPath(link, key))
	if err != nil {
		return -1
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return -1
	}
	return v
}

func (n *Node) sysctlPath(link, key string) string {
	return filepath.Join(n.sysctl, "net/ipv6/conf", link, key)
}

// config reads what a link has that moves with it.
func (n *Node) config(l netlink.Link) (Config, error) {
	var c Config
	index, name := l.Attrs().Index, l.Attrs().Name
	msg := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	msg.Index = uint32(index)
	err := n.dump(unix.RTM_GETADDR, unix.RTM_NEWADDR, func() { c.Addresses = nil }, func(m []byte) {
		if a, i, ok := parseAddress(m, name); ok && i == index {
			c.Addresses = append(c.Addresses, a)
		}
	}, msg)
	if err != nil {
		return c, fmt.Errorf("list addresses of %s: %w", name, err)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		var routes []Route
		msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family)}}
		err := n.dump(unix.RTM_GETROUTE, unix.RTM_NEWROUTE, func() { routes = nil }, func(m []byte) {
			for _, r := range parseRoutes(m, index) {
				if !r.byKernel(c.Addresses) {
					routes = append(routes, r.Route)
				}
			}
		}, msg, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOENT) {
			return c, fmt.Errorf("list routes by %s: %w", name, err)
		}
		c.Routes = append(c.Routes, routes...)
	}
	return c, nil
}

// dump repeats a dump that a change has interrupted.
func (n *Node) dump(get int, want uint16, reset func(), each func([]byte), data ...nl.NetlinkRequestData) error {
	return netdump.Retry(func() error {
		reset()
		req := nl.NewNetlinkRequest(get, unix.NLM_F_DUMP)
		req.Sockets = n.raw
		for _, d := range data {
			req.AddData(d)
		}
		return req.ExecuteIter(unix.NETLINK_ROUTE, want, func(m []byte) bool { each(m); return true })
	})
}
