// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovsdb"
)

// The native lab runs OVN and Open vSwitch from a Debian 13 tree on this machine, in
// network namespaces and with the userspace datapath.

// tree is the root of the Debian 13 tree that BULKHEAD_ROOTFS names.
type tree string

func debianTree(t testing.TB) tree {
	t.Helper()
	root := tree(os.Getenv("BULKHEAD_ROOTFS"))
	if root == "" {
		t.Skip("BULKHEAD_ROOTFS names no Debian 13 tree with OVN")
	}
	if _, err := os.Stat(root.path("usr/bin/ovn-northd")); err != nil {
		t.Skipf("BULKHEAD_ROOTFS: %v", err)
	}
	return root
}

func (r tree) path(p string) string { return filepath.Join(string(r), p) }

// argv returns the command line that runs a program of the tree with the tree's own
// libraries.
func (r tree) argv(program string, args ...string) []string {
	bin := ""
	// ovs-vswitchd in usr/sbin is a symlink through this machine's /etc/alternatives.
	for _, dir := range []string{"usr/lib/openvswitch-switch/", "usr/bin/", "usr/sbin/"} {
		if bin = r.path(dir + program); exists(bin) {
			break
		}
	}
	return append([]string{r.path("usr/lib64/ld-linux-x86-64.so.2"), "--library-path", r.path("usr/lib/x86_64-linux-gnu"), bin}, args...)
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// host is one node with its databases and daemons, in the network namespace ns if
// that is set.
type host struct {
	t    testing.TB
	tree tree
	name string
	dir  string
	ns   string
}

func newHost(t testing.TB, r tree, name, ns string) *host {
	h := &host{t: t, tree: r, name: name, ns: ns, dir: filepath.Join(t.TempDir(), name)}
	if len(h.dir) > 90 { // a unix socket's path holds 107 bytes
		dir, err := os.MkdirTemp("/tmp", "bh-ovn-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		h.dir = dir
	}
	if err := os.MkdirAll(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			h.logs()
		}
	})
	return h
}

func (h *host) env() []string {
	return append(os.Environ(), "OVS_RUNDIR="+h.dir, "OVN_RUNDIR="+h.dir, "OVS_LOGDIR="+h.dir, "OVN_LOGDIR="+h.dir, "OVS_DBDIR="+h.dir, "OVN_DBDIR="+h.dir,
		"OVN_NB_DB="+h.sock("nb"), "OVN_SB_DB="+h.sock("sb"))
}

func (h *host) sock(db string) string { return "unix:" + filepath.Join(h.dir, db+".sock") }

// inNamespace returns argv prefixed to run in the host's namespace.
func (h *host) inNamespace(argv []string) []string {
	if h.ns == "" {
		return argv
	}
	return append([]string{"ip", "netns", "exec", h.ns}, argv...)
}

// daemon starts a program that is killed when the test ends.
func (h *host) daemon(program string, args ...string) *exec.Cmd {
	h.t.Helper()
	argv := h.inNamespace(h.tree.argv(program, args...))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = h.env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := os.Create(filepath.Join(h.dir, program+fmt.Sprint(time.Now().UnixNano())+".out"))
	if err != nil {
		h.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		h.t.Fatalf("start %s: %v", program, err)
	}
	_ = out.Close()
	h.t.Cleanup(func() { stop(cmd) })
	return cmd
}

func stop(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// run runs a program of the tree and returns its output.
func (h *host) run(program string, args ...string) (string, error) {
	return run(h.env(), h.inNamespace(h.tree.argv(program, args...))...)
}

func (h *host) must(program string, args ...string) string {
	h.t.Helper()
	out, err := h.run(program, args...)
	if err != nil {
		h.t.Fatalf("%s %s on %s: %v", program, strings.Join(args, " "), h.name, err)
	}
	return out
}

func run(env []string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

func mustRun(t testing.TB, argv ...string) string {
	t.Helper()
	out, err := run(nil, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// database creates a database and starts its ovsdb-server.
func (h *host) database(db, schema string) *exec.Cmd {
	h.t.Helper()
	file := filepath.Join(h.dir, db+".db")
	_ = os.Remove(file)
	h.must("ovsdb-tool", "create", file, h.tree.path(schema))
	return h.serveDatabase(db)
}

func (h *host) serveDatabase(db string) *exec.Cmd {
	h.t.Helper()
	path := filepath.Join(h.dir, db+".sock")
	_ = os.Remove(path)
	cmd := h.daemon("ovsdb-server", "--no-chdir", "--unixctl="+filepath.Join(h.dir, db+".ctl"), "--remote=punix:"+path, filepath.Join(h.dir, db+".db"))
	eventually(h.t, db+" database answers", func() error { _, err := os.Stat(path); return err })
	return cmd
}

// startCentral starts the zone's databases and northd.
func (h *host) startCentral() {
	h.t.Helper()
	h.database("nb", "usr/share/ovn/ovn-nb.ovsschema")
	h.database("sb", "usr/share/ovn/ovn-sb.ovsschema")
	h.daemon("ovn-northd", "--ovnnb-db="+h.sock("nb"), "--ovnsb-db="+h.sock("sb"), "--unixctl="+filepath.Join(h.dir, "northd.ctl"), "--log-file="+filepath.Join(h.dir, "northd.log"))
	h.must("ovn-nbctl", "--no-leader-only", "init")
	h.must("ovn-sbctl", "--no-leader-only", "init")
}

// databases returns connected clients of the zone's databases.
func (h *host) databases() (*NB, *SB) {
	h.t.Helper()
	log := quietLog()
	nb := NewNB(h.sock("nb"), log, func() {}, func(string, Unit, bool) {})
	sb := NewSB(h.sock("sb"), log, func() {}, func() {})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { nb.Run(ctx); ended <- struct{}{} }()
	go func() { sb.Run(ctx); ended <- struct{}{} }()
	h.t.Cleanup(func() { cancel(); <-ended; <-ended })
	eventually(h.t, "clients connect", func() error {
		if !nb.Connected() || !sb.Connected() {
			return ovsdb.ErrNotConnected
		}
		return nil
	})
	return nb, sb
}

// logs logs the end of the daemons' output.
func (h *host) logs() {
	files, _ := filepath.Glob(filepath.Join(h.dir, "*.[lo][ou][gt]"))
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && len(b) > 0 {
			h.t.Logf("%s:\n%s", f, b[max(0, len(b)-1500):])
		}
	}
}

// warnings returns the warnings and errors of northd and, if it runs, ovn-controller:
// rows that contradict each other, or matches that cannot be parsed.
func (h *host) warnings() []string {
	out := h.warningsIn("northd.log")
	if log := "ovn-controller.log"; exists(filepath.Join(h.dir, log)) {
		out = append(out, h.warningsIn(log)...)
	}
	return out
}

// ignoredWarnings are caused by load or by the start, not by rows.
var ignoredWarnings = []string{"|timeval|", "|poll_loop|", "|reconnect|", "|jsonrpc|", "|vif_plug_provider|", "|rconn|", "Failed to locate tunnel to reach main chassis"}

func (h *host) warningsIn(log string) []string {
	var out []string
	b, err := os.ReadFile(filepath.Join(h.dir, log))
	if err != nil {
		return []string{err.Error()}
	}
	for line := range strings.Lines(string(b)) {
		if slices.ContainsFunc(ignoredWarnings, func(s string) bool { return strings.Contains(line, s) }) {
			continue
		}
		if strings.Contains(line, "|WARN|") || strings.Contains(line, "|ERR|") || strings.Contains(line, "|EMER|") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

func quietLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func eventually(t testing.TB, desc string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	var err error
	for {
		if err = f(); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("timeout after a minute: %s: %v", desc, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// startOVS starts Open vSwitch and ovn-controller in the host's namespace,
// with its end of the underlay and the external bridge.
func (h *host) startOVS(node network.Node, underlay, cidr string) {
	h.t.Helper()
	h.database("ovs", "usr/share/openvswitch/vswitch.ovsschema")
	db := "--db=" + h.sock("ovs")
	h.must("ovs-vsctl", db, "--no-wait", "init")
	h.daemon("ovs-vswitchd", h.sock("ovs"), "--unixctl="+filepath.Join(h.dir, "vswitchd.ctl"), "--log-file="+filepath.Join(h.dir, "vswitchd.log"))
	h.must("ovs-vsctl", db, "--", "set", "Open_vSwitch", ".",
		"external_ids:system-id="+node.Chassis, "external_ids:hostname="+node.Name, "external_ids:ovn-remote="+h.sock("sb"),
		"external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip="+node.EncapIPs[0].String(),
		"external_ids:ovn-is-interconn=true", "external_ids:ovn-bridge-datapath-type=netdev", "external_ids:ovn-monitor-all=true",
		"external_ids:ovn-bridge-mappings=physnet:"+node.Bridge,
		"--", "add-br", "br-phy", "--", "set", "Bridge", "br-phy", "datapath_type=netdev",
		"--", "add-port", "br-phy", underlay,
		"--", "add-br", node.Bridge, "--", "set", "Bridge", node.Bridge, "datapath_type=netdev", "fail_mode=secure")
	mustRun(h.t, "ip", "-n", h.ns, "addr", "add", cidr, "dev", "br-phy")
	mustRun(h.t, "ip", "-n", h.ns, "link", "set", "br-phy", "up")
	h.daemon("ovn-controller", h.sock("ovs"), "--unixctl="+filepath.Join(h.dir, "ovn-controller.ctl"), "--log-file="+filepath.Join(h.dir, "ovn-controller.log"))
	eventually(h.t, "chassis of "+h.name+" registers", func() error {
		out, err := h.run("ovn-sbctl", "--no-leader-only", "--bare", "--columns=name", "find", "Chassis", "name="+node.Chassis)
		if err != nil || !strings.Contains(out, node.Chassis) {
			return fmt.Errorf("chassis %q: %w", out, err)
		}
		return nil
	})
}

// plug connects a namespace to a logical port, as CNI ADD does.
func (h *host) plug(lsp, uid, ns string, link string, mac string, ips []netip.Prefix, routes ...string) {
	h.t.Helper()
	mustRun(h.t, "ip", "link", "add", link, "netns", h.ns, "type", "veth", "peer", "name", link, "netns", ns)
	// The userspace datapath does not complete offloaded checksums.
	mustRun(h.t, append([]string{"ip", "netns", "exec", ns}, h.tree.argv("ethtool", "-K", link, "tx", "off")...)...)
	mustRun(h.t, "ip", "-n", ns, "link", "set", link, "address", mac, "mtu", "1400", "up")
	for _, ip := range ips {
		args := []string{"ip", "-n", ns, "addr", "add", ip.String(), "dev", link}
		if ip.Addr().Is6() {
			args = append(args, "nodad")
		}
		mustRun(h.t, args...)
	}
	for _, r := range routes {
		mustRun(h.t, append([]string{"ip", "-n", ns, "route", "add"}, strings.Fields(r)...)...)
	}
	mustRun(h.t, "ip", "-n", h.ns, "link", "set", link, "up")
	args := []string{"--db=" + h.sock("ovs"), "--", "add-port", "br-int", link, "--", "set", "Interface", link, "external_ids:iface-id=" + lsp}
	if uid != "" {
		args = append(args, "external_ids:iface-id-ver="+uid)
	}
	h.must("ovs-vsctl", args...)
}

// namespace creates a network namespace that is deleted when the test ends.
func namespace(t testing.TB, name string) string {
	t.Helper()
	name = fmt.Sprintf("bho%d-%s", os.Getpid(), name)
	mustRun(t, "ip", "netns", "add", name)
	t.Cleanup(func() { _, _ = run(nil, "ip", "netns", "del", name) })
	mustRun(t, "ip", "-n", name, "link", "set", "lo", "up")
	return name
}

// ping pings to from ns.
func (r tree) ping(ns, to string, count int) error {
	_, err := run(nil, append([]string{"ip", "netns", "exec", ns}, r.argv("ping", "-n", "-q", "-c", fmt.Sprint(count), "-i", "0.2", "-W", "1", to)...)...)
	return err
}
