// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// pinned is a sandbox with the pins of a former agent, which locked an address,
// attached a pod and guarded an interface.
type pinned struct {
	*sandbox
	pod string
	row PodRow
	cfg Config
}

func newPinned(t *testing.T) *pinned {
	p := &pinned{sandbox: newSandbox(t), row: PodRow{NetworkID: 1, Mark: 0x10000}}
	p.pod = p.cg("podA")
	p.cfg = Config{PodLevels: levelMask(t, p.pod), ProbeLock: true}
	l := p.sandbox.load()
	p.reconcile(l)
	l.Close()
	return p
}

// load restarts the agent. Unlike sandbox.load it never skips the test, because the
// former agent did load.
func (p *pinned) load() *Loader {
	p.t.Helper()
	l, err := Load(p.options())
	must(p.t, err)
	p.t.Cleanup(l.Close)
	return l
}

// reconcile does what pkg/hostnet does, in the same order.
func (p *pinned) reconcile(l *Loader) {
	p.t.Helper()
	must(p.t, l.SetConfig(p.cfg))
	must(p.t, l.Put(LockedRow{netip.MustParseAddr("127.0.0.5"), 1}))
	must(p.t, l.AttachRoot())
	must(p.t, l.AttachPod(p.pod, "A", p.row))
	must(p.t, p.ns.do(func() error { return l.AttachDoor(DoorRow{Ifindex: 1, Kind: DoorLoopback}) }))
	must(p.t, l.FinishTakeover())
}

// checkEnforced checks that the address is locked and the pod's sockets are marked.
func (p *pinned) checkEnforced(when string) {
	p.t.Helper()
	p.expect(when, p.cg("other"), 0, [2]string{"udpc 127.0.0.5:9", "EPERM"})
	p.expect(when, p.pod, 0, [2]string{"create tcp4", "mark=0x10000 dev=0"})
}

// missing lists the programs that Attachments reports as not attached.
func (p *pinned) missing(l *Loader) []string {
	p.t.Helper()
	as, err := l.Attachments()
	must(p.t, err)
	var out []string
	for _, a := range as {
		out = append(out, a.Missing...)
		if a.Ifindex != 0 {
			for _, name := range l.DoorPrograms(DoorLoopback) {
				if !slices.Contains(a.Programs, name) {
					out = append(out, name)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

func (p *pinned) newMap(spec *ebpf.MapSpec) *ebpf.Map {
	p.t.Helper()
	m, err := ebpf.NewMap(spec)
	must(p.t, err)
	p.t.Cleanup(func() { m.Close() })
	return m
}

// breakPin removes a pin and what it held, and puts something unusable in its place.
func (p *pinned) breakPin(path, how string) {
	p.t.Helper()
	must(p.t, unpinLink(path))
	junk := p.newMap(&ebpf.MapSpec{Name: "junk", Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	switch how {
	case "nothing":
	case "a map":
		must(p.t, junk.Pin(path))
	case "a directory":
		must(p.t, os.Mkdir(path, 0o700))
		must(p.t, junk.Pin(filepath.Join(path, "inside")))
	case "a program":
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "GPL", Instructions: passAll()})
		must(p.t, err)
		defer prog.Close()
		must(p.t, prog.Pin(path))
	case "another hook's link":
		p.pinLink(p.cgroup, path)
	}
}

// pinLink pins a link of a program that passes everything, as another version or
// another product may leave it. The test keeps the link open, so that removing the
// pin alone does not detach it.
func (p *pinned) pinLink(cgroup, path string) link.Link {
	p.t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetEgress, License: "GPL", Instructions: passAll()})
	must(p.t, err)
	defer prog.Close()
	lnk, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupInetEgress, Program: prog})
	must(p.t, err)
	p.t.Cleanup(func() { lnk.Close() })
	must(p.t, lnk.Pin(path))
	return lnk
}

func isAttached(t *testing.T, l link.Link) bool {
	t.Helper()
	info, err := l.Info()
	must(t, err)
	return info.Cgroup().CgroupId != 0
}

// An unusable pinned link blocks nothing else: the other links get the new programs
// at once, and the next attachment repairs the unusable one.
func TestRootBrokenLinks(t *testing.T) {
	for _, how := range []string{"nothing", "a map", "a directory", "a program", "another hook's link"} {
		t.Run(how, func(t *testing.T) {
			p := newPinned(t)
			links := []string{"root/bh_prb_conn4", "pod_A/bh_vrf_create", "if_1/bh_grd_own"}
			var want []string
			for _, l := range links {
				p.breakPin(filepath.Join(p.pinRoot, "links", l), how)
				want = append(want, filepath.Base(l))
			}
			must(t, os.RemoveAll(filepath.Join(p.pinRoot, "progs"))) // another version: all programs are new
			l := p.load()
			for name := range l.programs {
				if l.isLSM(name) { // the kernel cannot update LSM links
					want = append(want, name)
				}
			}
			slices.Sort(want)
			if got := p.missing(l); !slices.Equal(got, want) {
				t.Errorf("missing after the start: %v, want %v", got, want)
			}
			p.reconcile(l)
			if got := p.missing(l); len(got) != 0 {
				t.Errorf("missing after the reconcile: %v", got)
			}
			p.checkEnforced("after the reconcile")
			for _, link := range links {
				if _, err := readLink(l.pin("links", link)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// For a pin that cannot be replaced, the error names the pin and the remedy, and
// nothing else fails: the program is attached by another link, and only once.
func TestRootBlockedPins(t *testing.T) {
	p := newPinned(t)
	path := filepath.Join(p.pinRoot, "links/root/bh_prb_conn4")
	p.breakPin(path, "a map")
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	blocked := []string{path, filepath.Join(p.pinRoot, "maps/bh_locked")}
	for _, path := range blocked {
		must(t, unix.Mount(file, path, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	}
	must(t, os.Remove(filepath.Join(p.pinRoot, "links/root/bh_prb_conn6")))
	var id ebpf.ProgramID
	for range 3 {
		l := p.load()
		if f := l.Missing(); !strings.Contains(f, blocked[1]) || !strings.Contains(f, "by hand") || strings.Contains(f, "maps/bh_pods") {
			t.Errorf("Missing does not name the map's pin and the remedy, or more failed: %s", f)
		}
		err := l.AttachRoot()
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "by hand") || strings.Contains(err.Error(), "conn6") {
			t.Errorf("the error does not name the pin and the remedy, or more failed: %v", err)
		}
		if got := p.missing(l); !slices.Equal(got, []string{"bh_prb_conn4"}) {
			t.Errorf("missing: %v", got)
		}
		p.checkEnforced("while the pin cannot be replaced")
		temporary, err := readLink(path + newSuffix)
		must(t, err)
		if id != 0 && temporary.program != id {
			t.Errorf("the program was attached again")
		}
		id = temporary.program
		l.Close()
	}
	for _, path := range blocked {
		must(t, unix.Unmount(path, unix.MNT_DETACH))
	}
	l := p.load()
	p.reconcile(l)
	p.checkEnforced("after the pin can be replaced")
	if got := l.names("links", rootDir); slices.Contains(got, "bh_prb_conn4"+newSuffix) || len(p.missing(l)) != 0 {
		t.Errorf("remaining pins: %v, missing: %v", got, p.missing(l))
	}
}

// A map whose pin is missing or unusable is found through the programs that use it:
// enforcement has no gap, not even until the rows are written again.
func TestRootBrokenMaps(t *testing.T) {
	for _, how := range []string{"nothing", "a program", "a directory"} {
		t.Run(how, func(t *testing.T) {
			p := newPinned(t)
			l := p.load()
			before, err := l.Rows()
			must(t, err)
			for name := range l.maps {
				p.breakPin(l.pin("maps", name), how)
			}
			ids, err := l.ProgramIDs()
			must(t, err)
			l.Close()
			l = p.load()
			p.checkEnforced("right after the start")
			if after, err := l.Rows(); err != nil || len(after) != len(before) {
				t.Errorf("rows %v became %v (%v)", before, after, err)
			}
			if got := p.missing(l); len(got) != 0 {
				t.Errorf("missing: %v", got)
			}
			if now, _ := l.ProgramIDs(); !maps.Equal(ids, now) {
				t.Errorf("programs were loaded again: %v, then %v", ids, now)
			}
			for name := range l.maps {
				m, err := ebpf.LoadPinnedMap(l.pin("maps", name), nil)
				must(t, err)
				m.Close()
			}
		})
	}
}

// A downgrade from a version whose maps this version cannot read: the attached
// programs keep their rows until this version's rows are written, even if the agent
// is killed before that, and are then replaced.
func TestRootDowngrade(t *testing.T) {
	for name, later := range map[string]*ebpf.MapSpec{
		"bh_locked": {Type: ebpf.Hash, KeySize: 24, ValueSize: 4, MaxEntries: 8},
		"bh_config": {Type: ebpf.Hash, KeySize: 4, ValueSize: 64, MaxEntries: 8},
		"bh_pods":   {Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 10000}, // has more rows than fit
		"bh_doors":  {Type: ebpf.Array, KeySize: 4, ValueSize: 128, MaxEntries: 8},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPinned(t)
			later.Name = name
			m := p.newMap(later)
			if name == "bh_pods" {
				for i := range later.MaxEntries {
					must(t, m.Put(uint64(i+1)<<32, make([]byte, 16)))
				}
			}
			path := filepath.Join(p.pinRoot, "maps", name)
			must(t, os.Remove(path))
			must(t, m.Pin(path))
			var l *Loader
			for i := range 2 { // the agent is killed in between
				l = p.load()
				p.checkEnforced(fmt.Sprintf("start %d", i))
				if len(p.missing(l)) == 0 {
					t.Error("all programs are attached although a map lacks rows")
				}
				if i == 0 {
					l.Close()
				}
			}
			p.reconcile(l)
			p.checkEnforced("after the reconcile")
			if got := p.missing(l); len(got) != 0 {
				t.Errorf("missing: %v", got)
			}
			ids, _ := l.ProgramIDs()
			l.Close()
			l = p.load()
			if again, _ := l.ProgramIDs(); !maps.Equal(ids, again) || len(p.missing(l)) != 0 {
				t.Errorf("a restart changed the program ids: %v, then %v; missing %v", ids, again, p.missing(l))
			}
		})
	}
}

// FinishTakeover detaches programs of a later version that this version does not know, after
// this version's programs are attached. It leaves pins that are not Bulkhead's.
func TestRootUnknownPins(t *testing.T) {
	p := newPinned(t)
	links := filepath.Join(p.pinRoot, "links")
	must(t, os.Mkdir(filepath.Join(links, "ns_5"), 0o700))
	ours := []link.Link{p.pinLink(p.cgroup, filepath.Join(links, "root/bh_prb_later")), p.pinLink(p.cgroup, filepath.Join(links, "ns_5/bh_later")),
		p.pinLink(p.cgroup, filepath.Join(links, "root/bh_prb_conn4_new")), p.pinLink(p.pod, filepath.Join(links, "pod_A/bh_vrf_later"))}
	foreign := p.pinLink(p.cgroup, filepath.Join(links, "root/foreign"))
	for _, name := range []string{"maps/bh_later", "maps/foreign", "progs/foreign"} {
		p.breakPin(filepath.Join(p.pinRoot, name), "a map")
	}
	p.breakPin(filepath.Join(p.pinRoot, "progs/bh_later"), "a directory")
	l := p.load()
	for i, lnk := range ours {
		if !isAttached(t, lnk) {
			t.Errorf("link %d was detached before the reconcile", i)
		}
	}
	p.reconcile(l)
	p.checkEnforced("after the reconcile")
	for i, lnk := range ours {
		if isAttached(t, lnk) {
			t.Errorf("link %d of the later version is still attached", i)
		}
	}
	if !isAttached(t, foreign) {
		t.Error("a foreign link was detached")
	}
	for name, want := range map[string]bool{"links/ns_5": false, "links/root/bh_prb_later": false, "links/pod_A/bh_vrf_later": false, "links/root/bh_prb_conn4_new": false,
		"links/root/foreign": true, "maps/bh_later": false, "maps/foreign": true, "progs/bh_later": false, "progs/foreign": true} {
		if _, err := os.Lstat(filepath.Join(p.pinRoot, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func passAll() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}
}
