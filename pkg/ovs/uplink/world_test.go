// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bulkhead/pkg/ovs"
	"bulkhead/pkg/ovs/uplink"
	"bulkhead/test/native"
)

// helperEnv makes the test binary a process that the test runs in the node's namespace and kills.
const helperEnv = "BULKHEAD_UPLINK_HELPER"

// helperInput is what the helper does.
type helperInput struct {
	Mode       string // move, restore, keep or read
	Database   string
	Record     string
	Configured string
	KillAfter  int // operations; 0: never
}

func TestMain(m *testing.M) {
	if text := os.Getenv(helperEnv); text != "" {
		if err := runHelper(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runHelper(text string) error {
	var in helperInput
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	c, err := ovs.Connect(ctx, in.Database, log)
	if err != nil {
		return err
	}
	defer c.Close()
	n, err := uplink.Open(c, in.Record, "/proc/sys")
	if err != nil {
		return err
	}
	defer n.Close()
	t := &killed{Node: n, in: in}
	switch in.Mode {
	case "move":
		_, err = uplink.Sync(ctx, t, "br-ex", in.Configured, log)
	case "keep":
		k := uplink.NewKeeper(n, "br-ex", in.Configured, log, func(error) {})
		go c.WatchUplink(ctx, "br-ex", k.Notify)
		err = k.Run(ctx)
	case "restore":
		_, err = uplink.Restore(ctx, t, "br-ex", log)
	case "read":
		var st uplink.State
		if st, err = n.Read(ctx, uplink.Owner{Bridge: "br-ex", Uplink: "eth7"}); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(st)
		}
	default:
		err = fmt.Errorf("mode %q", in.Mode)
	}
	fmt.Fprintf(os.Stderr, "operations=%d\n", t.done)
	return err
}

// killed kills its process after some operations. While the interface is a port of the userspace datapath,
// it drops what the kernel's own stack would receive from the interface, as the kernel's
// datapath does.
type killed struct {
	*uplink.Node
	in   helperInput
	done int
}

func (k *killed) Do(ctx context.Context, op uplink.Op) error {
	if op.Verb == uplink.DelPort {
		_, _ = native.Run(os.Environ(), "nft", "delete table netdev seized") // after a kill it may be gone
	}
	err := k.Node.Do(ctx, op)
	if err == nil && op.Verb == uplink.AddPort {
		_, err = native.Run(os.Environ(), "nft", "add table netdev seized; add chain netdev seized in { type filter hook ingress device eth7 priority 0; policy drop; }")
	}
	if k.done++; k.done == k.in.KillAfter {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return err
}

// world is a node whose interface eth7 leads to a router.
type world struct {
	t        *testing.T
	host     *native.Host
	router   string // namespace
	vswitchd *exec.Cmd
	record   string
	killed   int // the operation after which the helper was killed last
}

func newWorld(t *testing.T) *world {
	t.Helper()
	tree, err := native.FindTree()
	if err != nil {
		t.Skip(err)
	}
	w := &world{t: t, record: filepath.Join(t.TempDir(), "lib", "uplink.json")}
	namespace := func(name string) string {
		ns, err := native.Namespace(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = native.DeleteNamespace(ns) })
		return ns
	}
	node := namespace("uplink")
	w.router = namespace("router")
	if w.host, err = native.NewHost(tree, "node", node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.host.Output())
		}
		if err := w.host.Stop(); err != nil {
			t.Error(err)
		}
	})
	must(t, func() error { _, err := w.host.Database("ovs"); return err })
	w.vsctl("--no-wait", "init", "--", "set", "Open_vSwitch", ".", "external_ids:ovn-bridge-datapath-type=netdev")
	w.startSwitch()
	w.cmd("ip", "link", "add", "eth7", "netns", node, "type", "veth", "peer", "name", "wire", "netns", w.router)
	for ns, dev := range map[string]string{node: "eth7", w.router: "wire"} {
		// The userspace datapath does not complete offloaded checksums.
		w.cmd(append([]string{"ip", "netns", "exec", ns}, tree.Argv("ethtool", "-K", dev, "tx", "off")...)...)
		w.cmd("ip", "-n", ns, "link", "set", dev, "up")
	}
	for _, a := range []string{"addr add 192.0.2.1/24 dev wire", "addr add 2001:db8::1/64 dev wire nodad"} {
		w.cmd(append([]string{"ip", "-n", w.router}, strings.Fields(a)...)...)
	}
	return w
}

func (w *world) startSwitch() {
	w.t.Helper()
	must(w.t, func() (err error) {
		w.vswitchd, err = w.host.Daemon("ovs-vswitchd", w.host.Sock("ovs"), "--unixctl="+w.host.Path("vswitchd.ctl"), "--log-file="+w.host.Path("vswitchd.log"))
		return err
	})
}

func must(t *testing.T, f func() error) {
	t.Helper()
	if err := f(); err != nil {
		t.Fatal(err)
	}
}

func (w *world) cmd(argv ...string) string {
	w.t.Helper()
	out, err := native.Run(os.Environ(), argv...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) vsctl(args ...string) string {
	w.t.Helper()
	out, err := w.host.Run("ovs-vsctl", append([]string{"--db=" + w.host.Sock("ovs")}, args...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// node runs ip in the node's namespace.
func (w *world) node(args string) string {
	w.t.Helper()
	return w.cmd(append([]string{"ip", "-n", w.host.NS}, strings.Fields(args)...)...)
}

// configure gives eth7 what an operating system may.
func (w *world) configure() {
	w.t.Helper()
	for _, args := range []string{
		"addr add 192.0.2.7/24 brd + dev eth7",
		"addr add 192.0.2.8/24 dev eth7", // secondary: deleted with the first one
		"addr add 198.51.100.7 peer 198.51.100.9/32 dev eth7 label eth7:p",
		"addr add 203.0.113.1/24 dev eth7 metric 700 scope link",
		"addr add 2001:db8::7/64 dev eth7 nodad",
		"addr add 2001:db8:1::7/64 dev eth7 nodad noprefixroute",
		"addr add 2001:db8:2::7/64 dev eth7 nodad valid_lft 9000 preferred_lft 8000",
		"route add default via 192.0.2.1 dev eth7 metric 100 mtu 1400",
		"route add 10.1.0.0/16 dev eth7 scope link",
		"route add 10.2.0.0/16 via 10.1.0.1 dev eth7 src 192.0.2.8",
		"route add 10.3.0.0/16 table 77 nexthop via 192.0.2.1 dev eth7 weight 3 nexthop via 192.0.2.2 dev eth7 onlink",
		"route add 192.0.2.0/24 dev eth7 proto kernel scope link src 192.0.2.7 metric 100 table 78",
		"-6 route add 2001:db8:1::/64 dev eth7 proto kernel metric 256", // as NetworkManager adds it
		"-6 route add default via 2001:db8::1 dev eth7 metric 1024",
		"-6 route add default via fe80::1 dev eth7 proto ra metric 1024 expires 1000 table 79",
		"-6 route add 2001:db8:7::/64 dev eth7 table 77 metric 5",
		"nexthop add id 17 via 192.0.2.1 dev eth7",
		"route add 10.4.0.0/16 nhid 17",
		"nexthop add id 18 via 2001:db8::1 dev eth7",
		"-6 route add 2001:db8:9::/64 nhid 18",
	} {
		w.node(args)
	}
}

// state is what is compared of State.
type state struct {
	OnUplink, OnBridge uplink.Config
}

func (w *world) read() state {
	w.t.Helper()
	out, stderr, err := w.try(helperInput{Mode: "read"})
	if err != nil {
		w.t.Fatal(err, stderr)
	}
	var s state
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		w.t.Fatal(err, out)
	}
	return s
}

// helper returns the helper's command.
func (w *world) helper(in helperInput) *exec.Cmd {
	w.t.Helper()
	in.Database, in.Record = w.host.Sock("ovs"), w.record
	if in.Configured == "" {
		in.Configured = "eth7"
	}
	text, err := json.Marshal(in)
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command("ip", "netns", "exec", w.host.NS, os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+string(text))
	return cmd
}

// try runs the helper.
func (w *world) try(in helperInput) (stdout, stderr string, err error) {
	w.t.Helper()
	cmd := w.helper(in)
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// run runs the helper to its end and returns the number of operations.
func (w *world) run(in helperInput) int {
	w.t.Helper()
	_, stderr, err := w.try(in)
	if err != nil {
		w.t.Fatalf("%+v: %v: %s", in, err, stderr)
	}
	_, after, _ := strings.Cut(stderr, "operations=")
	number, _, _ := strings.Cut(after, "\n") // the connection's goroutine may log later
	n, err := strconv.Atoi(number)
	if err != nil {
		w.t.Fatal(err, stderr)
	}
	return n
}

// describe lists addresses and routes without lifetimes, which run down, and without the metric of a route from
// a router advertisement, which grows by one.
func describe(c uplink.Config) []string {
	var out []string
	for _, a := range c.Addresses {
		permanent := a.Valid == uplink.Forever
		if !permanent && (a.Valid > 9000 || a.Valid < 8000 || a.Preferred < 7000) {
			out = append(out, fmt.Sprintf("wrong lifetimes: %+v", a))
		}
		out = append(out, fmt.Sprint("address ", a.Prefix, a.Peer, a.Broadcast, a.Label, a.Scope, a.Flags, a.Metric, permanent))
	}
	for _, r := range c.Routes {
		if r.RA {
			out = append(out, fmt.Sprint("advertised route, expires ", r.Expires > 500 && r.Expires <= 1000))
			continue
		}
		out = append(out, fmt.Sprintf("route %x", r.Message))
	}
	slices.Sort(out)
	return out
}

// check compares what the links have.
func (w *world) check(name string, got uplink.Config, want []string) {
	w.t.Helper()
	if d := describe(got); !slices.Equal(d, want) {
		w.t.Fatalf("after a kill at operation %d: %s:\n%s\nwant:\n%s", w.killed, name, strings.Join(d, "\n"), strings.Join(want, "\n"))
	}
}

// inNamespace calls f on a thread in the namespace.
func inNamespace(t *testing.T, name string, f func() error) {
	t.Helper()
	if err := native.InNamespace(name, f); err != nil {
		t.Fatal(err)
	}
}

// connection is a TCP connection from the router to the node, on which bytes go back and forth.
type connection struct {
	longest atomic.Int64 // the longest time that a byte took, in ns
	trips   atomic.Int64
	err     atomic.Value
	stop    chan struct{}
	stopped chan struct{}
}

func (w *world) connect(address string) *connection {
	w.t.Helper()
	var l net.Listener
	inNamespace(w.t, w.host.NS, func() (err error) { l, err = net.Listen("tcp", address); return err })
	go func() {
		defer l.Close()
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 1)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}()
	var c net.Conn
	inNamespace(w.t, w.router, func() (err error) { c, err = net.DialTimeout("tcp", address, 5*time.Second); return err })
	x := &connection{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(x.stopped)
		defer c.Close()
		b := []byte{7}
		for {
			select {
			case <-x.stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			start := time.Now()
			_ = c.SetDeadline(start.Add(20 * time.Second))
			_, err := c.Write(b)
			if err == nil {
				_, err = c.Read(b)
			}
			if err != nil {
				x.err.Store(err)
				return
			}
			x.longest.Store(max(x.longest.Load(), int64(time.Since(start))))
			x.trips.Add(1)
		}
	}()
	return x
}

// more waits until the connection has carried more bytes.
func (x *connection) more(t *testing.T) {
	t.Helper()
	target := x.trips.Load() + 5
	deadline := time.After(20 * time.Second)
	for x.trips.Load() < target {
		select {
		case <-x.stopped:
			t.Fatal("the connection broke: ", x.err.Load())
		case <-deadline:
			t.Fatal("the connection carries nothing any more")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (x *connection) close(t *testing.T) {
	t.Helper()
	x.more(t)
	close(x.stop)
	<-x.stopped
}
