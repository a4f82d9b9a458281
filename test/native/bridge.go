// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// OutsideLink is the uplink of the external bridge, and its peer's name in the namespace
// outside.
const OutsideLink = "outside"

// ConnectOutside connects the node's external bridge by OutsideLink with a namespace that has
// the addresses outside, and gives the bridge the node's addresses.
func (h *Host) ConnectOutside(node network.Node, ns string, outside ...netip.Prefix) error {
	const link = OutsideLink
	cmds := [][]string{
		{"ip", "link", "add", link, "netns", h.NS, "type", "veth", "peer", "name", link, "netns", ns},
		// The userspace datapath does not complete offloaded checksums.
		append([]string{"ip", "netns", "exec", ns}, h.Tree.Argv("ethtool", "-K", link, "tx", "off")...),
		{"ip", "-n", h.NS, "link", "set", link, "up"},
	}
	cmds = append(cmds, addressCommands(ns, link, outside)...)
	for _, argv := range cmds {
		if _, err := Run(nil, argv...); err != nil {
			return err
		}
	}
	if _, err := h.Run("ovs-vsctl", "--db="+h.Sock("ovs"), "--", "add-port", node.Bridge, link,
		"--", "set", "Bridge", node.Bridge, `other-config:hwaddr="`+node.BridgeMAC+`"`); err != nil {
		return err
	}
	for _, argv := range addressCommands(h.NS, node.Bridge, node.Addresses) {
		if _, err := Run(nil, argv...); err != nil {
			return err
		}
	}
	return nil
}

// addressCommands return the commands that add addresses to a link and set it up.
func addressCommands(ns, link string, addresses []netip.Prefix) (cmds [][]string) {
	for _, a := range addresses {
		args := []string{"ip", "-n", ns, "addr", "add", a.String(), "dev", link}
		if a.Addr().Is6() {
			args = append(args, "nodad")
		}
		cmds = append(cmds, args)
	}
	return append(cmds, []string{"ip", "-n", ns, "link", "set", link, "up"})
}

// OFPort returns the OpenFlow port of an interface, or an error while it has none.
func (h *Host) OFPort(name string) (int, error) {
	out, err := h.Run("ovs-vsctl", "--db="+h.Sock("ovs"), "get", "Interface", name, "ofport")
	if err != nil {
		return 0, err
	}
	port, err := strconv.Atoi(strings.TrimSpace(out))
	if err == nil && port <= 0 {
		err = errors.New("not connected")
	}
	return port, err
}

// OFCtl returns the way to the flows of the host's bridges.
func (h *Host) OFCtl() flows.OFCtl {
	return flows.OFCtl{Command: func(ctx context.Context, args ...string) *exec.Cmd {
		argv := h.Tree.Argv("ovs-ofctl", args...)
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "OVS_RUNDIR="+h.Dir)
		return cmd
	}}
}
