// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Schemas of the databases in a tree.
const (
	schemaNB  = "usr/share/ovn/ovn-nb.ovsschema"
	schemaSB  = "usr/share/ovn/ovn-sb.ovsschema"
	schemaOVS = "usr/share/openvswitch/vswitch.ovsschema"
)

// Database creates an empty database (nb, sb or ovs) and starts its server.
func (h *Host) Database(db string) (*exec.Cmd, error) {
	schema := map[string]string{"nb": schemaNB, "sb": schemaSB, "ovs": schemaOVS}[db]
	if schema == "" {
		return nil, fmt.Errorf("database %q: use nb, sb or ovs", db)
	}
	file := h.Path(db + ".db")
	_ = os.Remove(file)
	if _, err := h.Run("ovsdb-tool", "create", file, h.Tree.Path(schema)); err != nil {
		return nil, err
	}
	return h.ServeDatabase(db)
}

// ServeDatabase starts the server of a database that exists.
func (h *Host) ServeDatabase(db string) (*exec.Cmd, error) {
	path := h.Path(db + ".sock")
	_ = os.Remove(path)
	cmd, err := h.Daemon("ovsdb-server", "--no-chdir", "--unixctl="+h.Path(db+".ctl"), "--remote=punix:"+path, h.Path(db+".db"))
	if err != nil {
		return nil, err
	}
	return cmd, Eventually(db+" database answers", func() error { _, err := os.Stat(path); return err })
}

// Central are the processes of a zone's databases and northd.
type Central struct{ NB, SB, Northd *exec.Cmd }

// StartCentral starts the zone's databases and northd.
func (h *Host) StartCentral() (c Central, err error) {
	if c.NB, err = h.Database("nb"); err != nil {
		return c, err
	}
	if c.SB, err = h.Database("sb"); err != nil {
		return c, err
	}
	if c.Northd, err = h.StartNorthd(); err != nil {
		return c, err
	}
	if _, err = h.Run("ovn-nbctl", "--no-leader-only", "init"); err != nil {
		return c, err
	}
	_, err = h.Run("ovn-sbctl", "--no-leader-only", "init")
	return c, err
}

// StartNorthd starts northd on databases that exist.
func (h *Host) StartNorthd() (*exec.Cmd, error) {
	return h.Daemon("ovn-northd", "--ovnnb-db="+h.Sock("nb"), "--ovnsb-db="+h.Sock("sb"), "--unixctl="+h.Path("northd.ctl"), "--log-file="+h.Path("northd.log"))
}

// StartController starts ovn-controller on a node whose Open vSwitch runs.
func (h *Host) StartController() (*exec.Cmd, error) {
	return h.Daemon("ovn-controller", h.Sock("ovs"), "--unixctl="+h.Path("ovn-controller.ctl"), "--log-file="+h.Path("ovn-controller.log"))
}

// Switch are the processes of a node's Open vSwitch and ovn-controller.
type Switch struct{ DB, VSwitchd, Controller *exec.Cmd }

// StartOVS starts Open vSwitch and ovn-controller in the host's namespace, with its end
// of the underlay, which has the address cidr, and the external bridge. Without an
// underlay the tunnels lead nowhere.
func (h *Host) StartOVS(node network.Node, underlay, cidr string) (s Switch, err error) {
	if s.DB, err = h.Database("ovs"); err != nil {
		return s, err
	}
	db := "--db=" + h.Sock("ovs")
	if _, err = h.Run("ovs-vsctl", db, "--no-wait", "init"); err != nil {
		return s, err
	}
	if s.VSwitchd, err = h.Daemon("ovs-vswitchd", h.Sock("ovs"), "--unixctl="+h.Path("vswitchd.ctl"), "--log-file="+h.Path("vswitchd.log")); err != nil {
		return s, err
	}
	args := []string{db, "--", "set", "Open_vSwitch", ".",
		"external_ids:system-id=" + node.Chassis, "external_ids:hostname=" + node.Name, "external_ids:ovn-remote=" + h.Sock("sb"),
		"external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip=" + node.EncapIPs[0].String(),
		"external_ids:ovn-is-interconn=true", "external_ids:ovn-bridge-datapath-type=netdev", "external_ids:ovn-monitor-all=true",
		"external_ids:ovn-bridge-mappings=physnet:" + node.Bridge,
		"--", "add-br", node.Bridge, "--", "set", "Bridge", node.Bridge, "datapath_type=netdev", "fail_mode=secure"}
	if underlay != "" {
		args = append(args, "--", "add-br", "br-phy", "--", "set", "Bridge", "br-phy", "datapath_type=netdev", "--", "add-port", "br-phy", underlay)
	}
	if _, err = h.Run("ovs-vsctl", args...); err != nil {
		return s, err
	}
	if underlay != "" {
		for _, argv := range [][]string{{"ip", "-n", h.NS, "addr", "add", cidr, "dev", "br-phy"}, {"ip", "-n", h.NS, "link", "set", "br-phy", "up"}} {
			if _, err = Run(nil, argv...); err != nil {
				return s, err
			}
		}
	}
	if s.Controller, err = h.StartController(); err != nil {
		return s, err
	}
	return s, Eventually("chassis of "+h.Name+" registers", func() error {
		out, err := h.Run("ovn-sbctl", "--no-leader-only", "--bare", "--columns=name", "find", "Chassis", "name="+node.Chassis)
		if err != nil || !strings.Contains(out, node.Chassis) {
			return fmt.Errorf("chassis %q: %w", out, err)
		}
		return nil
	})
}

// Port is an interface that Plug connects to a logical port.
type Port struct {
	LSP, UID string // of the logical port and its pod; UID is empty for other ports
	NS       string // the interface's namespace
	Link     string // its name, and that of its peer on the host
	MAC      string
	IPs      []netip.Prefix
	Routes   []string // as for ip route add
}

// Plug connects a namespace to a logical port, as CNI ADD does.
func (h *Host) Plug(p Port) error {
	cmds := [][]string{
		{"ip", "link", "add", p.Link, "netns", h.NS, "type", "veth", "peer", "name", p.Link, "netns", p.NS},
		// The userspace datapath does not complete offloaded checksums.
		append([]string{"ip", "netns", "exec", p.NS}, h.Tree.Argv("ethtool", "-K", p.Link, "tx", "off")...),
		{"ip", "-n", p.NS, "link", "set", p.Link, "address", p.MAC, "mtu", "1400", "up"},
	}
	for _, ip := range p.IPs {
		args := []string{"ip", "-n", p.NS, "addr", "add", ip.String(), "dev", p.Link}
		if ip.Addr().Is6() {
			args = append(args, "nodad")
		}
		cmds = append(cmds, args)
	}
	for _, r := range p.Routes {
		cmds = append(cmds, append([]string{"ip", "-n", p.NS, "route", "add"}, strings.Fields(r)...))
	}
	cmds = append(cmds, []string{"ip", "-n", h.NS, "link", "set", p.Link, "up"})
	for _, argv := range cmds {
		if _, err := Run(nil, argv...); err != nil {
			return err
		}
	}
	return h.Bind(p.LSP, p.UID, p.Link)
}

// Bind adds a link to the integration bridge as the interface of a logical port. Each
// of settings is one more of ovs-vsctl's for the Interface.
func (h *Host) Bind(lsp, uid, link string, settings ...string) error {
	args := []string{"--db=" + h.Sock("ovs"), "--", "add-port", "br-int", link, "--", "set", "Interface", link, "external_ids:iface-id=" + lsp}
	if uid != "" {
		args = append(args, "external_ids:iface-id-ver="+uid)
	}
	_, err := h.Run("ovs-vsctl", append(args, settings...)...)
	return err
}

// Warnings returns the warnings and errors of northd and, if it runs, ovn-controller:
// rows that contradict each other, or matches that cannot be parsed.
func (h *Host) Warnings() ([]string, error) {
	out, err := h.warningsIn("northd.log")
	if _, missing := os.Stat(h.Path("ovn-controller.log")); err != nil || missing != nil {
		return out, err
	}
	more, err := h.warningsIn("ovn-controller.log")
	return append(out, more...), err
}

// ignoredWarnings are caused by load or by the start, not by rows.
var ignoredWarnings = []string{"|timeval|", "|poll_loop|", "|reconnect|", "|jsonrpc|", "|vif_plug_provider|", "|rconn|", "Failed to locate tunnel to reach main chassis"}

func (h *Host) warningsIn(log string) ([]string, error) {
	b, err := os.ReadFile(h.Path(log))
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if slices.ContainsFunc(ignoredWarnings, func(s string) bool { return strings.Contains(line, s) }) {
			continue
		}
		if strings.Contains(line, "|WARN|") || strings.Contains(line, "|ERR|") || strings.Contains(line, "|EMER|") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out, nil
}
