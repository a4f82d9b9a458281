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
		PodRow{77, 5, 0x50000, 9, false, true, false}, PodRow{78, 0, 0, 0, false, false, true},
		DestRow{5, netip.MustParsePrefix("10.5.0.0/16")}, DestRow{5, netip.MustParsePrefix("fd05::/64")}, DestRow{6, netip.MustParsePrefix("10.5.0.0/16")},
		ClusterIPRow{netip.MustParseAddr("10.96.0.7"), 5}, ClusterIPRow{netip.MustParseAddr("fd96::7"), 5},
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
			t.Errorf("Rows lacks %s", r)
		}
		must(t, l.Delete(r))
		must(t, l.Delete(r)) // deleting a missing row is no error
	}
	if have, _ = l.Rows(); len(have) != 0 {
		t.Errorf("remaining rows: %v", have)
	}
}

// Only kubelet reaches a locked address: in both IP families, by TCP and UDP, and by
// IPv4-mapped addresses. Other network namespaces are not affected.
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
		[2]string{"create tcp4", fmt.Sprintf("mark=%#x dev=0", KubeletMark)}, [2]string{"create udp6", fmt.Sprintf("mark=%#x dev=0", KubeletMark)})
	c := counts(t, l)
	if c[ReasonProbeAllowed] != 4 || c[ReasonProbeRefused] != 0 || c[ReasonKubeletMarked] < 6 {
		t.Errorf("counters after kubelet: %v", c)
	}
	s.expect("root outside kubelet", other, 0,
		[2]string{"tcp 127.0.0.5:80", "EPERM"}, [2]string{"udp 127.0.0.5:80", "EPERM"}, [2]string{"udpc 127.0.0.5:80", "EPERM"},
		[2]string{"tcp [::1]:80", "EPERM"}, [2]string{"udp [::1]:80", "EPERM"}, [2]string{"state [::ffff:127.0.0.5]:80", "EPERM mark=0x0 dev=0"},
		[2]string{"udp [::ffff:127.0.0.5]:80", "EPERM"},
		[2]string{"tcp 127.0.0.6:80", "ok"}, [2]string{"create tcp4", "mark=0x0 dev=0"})
	if c = counts(t, l); c[ReasonProbeRefused] != 7 {
		t.Errorf("%d refusals counted, want 7", c[ReasonProbeRefused])
	}
	ev, err := events.Next(time.Now().Add(time.Minute))
	must(t, err)
	if ev.Reason != ReasonProbeRefused || ev.NetworkID != 42 || ev.Addr != netip.MustParseAddrPort("127.0.0.5:80") ||
		ev.CgroupID != s.id(other) || ev.Protocol != unix.IPPROTO_TCP || ev.TGID == 0 || ev.SinceBoot == 0 {
		t.Errorf("event %+v", ev)
	}

	// A process in its own network namespace is not refused; it has no route there.
	s.expect("another namespace", other, 0, [2]string{"unshare", "ok"}, [2]string{"tcp 127.0.0.5:80", "ENETUNREACH"})

	// Kubelet restarts in a cgroup with another id.
	restarted := s.cg("system/kubelet-2")
	must(t, l.Put(KubeletRow{CgroupID: s.id(restarted)}))
	s.expect("restarted kubelet", restarted, 0, [2]string{"tcp 127.0.0.5:80", "ok"})
	must(t, l.Delete(KubeletRow{CgroupID: s.id(restarted)}))
	s.expect("after the row is deleted", restarted, 0, [2]string{"tcp 127.0.0.5:80", "EPERM"})

	// A kubelet that shares its cgroup is identified by its process id.
	p := s.start(other, 0, "wait", "tcp 127.0.0.5:80")
	defer p.stop()
	p.next()
	must(t, l.Put(KubeletRow{TGID: uint32(p.cmd.Process.Pid)}))
	p.proceed()
	if p.next(); p.next() != "ok" {
		t.Error("kubelet identified by its process id is refused")
	}
}

// VRF binding without a VRF device: sockets are marked, setsockopt is refused, and
// other network namespaces are not affected.
func TestRootPodMarks(t *testing.T) {
	s := newSandbox(t)
	l := s.load()
	pod, ctr := s.cg("kubepods/burstable/podU-1"), s.cg("kubepods/burstable/podU-1/ctr")
	s.ns.serve(t, "127.0.0.1:80")
	s.ns.serve(t, "[::1]:80")
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod)}))
	early := s.start(ctr, 0, "wait", "tcp 127.0.0.1:80")
	early.next()
	must(t, l.AttachPod(pod, "U-1", PodRow{NetworkID: 5, Mark: 0x50000}))
	must(t, l.Put(DestRow{5, netip.MustParsePrefix("10.5.0.0/16")}))

	for _, uid := range []int{0, 65534} {
		pairs := [][2]string{
			{"create tcp4", "mark=0x50000 dev=0"}, {"create tcp6", "mark=0x50000 dev=0"}, {"create udp4", "mark=0x50000 dev=0"}, {"create udp6", "mark=0x50000 dev=0"},
			{"set mark", "EPERM"}, {"set device", "EPERM"}, {"set ifindex", "EPERM"}, {"set ifindex6", "EPERM"}, {"set unicast", "EPERM"},
			{"set unicast6", "EPERM"}, {"set pktinfo6", "EPERM"}, {"set long-pktinfo6", "EPERM"}, {"set harmless", "ok"},
			{"tcp 127.0.0.1:80", "ok"}, {"udp 127.0.0.1:80", "ok"}, {"tcp [::1]:80", "ok"}, {"udpc [::1]:80", "ok"},
			// Without a VRF device these calls are refused: nothing uses the default VRF.
			{"listen 0.0.0.0:8080", "EPERM"}, {"listen [::]:8080", "EPERM"}, {"state 10.5.0.1:9", "EPERM mark=0x50000 dev=0"},
			{"state [::ffff:10.5.0.1]:9", "EPERM mark=0x50000 dev=0"},
		}
		if uid == 0 {
			pairs = append(pairs, [2]string{"create raw4", "mark=0x50000 dev=0"}, [2]string{"create raw6", "mark=0x50000 dev=0"})
		}
		s.expect(fmt.Sprintf("uid %d", uid), ctr, uid, pairs...)
	}
	s.expect("own namespace", ctr, 0, [2]string{"unshare", "ok"}, [2]string{"create tcp4", "mark=0x0 dev=0"}, [2]string{"set mark", "ok"})
	s.expect("outside the pod", s.cg("kubepods/burstable/podU-2"), 0, [2]string{"create tcp4", "mark=0x0 dev=0"}, [2]string{"set mark", "ok"})
	big := s.start(ctr, 0, "bigopt")
	if got := big.next(); got == "EFAULT" {
		t.Error("an option longer than a page fails with EFAULT through the hook")
	}
	early.proceed()
	if early.next(); early.next() != "ok" {
		t.Error("a process older than the attachment cannot reach loopback")
	}
	// Go's listeners try MPTCP first, so each refused listen counts twice.
	if c := counts(t, l); c[ReasonSetMark] != 2 || c[ReasonSetDevice] != 14 || c[ReasonVRFMissing] < 8 || c[ReasonPodUnknown] != 0 {
		t.Errorf("counters: %v", c)
	}
	must(t, l.DetachPod("U-1"))
	must(t, l.DetachPod("U-1"))
	s.expect("detached", ctr, 0, [2]string{"create tcp4", "mark=0x0 dev=0"})
}

// After a restart of the agent everything is attached, and no program id changes.
func TestRootRestartKeepsIDs(t *testing.T) {
	s := newSandbox(t)
	pod := s.cg("podA")
	l := s.load()
	must(t, l.AttachRoot())
	must(t, l.AttachPod(pod, "A", PodRow{NetworkID: 1, Mark: 0x10000}))
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod)}))
	before, err := l.ProgramIDs()
	must(t, err)
	l.Close() // like kill -9, leaves the pins

	s.expect("no agent", pod, 0, [2]string{"create tcp4", "mark=0x10000 dev=0"})
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

	// AttachPod recreates a link that was removed by hand.
	must(t, unpinLink(l.pin("links", "pod_A", "bh_vrf_create")))
	as, _ = l.Attachments()
	if !slices.Equal(as[0].Missing, []string{"bh_vrf_create"}) {
		t.Errorf("missing after removing one: %+v", as[0])
	}
	must(t, l.AttachPod(pod, "A", PodRow{NetworkID: 1, Mark: 0x10000}))
	s.expect("repaired", pod, 0, [2]string{"create tcp4", "mark=0x10000 dev=0"})

	// The pod's cgroup is deleted and its links are dead; a pod with the same UID gets
	// another cgroup.
	removeTree(pod)
	waitFor(t, func() bool { as, _ = l.Attachments(); return as[0].CgroupID == 0 })
	pod = s.cg("podA-again")
	must(t, l.AttachPod(pod, "A", PodRow{NetworkID: 1, Mark: 0x10000}))
	s.expect("recreated", pod, 0, [2]string{"create tcp4", "mark=0x10000 dev=0"})
	must(t, Purge(s.pinRoot))
	s.expect("purged", pod, 0, [2]string{"create tcp4", "mark=0x0 dev=0"})
	if _, err := os.Stat(s.pinRoot); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pins remain after Purge: %v", err)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("condition not met within a minute")
}

// A map with an old layout is replaced and its rows are copied. The new programs
// replace the old ones by link update: the links exist all the time.
func TestRootNewMapLayout(t *testing.T) {
	s := newSandbox(t)
	pod := s.cg("podA")
	l := s.load()
	must(t, l.AttachPod(pod, "A", PodRow{NetworkID: 1, Mark: 0x10000, VRFIfindex: 3}))
	must(t, l.Put(LockedRow{netip.MustParseAddr("10.0.0.1"), 1}))
	must(t, l.SetConfig(Config{PodLevels: levelMask(t, pod)}))
	l.Close()

	// Replace the pinned map by one with an older layout: one field fewer, fewer entries.
	spec := &ebpf.MapSpec{Name: "bh_pods", Type: ebpf.Hash, KeySize: 8, ValueSize: 12, MaxEntries: 128}
	old, err := ebpf.NewMap(spec)
	must(t, err)
	must(t, old.Put(s.id(pod), []byte{1, 0, 0, 0, 0, 0, 1, 0, 3, 0, 0, 0}))
	must(t, replacePin(l.pin("maps", "bh_pods"), old.Pin))
	old.Close()
	// Add a leftover pin of a crashed agent.
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
	if len(rows) != 2 || !slices.Contains(rows, Row(PodRow{CgroupID: s.id(pod), NetworkID: 1, Mark: 0x10000, VRFIfindex: 3})) {
		t.Errorf("rows after the change: %v", rows)
	}
	s.expect("after the change", pod, 0, [2]string{"create tcp4", "mark=0x10000 dev=0"})
	ids, _ := l2.ProgramIDs()
	l2.Close()
	l3 := s.load()
	if again, _ := l3.ProgramIDs(); !maps.Equal(ids, again) {
		t.Errorf("a restart changed the program ids: %v, then %v", ids, again)
	}
	if entries, _ := os.ReadDir(l3.pin("maps")); len(entries) != len(l3.maps) {
		t.Errorf("pins: %v", entries)
	}
}

// An upgrade has no gap: connects are refused while links are updated repeatedly.
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
	for running := true; running; n++ {
		must(t, os.Remove(l.pin("progs", "bh_prb_conn4"))) // forces a new program
		next := s.load()
		next.Close()
		select {
		case <-done:
			running = false
		default:
		}
	}
	t.Logf("%d program updates during %d connects", n, len(ops))
}

// Logs the cost of the hooks for a connect: with nothing attached, and with each set
// of programs attached and 10,000 locked addresses. The destination is outside the
// network, which is the expensive case: inside, only a socket's first connect does
// the lookups. There is no limit to check, because an emulated or busy machine gives
// no useful figures.
func TestRootHookCost(t *testing.T) {
	s := newSandbox(t)
	l := s.load()
	pod := s.cg("kubepods/burstable/podA")
	measure := func() int {
		t.Helper()
		p := s.start(pod, 0, "bench connect 127.0.0.1:9")
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
	report := func(what string, base, with int) {
		t.Logf("%s: %d ns per connect, %d ns without: %d ns", what, with, base, with-base)
	}
	base := measure()
	cfg, err := l.readConfig()
	must(t, err)
	must(t, l.writeConfig(vrfbindBhConfig{}))
	must(t, l.AttachRoot())
	t.Logf("an empty hook: %d ns", measure()-base)
	must(t, l.writeConfig(cfg))
	report("probe allowance", base, measure())
	must(t, l.DetachRoot())
	must(t, l.AttachPod(pod, "A", PodRow{NetworkID: 1, Mark: 0x10000}))
	report("VRF binding", base, measure())
	must(t, l.AttachRoot())
	report("both", base, measure())
}
