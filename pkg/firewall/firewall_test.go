// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
	"sigs.k8s.io/knftables"

	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
)

const mark = 0x2b1d0000

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

var (
	services = []Port{
		{netip.MustParseAddr("10.96.0.1"), "tcp", 443}, {netip.MustParseAddr("10.96.0.10"), "udp", 53},
		{netip.MustParseAddr("fd10:96::a"), "udp", 53}, {netip.MustParseAddr("fd10:96::a"), "sctp", 9153},
	}
	plan = network.Plan{
		Masquerade:   []netip.Prefix{netip.MustParsePrefix("169.254.0.0/17"), netip.MustParsePrefix("fd69::/112")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd10:96::/112")},
	}
)

// reconcileAndRead reconciles the table and compares it with what was built.
func reconcileAndRead(t *testing.T, target *Target, in Inputs) {
	t.Helper()
	if _, err := (&Reconciler{Target: target}).Reconcile(t.Context(), in, false); err != nil {
		t.Fatal(err)
	}
	have, err := target.Read(t.Context())
	if err != nil || dump(have) != dump(Build(in)) {
		t.Errorf("read back: %v\n%swant\n%s", err, dump(have), dump(Build(in)))
	}
}

func dump(st State) string {
	var b strings.Builder
	chains := slices.Clone(st.Chains)
	slices.SortFunc(chains, func(a, b Chain) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range chains {
		fmt.Fprintln(&b, c.Name)
		for _, r := range c.Rules {
			fmt.Fprintln(&b, " ", r.Comment)
		}
	}
	fmt.Fprintln(&b, st.Counters, st.Sets)
	return b.String()
}

// Reconcile converges from any state of the table, also after a restart, and is
// then a no-op.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		target, fake := NewFake()
		r := &Reconciler{Target: target}
		for range rapid.IntRange(1, 4).Draw(rt, "steps") {
			in := genInputs(rt)
			recheck := false
			switch rapid.IntRange(0, 3).Draw(rt, "disturb") {
			case 1:
				r = &Reconciler{Target: target} // restart
			case 2: // another program flushed the ruleset
				if err := target.Delete(ctx); err != nil {
					rt.Fatal(err)
				}
				recheck = true
			case 3: // an older version's chain
				tx := fake.NewTransaction()
				tx.Add(&knftables.Table{})
				tx.Add(&knftables.Chain{Name: "old"})
				if err := fake.Run(ctx, tx); err != nil {
					rt.Fatal(err)
				}
				recheck = true
			}
			if _, err := r.Reconcile(ctx, in, recheck); err != nil {
				rt.Fatal(err)
			}
			have, err := target.Read(ctx)
			if err != nil {
				rt.Fatal(err)
			}
			want := Build(in)
			if dump(have) != dump(want) {
				rt.Fatalf("have %s want %s", dump(have), dump(want))
			}
			if ops := Diff(want, have); len(ops) != 0 {
				rt.Fatalf("second run: %v", ops)
			}
		}
	})
}

// A new pod is one operation with one element, whatever the number of pods.
func TestAddedPodIsOneOperation(t *testing.T) {
	target, _ := NewFake()
	r := &Reconciler{Target: target}
	in := Inputs{Kubelet: Kubelet{Mark: mark}}
	for i := range 1000 {
		in.Locked = append(in.Locked, netip.AddrFrom4([4]byte{10, 244, byte(i / 250), byte(i%250 + 2)}))
	}
	if _, err := r.Reconcile(context.Background(), in, false); err != nil {
		t.Fatal(err)
	}
	in.Locked = append(in.Locked, netip.MustParseAddr("10.244.9.9"))
	ops, err := r.Reconcile(context.Background(), in, false)
	if err != nil || len(ops) != 1 || ops[0].String() != "add [10.244.9.9] to set locked4" {
		t.Errorf("%v %v", ops, err)
	}
}

// Without kubelet's mark and cgroup, nothing but replies is accepted.
func TestRejectsWithoutKubelet(t *testing.T) {
	for _, r := range Build(Inputs{}).Chains[0].Rules {
		if strings.Contains(r.Text, "accept") && !strings.Contains(r.Text, "ct state") {
			t.Errorf("accepts: %s", r.Text)
		}
	}
	if _, ok := (Kubelet{Cgroup: Cgroup{Path: `x" accept; drop "`}}).allow(); ok {
		t.Error("a cgroup path with a quote was accepted")
	}
}

func newNetns(t *testing.T) (host, pod netns.NsHandle) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP: needs root for a network namespace")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skipf("SKIP: %v", err)
	}
	runtime.LockOSThread()
	old, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	if pod, err = netns.New(); errors.Is(err, unix.EPERM) {
		t.Skipf("SKIP: no network namespace: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	setUp(t, "lo", "")
	if host, err = netns.New(); err != nil {
		t.Fatal(err)
	}
	setUp(t, "lo", "") // rejects arrive on the loopback device
	t.Cleanup(func() { _ = netns.Set(old) })
	return host, pod
}

func setUp(t *testing.T, name, addr string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if addr != "" {
		a, _ := netlink.ParseAddr(addr)
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(l, a); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
}

// The real table in the kernel: packets with kubelet's mark pass, all others are
// rejected at once, including root's raw packets.
func TestKernel(t *testing.T) {
	host, pod := newNetns(t)
	ctx := context.Background()
	target, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "ovn-k8s-mp0", TxQLen: -1}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(pod))}); err != nil {
		t.Fatal(err)
	}
	setUp(t, "ovn-k8s-mp0", "10.244.1.2/24")
	setUp(t, "ovn-k8s-mp0", "fd10::2/64")
	if err := netns.Set(pod); err != nil {
		t.Fatal(err)
	}
	setUp(t, "eth0", "10.244.1.5/24")
	setUp(t, "eth0", "fd10::5/64")
	setUp(t, "eth0", "10.244.1.6/24")
	listener, err := net.Listen("tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	if err := netns.Set(host); err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Target: target}
	if err := target.MatchesSockets(ctx); err != nil {
		t.Fatal(err)
	}
	pods, podsID := podRoot(t)
	in := Inputs{Locked: addrs("10.244.1.5", "fd10::5"), Kubelet: Kubelet{Mark: mark}, Default: defaultNetwork,
		Networks: []network.Network{{ID: 1}, {ID: 300}}, PodRoots: []Cgroup{{pods, podsID}},
		Bridge: "br-ex", Services: services, Plan: plan}
	if _, err := r.Reconcile(ctx, in, false); err != nil {
		t.Fatal(err)
	}
	have, err := target.Read(ctx)
	if err != nil || dump(have) != dump(Build(in)) {
		t.Fatalf("read back: %v\n%s", err, dump(have))
	}
	dial := func(to string, mark int) (time.Duration, error) {
		d := net.Dialer{Timeout: 3 * time.Second, Control: func(_, _ string, c syscall.RawConn) error {
			var e error
			_ = c.Control(func(fd uintptr) {
				if mark != 0 {
					e = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark)
				}
			})
			return e
		}}
		start := time.Now()
		c, err := d.Dial("tcp", to) // a numeric address: the dialer stays on this thread
		if err == nil {
			_ = c.Close()
		}
		return time.Since(start), err
	}
	for _, to := range []string{"10.244.1.5:8080", "[fd10::5]:8080"} {
		if _, err := dial(to, mark); err != nil {
			t.Errorf("kubelet to %s: %v", to, err)
		}
		if took, err := dial(to, 0); err == nil || took > time.Second {
			t.Errorf("another process to %s: %v after %v", to, err, took)
		}
	}
	if _, err := dial("10.244.1.6:8080", 0); err != nil {
		t.Errorf("to a pod that is not locked: %v", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	echo := []byte{8, 0, 0xf7, 0xfe, 0, 1, 0, 0}
	if err := unix.Sendto(fd, echo, 0, &unix.SockaddrInet4{Addr: [4]byte{10, 244, 1, 5}}); !errors.Is(err, unix.EPERM) {
		t.Errorf("root's ping: %v", err)
	}
	if err := unix.Sendto(fd, echo, 0, &unix.SockaddrInet4{Addr: [4]byte{10, 244, 1, 6}}); err != nil {
		t.Errorf("root's ping of a pod that is not locked: %v", err)
	}
	// An open port, and echo requests, for as long as they are open.
	open := in
	open.Open = []Port{{netip.MustParseAddr("10.244.1.5"), "tcp", 8080}, {netip.MustParseAddr("fd10::5"), "udp", 8080}, {netip.MustParseAddr("fd10::5"), "tcp", 8081}}
	if _, err := r.Reconcile(ctx, open, false); err != nil {
		t.Fatal(err)
	}
	if _, err := dial("[fd10::5]:8080", 0); err == nil {
		t.Error("a port that is open for UDP is reached by TCP")
	}
	if err := unix.Sendto(fd, echo, 0, &unix.SockaddrInet4{Addr: [4]byte{10, 244, 1, 5}}); !errors.Is(err, unix.EPERM) {
		t.Errorf("root's ping of a pod with an open port: %v", err)
	}
	open.Open = append(open.Open, Port{netip.MustParseAddr("fd10::5"), "tcp", 8080}, Port{netip.MustParseAddr("10.244.1.5"), "icmp", 0}, Port{netip.MustParseAddr("fd10::5"), "icmp", 0})
	if _, err := r.Reconcile(ctx, open, false); err != nil {
		t.Fatal(err)
	}
	if have, err = target.Read(ctx); err != nil || dump(have) != dump(Build(open)) {
		t.Errorf("read back: %v\n%s", err, dump(have))
	}
	for _, to := range []string{"10.244.1.5:8080", "[fd10::5]:8080"} {
		if _, err := dial(to, 0); err != nil {
			t.Errorf("to the open port %s: %v", to, err)
		}
	}
	if err := unix.Sendto(fd, echo, 0, &unix.SockaddrInet4{Addr: [4]byte{10, 244, 1, 5}}); err != nil {
		t.Errorf("root's ping, opened: %v", err)
	}
	// Of pods in the host's network, those outside the tenants reach it, and tenants' do not.
	inPod(t, pods, func() {
		if _, err := dial("10.244.1.5:8080", 0); err != nil {
			t.Errorf("a pod outside the tenants to an open port: %v", err)
		}
		if _, err := dial("10.244.1.5:8080", int(network.PacketMark(1))); err == nil {
			t.Error("a tenant's pod reaches an open port")
		}
	})
	if _, err := r.Reconcile(ctx, in, false); err != nil {
		t.Fatal(err)
	}
	if _, err := dial("10.244.1.5:8080", 0); err == nil {
		t.Error("a port that was closed again is reached")
	}
	counters, err := target.Counters(ctx)
	if err != nil || counters[CounterProbeAllowed] < 2 || counters[CounterProbeRefused] < 3 {
		t.Errorf("counters %v %v", counters, err)
	}
	// Without a way to identify kubelet, its packets are rejected too.
	in.Mark = 0
	if _, err := r.Reconcile(ctx, in, false); err != nil {
		t.Fatal(err)
	}
	if _, err := dial("10.244.1.5:8080", mark); err == nil {
		t.Error("a probe passes without a way to identify kubelet")
	}
	// Watch reports changes by another program.
	watched, cancel := context.WithCancel(ctx)
	events, ended := make(chan uint32, 1000), make(chan error, 1)
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		_ = netns.Set(host)
		close(started)
		ended <- Watch(watched, func(generation uint32) { events <- generation })
	}()
	<-started
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for deadline := time.Now().Add(time.Minute); len(events) == 0; { // the watch may not have subscribed yet
		if time.Now().After(deadline) {
			t.Fatal("no event for a change")
		}
		if out, err := exec.Command("nft", "add", "element", "inet", Table, SetLocked4, "{ 198.51.100.1 }").CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		if out, err := exec.Command("nft", "delete", "element", "inet", Table, SetLocked4, "{ 198.51.100.1 }").CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	for len(events) > 0 {
		<-events
	}
	// Changed recognises our own transaction, and Watch ignores other tables.
	if out, err := exec.Command("nft", "add table inet others; delete table inet others").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	more := in
	more.Locked = append(addrs("10.244.1.77"), in.Locked...)
	if _, err := r.Reconcile(ctx, more, true); err != nil {
		t.Fatal(err)
	}
	select {
	case generation := <-events:
		if generation == 0 || r.Changed(generation) {
			t.Errorf("our own transaction %d is treated as another program's", generation)
		}
	case <-time.After(time.Minute):
		t.Error("no event for our own transaction")
	}
	if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	select {
	case generation := <-events:
		if !r.Changed(generation) {
			t.Error("the flush is treated as our own transaction")
		}
	case <-time.After(time.Minute):
		t.Error("no event for the flush")
	}
	if ops, err := r.Reconcile(ctx, in, false); err != nil || len(ops) == 0 {
		t.Errorf("after a flush: %v %v", ops, err)
	}
	if err := target.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if out, _ := exec.Command("nft", "list", "ruleset").CombinedOutput(); len(out) != 0 {
		t.Errorf("leftover rules: %s", out)
	}
}

// inPod runs f with this process in a cgroup.
func inPod(t *testing.T, path string, f func()) {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, own, _ := strings.Cut(string(raw), "0::")
	own, _, _ = strings.Cut(own, "\n")
	move := func(to string) {
		if err := os.WriteFile(filepath.Join("/sys/fs/cgroup", to, "cgroup.procs"), []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	move(path)
	defer move(own)
	f()
}

// podRoot creates a cgroup that acts as the cgroup of all pods.
func podRoot(t *testing.T) (path string, id uint64) {
	t.Helper()
	mount, err := loader.CgroupMount()
	if err != nil {
		t.Skip("SKIP:", err)
	}
	if mount != "/sys/fs/cgroup" {
		t.Skipf("SKIP: nft expects cgroups below /sys/fs/cgroup, cgroup v2 is at %s", mount)
	}
	dir, err := os.MkdirTemp(mount, "bh-nft-")
	if err != nil {
		t.Skip("SKIP:", err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	if id, err = loader.CgroupID(dir); err != nil {
		t.Fatal(err)
	}
	return filepath.Base(dir), id
}

// Read returns each set's elements in the format of Build, also where nft knows no names
// of protocols, as in the agent's image.
func TestKernelServices(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T){"protocols by name": func(*testing.T) {}, "protocols by number": hideProtocols} {
		t.Run(name, func(t *testing.T) {
			newNetns(t)
			prepare(t)
			target, err := Open()
			if err != nil {
				t.Fatal(err)
			}
			in := Inputs{Kubelet: Kubelet{Mark: mark}, Bridge: "br-ex", Services: services, Plan: plan, NodeID: 2, Default: defaultNetwork,
				Node: nodeAddresses, NodePorts: nodePorts, LocalPorts: localPorts, Mode: network.LocalGateway}
			r := &Reconciler{Target: target}
			// The subnets of a network contain those of the ones before it.
			for _, in.Networks = range [][]network.Network{advertised[:1], advertised, advertised[2:], advertised[:2]} {
				if _, err := r.Reconcile(t.Context(), in, false); err != nil {
					t.Fatal(err)
				}
				have, err := target.Read(t.Context())
				if err != nil || dump(have) != dump(Build(in)) {
					t.Errorf("read back: %v\n%swant\n%s", err, dump(have), dump(Build(in)))
				}
			}
		})
	}
}

// hideProtocols hides /etc/protocols from this thread, which newNetns has locked, and the
// programs that it starts.
func hideProtocols(t *testing.T) {
	t.Helper()
	const names = "/etc/protocols"
	if _, err := os.Stat(names); errors.Is(err, os.ErrNotExist) {
		return
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/dev/null", names, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
}

// Ten thousand pods: one transaction adds all elements.
func TestKernelBulk(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP: -short")
	}
	newNetns(t)
	target, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Target: target}
	in := Inputs{Kubelet: Kubelet{Mark: mark}}
	for i := range 10000 {
		in.Locked = append(in.Locked, netip.AddrFrom4([4]byte{10, 244, byte(i / 250), byte(i % 250)}))
	}
	start := time.Now()
	if _, err := r.Reconcile(context.Background(), in, false); err != nil {
		t.Fatal(err)
	}
	all := time.Since(start)
	in.Locked = in.Locked[1:]
	start = time.Now()
	if _, err := r.Reconcile(context.Background(), in, false); err != nil {
		t.Fatal(err)
	}
	t.Logf("10,000 addresses added in %v, one deleted in %v", all, time.Since(start))
}

// A tenant's mark must not reach the tunnel: the kernel would route the outer
// packet by it. The rule clears every network's mark and no other mark.
func TestClearsTenantMark(t *testing.T) {
	for _, c := range Build(Inputs{}).Chains {
		if c.Hook != "postrouting" {
			continue
		}
		want := `oifname "ovn-k8s-mp*" meta mark 0x10000-0x2711ffff meta mark set meta mark & 0xffff`
		if len(c.Rules) != 1 || c.Rules[0].Text != want {
			t.Errorf("got %+v, want one rule %q", c.Rules, want)
		}
		return
	}
	t.Error("no postrouting chain")
}
