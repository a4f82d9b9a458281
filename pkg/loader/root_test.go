// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func counts(t *testing.T, l *Loader) map[Reason]uint64 {
	t.Helper()
	cs, err := l.Counters()
	if err != nil {
		t.Fatal(err)
	}
	out := map[Reason]uint64{}
	for _, c := range cs {
		if c.Count > 0 {
			out[c.Reason] = c.Count
		}
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRootRows(t *testing.T) {
	l := newSandbox(t).load()
	want := []Row{
		PodRow{77, 5, 0x1005, 9, false, true},
		DestRow{5, netip.MustParsePrefix("10.5.0.0/16")}, DestRow{5, netip.MustParsePrefix("fd05::/64")}, DestRow{6, netip.MustParsePrefix("10.5.0.0/16")},
		LockedRow{netip.MustParseAddr("10.244.0.7"), 5}, LockedRow{netip.MustParseAddr("fd00::7"), 5},
		KubeletRow{CgroupID: 88}, KubeletRow{TGID: 88},
	}
	for range 2 {
		for _, r := range want {
			must(t, l.Put(r))
		}
	}
	have, err := l.Rows()
	must(t, err)
	if len(have) != len(want) {
		t.Fatalf("%d rows, want %d: %v", len(have), len(want), have)
	}
	for _, r := range want {
		if !slices.Contains(have, r) {
			t.Errorf("%s is not read back", r)
		}
		must(t, l.Delete(r))
		must(t, l.Delete(r)) // twice is no error
	}
	if have, _ = l.Rows(); len(have) != 0 {
		t.Errorf("left: %v", have)
	}
}

// Kubelet, and nobody else, reaches a locked address; in both families, by TCP
// and UDP, mapped addresses included, and only in the host's network namespace.
func TestRootProbeAllowance(t *testing.T) {
	s := newSandbox(t)
	l := s.load()
	kubelet, other := s.cg("system/kubelet"), s.cg("system/other")
	for _, a := range []string{"127.0.0.5:80", "127.0.0.6:80", "[::1]:80"} {
		s.ns.serve(t, a)
	}
	must(t, l.AttachRoot())
	for _, a := range []string{"127.0.0.5", "::1"} {
		must(t, l.Put(LockedRow{netip.MustParseAddr(a), 42}))
	}
	must(t, l.Put(KubeletRow{CgroupID: s.id(kubelet)}))
	must(t, l.SetConfig(Config{KubeletLevels: levelMask(t, kubelet), ProbeLock: true}))
	events, err := l.Events()
	must(t, err)
	defer events.Close()

	s.expect("kubelet", s.cg("system/kubelet/child"), 0,
		[2]string{"tcp 127.0.0.5:80", "ok"}, [2]string{"udp 127.0.0.5:80", "ok"}, [2]string{"tcp [::1]:80", "ok"}, [2]string{"udpc [::1]:80", "ok"},
		[2]string{"born tcp4", fmt.Sprintf("mark=%#x dev=0", KubeletMark)}, [2]string{"born udp6", fmt.Sprintf("mark=%#x dev=0", KubeletMark)})
	c := counts(t, l)
	if c[ReasonProbeAllowed] != 4 || c[ReasonProbeRefused] != 0 || c[ReasonKubeletMarked] < 6 {
		t.Errorf("counters after kubelet: %v", c)
	}
	s.expect("root elsewhere", other, 0,
		[2]string{"tcp 127.0.0.5:80", "EPERM"}, [2]string{"udp 127.0.0.5:80", "EPERM"}, [2]string{"udpc 127.0.0.5:80", "EPERM"},
		[2]string{"tcp [::1]:80", "EPERM"}, [2]string{"udp [::1]:80", "EPERM"}, [2]string{"state [::ffff:127.0.0.5]:80", "EPERM mark=0x0 dev=0"},
		[2]string{"udp [::ffff:127.0.0.5]:80", "EPERM"},
		[2]string{"tcp 127.0.0.6:80", "ok"}, [2]string{"born tcp4", "mark=0x0 dev=0"})
	if c = counts(t, l); c[ReasonProbeRefused] != 7 {
		t.Errorf("%d refusals counted, want 7", c[ReasonProbeRefused])
	}
	ev, err := events.Next(time.Now().Add(time.Minute))
	must(t, err)
	if ev.Reason != ReasonProbeRefused || ev.NetworkID != 42 || ev.Addr != netip.MustParseAddrPort("127.0.0.5:80") ||
		ev.CgroupID != s.id(other) || ev.Protocol != unix.IPPROTO_TCP || ev.TGID == 0 || ev.SinceBoot == 0 {
		t.Errorf("event %+v", ev)
	}

	// In a network namespace of its own, a process meets no lock (there: no route or listener).
	s.expect("another namespace", other, 0, [2]string{"netns", "ok"}, [2]string{"tcp 127.0.0.5:80", "ENETUNREACH"})

	// kubelet restarts in a cgroup of another id.
	again := s.cg("system/kubelet-2")
	must(t, l.Put(KubeletRow{CgroupID: s.id(again)}))
	s.expect("restarted kubelet", again, 0, [2]string{"tcp 127.0.0.5:80", "ok"})
	must(t, l.Delete(KubeletRow{CgroupID: s.id(again)}))
	s.expect("after the row went", again, 0, [2]string{"tcp 127.0.0.5:80", "EPERM"})

	// A kubelet whose cgroup is everybody's is known by its process.
	p := s.start(other, 0, "wait", "tcp 127.0.0.5:80")
	defer p.stop()
	p.next()
	must(t, l.Put(KubeletRow{TGID: uint32(p.cmd.Process.Pid)}))
	p.proceed()
	if p.next(); p.next() != "ok" {
		t.Error("kubelet by process id is refused")
	}
}

// What needs no VRF device: marks, refusals of setsockopt, other namespaces.
func TestRootPodMarks(t *testing.T) {
	s := newSandbox(t)
	l := s.load()
	pod, ctr := s.cg("kubepods/burstable/podU-1"), s.cg("kubepods/burstable/podU-1/ctr")
	s.ns.serve(t, "127.0.0.1:80")
	s.ns.serve(t, "[::1]:80")
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod)}))
	early := s.start(ctr, 0, "wait", "tcp 127.0.0.1:80")
	early.next()
	must(t, l.AttachPod(pod, "U-1", PodRow{NetworkID: 5, Mark: 0x1005}))
	must(t, l.Put(DestRow{5, netip.MustParsePrefix("10.5.0.0/16")}))

	for _, uid := range []int{0, 65534} {
		pairs := [][2]string{
			{"born tcp4", "mark=0x1005 dev=0"}, {"born tcp6", "mark=0x1005 dev=0"}, {"born udp4", "mark=0x1005 dev=0"}, {"born udp6", "mark=0x1005 dev=0"},
			{"set mark", "EPERM"}, {"set device", "EPERM"}, {"set ifindex", "EPERM"}, {"set ifindex6", "EPERM"}, {"set unicast", "EPERM"},
			{"set unicast6", "EPERM"}, {"set pktinfo6", "EPERM"}, {"set harmless", "ok"},
			{"tcp 127.0.0.1:80", "ok"}, {"udp 127.0.0.1:80", "ok"}, {"tcp [::1]:80", "ok"}, {"udpc [::1]:80", "ok"},
			// No VRF yet: closed rather than in the default VRF.
			{"listen 0.0.0.0:8080", "EPERM"}, {"listen [::]:8080", "EPERM"}, {"state 10.5.0.1:9", "EPERM mark=0x1005 dev=0"},
			{"state [::ffff:10.5.0.1]:9", "EPERM mark=0x1005 dev=0"},
		}
		if uid == 0 {
			pairs = append(pairs, [2]string{"born raw4", "mark=0x1005 dev=0"}, [2]string{"born raw6", "mark=0x1005 dev=0"})
		}
		s.expect(fmt.Sprintf("uid %d", uid), ctr, uid, pairs...)
	}
	s.expect("own namespace", ctr, 0, [2]string{"netns", "ok"}, [2]string{"born tcp4", "mark=0x0 dev=0"}, [2]string{"set mark", "ok"})
	s.expect("outside the pod", s.cg("kubepods/burstable/podU-2"), 0, [2]string{"born tcp4", "mark=0x0 dev=0"}, [2]string{"set mark", "ok"})
	big := s.start(ctr, 0, "bigopt")
	if got := big.next(); got == "EFAULT" {
		t.Error("an option longer than a page fails with EFAULT through the hook")
	}
	early.proceed()
	if early.next(); early.next() != "ok" {
		t.Error("a process older than the attachment lost loopback")
	}
	// Go's listeners try MPTCP first, so a refused one is refused twice.
	if c := counts(t, l); c[ReasonSetMark] != 2 || c[ReasonSetDevice] != 12 || c[ReasonVRFMissing] < 8 || c[ReasonPodUnknown] != 0 {
		t.Errorf("counters: %v", c)
	}
	must(t, l.DetachPod("U-1"))
	must(t, l.DetachPod("U-1"))
	s.expect("detached", ctr, 0, [2]string{"born tcp4", "mark=0x0 dev=0"})
}

// A restarted agent finds everything attached, and no program id changes.
func TestRootRestartKeepsIDs(t *testing.T) {
	s := newSandbox(t)
	pod := s.cg("podA")
	l := s.load()
	must(t, l.AttachRoot())
	must(t, l.AttachPod(pod, "A", PodRow{NetworkID: 1, Mark: 0x1001}))
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod)}))
	before, err := l.ProgramIDs()
	must(t, err)
	l.Close() // what kill -9 leaves: the pins

	s.expect("no agent", pod, 0, [2]string{"born tcp4", "mark=0x1001 dev=0"})
	l = s.load()
	after, err := l.ProgramIDs()
	must(t, err)
	if !maps.Equal(before, after) {
		t.Errorf("program ids changed: %v, then %v", before, after)
	}
	as, err := l.Attachments()
	must(t, err)
	if len(as) != 2 || as[0].PodUID != "A" || as[0].CgroupID != s.id(pod) || len(as[0].Missing)+len(as[1].Missing) != 0 || as[1].PodUID != "" {
		t.Errorf("attachments after restart: %+v", as)
	}
	if cfg, err := l.Config(); err != nil || cfg.PodLevels == 0 {
		t.Errorf("configuration lost: %+v, %v", cfg, err)
	}

	// A link removed by hand is made again; the others stay.
	must(t, unpinLink(l.pin("links", "pod_A", "bh_vrf_create")))
	as, _ = l.Attachments()
	if !slices.Equal(as[0].Missing, []string{"bh_vrf_create"}) {
		t.Errorf("missing after removing one: %+v", as[0])
	}
	must(t, l.AttachPod(pod, "A", PodRow{NetworkID: 1, Mark: 0x1001}))
	s.expect("repaired", pod, 0, [2]string{"born tcp4", "mark=0x1001 dev=0"})

	// The pod goes; its links are dead; a pod of the same UID comes back elsewhere.
	removeTree(pod)
	waitFor(t, func() bool { as, _ = l.Attachments(); return as[0].CgroupID == 0 })
	pod = s.cg("podA-again")
	must(t, l.AttachPod(pod, "A", PodRow{NetworkID: 1, Mark: 0x1001}))
	s.expect("recreated", pod, 0, [2]string{"born tcp4", "mark=0x1001 dev=0"})
	must(t, Purge(s.pinRoot))
	s.expect("purged", pod, 0, [2]string{"born tcp4", "mark=0x0 dev=0"})
	if _, err := os.Stat(s.pinRoot); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pins left after Purge: %v", err)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("did not happen within a minute")
}

// A map whose layout changes is replaced, its rows carried over, its programs
// swapped by link update, with no socket born unmarked in between.
func TestRootNewMapLayout(t *testing.T) {
	s := newSandbox(t)
	pod := s.cg("podA")
	l := s.load()
	must(t, l.AttachPod(pod, "A", PodRow{NetworkID: 1, Mark: 0x1001, VRFIfindex: 3}))
	must(t, l.Put(LockedRow{netip.MustParseAddr("10.0.0.1"), 1}))
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod)}))
	l.Close()

	// Put an older layout in the pin's place: one field fewer, another size.
	spec := &ebpf.MapSpec{Name: "bh_pods", Type: ebpf.Hash, KeySize: 8, ValueSize: 12, MaxEntries: 128}
	old, err := ebpf.NewMap(spec)
	must(t, err)
	must(t, old.Put(s.id(pod), []byte{1, 0, 0, 0, 1, 0x10, 0, 0, 3, 0, 0, 0}))
	must(t, replacePin(l.pin("maps", "bh_pods"), old.Pin))
	old.Close()
	// And a left-over of a crash in the middle.
	junk, err := ebpf.NewMap(spec)
	must(t, err)
	must(t, junk.Pin(l.pin("maps", "bh_pods_new")))
	junk.Close()

	stop := make(chan struct{})
	bad := make(chan error, 1)
	go func() {
		defer close(bad)
		for {
			select {
			case <-stop:
				return
			default:
			}
			as, err := l.linkDirs()
			if err != nil || len(as) != 1 {
				bad <- fmt.Errorf("%v %v", as, err)
				return
			}
		}
	}()
	l2 := s.load()
	close(stop)
	if err := <-bad; err != nil {
		t.Error(err)
	}
	rows, err := l2.Rows()
	must(t, err)
	if len(rows) != 2 || !slices.Contains(rows, Row(PodRow{CgroupID: s.id(pod), NetworkID: 1, Mark: 0x1001, VRFIfindex: 3})) {
		t.Errorf("rows after the change: %v", rows)
	}
	s.expect("after the change", pod, 0, [2]string{"born tcp4", "mark=0x1001 dev=0"})
	ids, _ := l2.ProgramIDs()
	l2.Close()
	l3 := s.load()
	if again, _ := l3.ProgramIDs(); !maps.Equal(ids, again) {
		t.Errorf("not settled: %v, then %v", ids, again)
	}
	if entries, _ := os.ReadDir(l3.pin("maps")); len(entries) != len(l3.maps) {
		t.Errorf("pins: %v", entries)
	}
}

// The gapless upgrade: links are updated again and again while sockets are born.
func TestRootUpdateWithoutGap(t *testing.T) {
	s := newSandbox(t)
	l := s.load()
	must(t, l.AttachRoot())
	must(t, l.Put(LockedRow{netip.MustParseAddr("127.0.0.5"), 1}))
	must(t, l.SetConfig(Config{ProbeLock: true}))
	ops := make([][2]string, 300)
	for i := range ops {
		ops[i] = [2]string{"udpc 127.0.0.5:9", "EPERM"}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.expect("during updates", s.cg("other"), 0, ops...)
	}()
	n := 0
	for alive := true; alive; n++ {
		must(t, os.Remove(l.pin("progs", "bh_prb_conn4"))) // forces a new program
		next := s.load()
		next.Close()
		select {
		case <-done:
			alive = false
		default:
		}
	}
	t.Logf("%d program generations during 300 connects, none let through", n)
}

// What the hooks cost a connect, by wall clock: the best of 200 rounds with
// nothing attached, against the same with both sets attached, 10,000 locked
// addresses, and the destination outside the network (the common case: inside,
// only a socket's first connect asks). Reported always, judged only where
// asked: an emulated or busy machine says nothing about it.
func TestRootHookCost(t *testing.T) {
	s := newSandbox(t)
	l := s.load()
	pod := s.cg("kubepods/burstable/podA")
	loop := func() int {
		t.Helper()
		p := s.start(pod, 0, "loop connect 127.0.0.1:9")
		defer p.stop()
		n, err := strconv.Atoi(p.next())
		must(t, err)
		return n
	}
	for i := range 10000 {
		must(t, l.Put(LockedRow{netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}), 1}))
	}
	for i := range 20 { // networks with a host-network pod on this node
		must(t, l.Put(DestRow{uint32(i), netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 24)}))
		must(t, l.Put(DestRow{uint32(i), netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 7: byte(i)}), 64)}))
	}
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod), KubeletLevels: 4, ProbeLock: true}))
	judge := func(what string, base, with int) {
		t.Logf("%s: %d ns a connect, %d ns without: %d ns", what, with, base, with-base)
	}
	base := loop()
	cfg, err := l.readConfig()
	must(t, err)
	must(t, l.writeConfig(vrfbindBhConfig{}))
	must(t, l.AttachRoot())
	t.Logf("a hook that does nothing: %d ns", loop()-base)
	must(t, l.writeConfig(cfg))
	judge("probe allowance", base, loop())
	must(t, l.DetachRoot())
	must(t, l.AttachPod(pod, "A", PodRow{NetworkID: 1, Mark: 0x1001}))
	judge("VRF binding", base, loop())
	must(t, l.AttachRoot())
	judge("both", base, loop())
}
