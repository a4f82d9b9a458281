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

// pinned is a sandbox where an agent ran: a locked address, a pod of a network
// and a guarded interface.
type pinned struct {
	*sandbox
	pod string
	row PodRow
	cfg Config
}

func newPinned(t *testing.T) *pinned {
	p := &pinned{sandbox: newSandbox(t), row: PodRow{NetworkID: 1, Mark: 0x1001}}
	p.pod = p.cg("podA")
	p.cfg = Config{PodLevels: levelMask(t, p.pod), ProbeLock: true}
	l := p.sandbox.load()
	p.reconcile(l)
	l.Close()
	return p
}

// load is the agent's next start: that nothing at all can be loaded is no reason
// to skip then.
func (p *pinned) load() *Loader {
	p.t.Helper()
	l, err := Load(p.options())
	must(p.t, err)
	p.t.Cleanup(l.Close)
	return l
}

// reconcile does what pkg/hostnet does, in its order.
func (p *pinned) reconcile(l *Loader) {
	p.t.Helper()
	must(p.t, l.SetConfig(p.cfg))
	must(p.t, l.Put(LockedRow{netip.MustParseAddr("127.0.0.5"), 1}))
	must(p.t, l.AttachRoot())
	must(p.t, l.AttachPod(p.pod, "A", p.row))
	must(p.t, p.ns.do(func() error { return l.AttachDoor(DoorRow{Ifindex: 1, Kind: DoorLoopback}) }))
	must(p.t, l.Settle())
}

// enforced checks that the address is locked and the pod's sockets are marked.
func (p *pinned) enforced(when string) {
	p.t.Helper()
	p.expect(when, p.cg("other"), 0, [2]string{"udpc 127.0.0.5:9", "EPERM"})
	p.expect(when, p.pod, 0, [2]string{"born tcp4", "mark=0x1001 dev=0"})
}

// missing are the programs that Attachments wants attached again.
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

// spoil puts something of no use in a pin's place; what was pinned there is gone.
func (p *pinned) spoil(path, how string) {
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
		p.linkTo(p.cgroup, path)
	}
}

// linkTo pins a link of a program that lets everything pass, as another version
// or somebody else may have left it. It is held open, so that a pin that is
// merely removed leaves it attached.
func (p *pinned) linkTo(cgroup, path string) link.Link {
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

func onCgroup(t *testing.T, l link.Link) bool {
	t.Helper()
	info, err := l.Info()
	must(t, err)
	return info.Cgroup().CgroupId != 0
}

// A pinned link that is no use holds up nothing else: the others are moved to new
// programs at once, and it is put right when it is attached again.
func TestRootBrokenLinks(t *testing.T) {
	for _, how := range []string{"nothing", "a map", "a directory", "a program", "another hook's link"} {
		t.Run(how, func(t *testing.T) {
			p := newPinned(t)
			links := []string{"root/bh_prb_conn4", "pod_A/bh_vrf_create", "if_1/bh_grd_own"}
			var want []string
			for _, l := range links {
				p.spoil(filepath.Join(p.pinRoot, "links", l), how)
				want = append(want, filepath.Base(l))
			}
			must(t, os.RemoveAll(filepath.Join(p.pinRoot, "progs"))) // another version: all programs are new
			l := p.load()
			for name := range l.programs {
				if l.isLSM(name) { // such links cannot be updated
					want = append(want, name)
				}
			}
			slices.Sort(want)
			if got := p.missing(l); !slices.Equal(got, want) {
				t.Errorf("missing after the start: %v, want %v", got, want)
			}
			p.reconcile(l)
			if got := p.missing(l); len(got) != 0 {
				t.Errorf("missing after all was attached again: %v", got)
			}
			p.enforced("attached again")
			for _, link := range links {
				if _, err := readLink(l.pin("links", link)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A pin that cannot even be replaced is named, with what to do, and is all that
// fails: its hook is attached by another, and no more often than once.
func TestRootBlockedPins(t *testing.T) {
	p := newPinned(t)
	path := filepath.Join(p.pinRoot, "links/root/bh_prb_conn4")
	p.spoil(path, "a map")
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
			t.Errorf("the map's pin and what to do are not told, or more failed: %s", f)
		}
		err := l.AttachRoot()
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "by hand") || strings.Contains(err.Error(), "conn6") {
			t.Errorf("the pin and what to do are not told, or more failed: %v", err)
		}
		if got := p.missing(l); !slices.Equal(got, []string{"bh_prb_conn4"}) {
			t.Errorf("missing: %v", got)
		}
		p.enforced("beside the pin")
		beside, err := readLink(path + newSuffix)
		must(t, err)
		if id != 0 && beside.program != id {
			t.Errorf("it was attached once more")
		}
		id = beside.program
		l.Close()
	}
	for _, path := range blocked {
		must(t, unix.Unmount(path, unix.MNT_DETACH))
	}
	l := p.load()
	p.reconcile(l)
	p.enforced("after somebody took it away")
	if got := l.names("links", rootDir); slices.Contains(got, "bh_prb_conn4"+newSuffix) || len(p.missing(l)) != 0 {
		t.Errorf("left: %v, missing: %v", got, p.missing(l))
	}
}

// The map whose pin is gone or no use is found by the programs that use it:
// nothing is open, not even until the rows are written again.
func TestRootBrokenMaps(t *testing.T) {
	for _, how := range []string{"nothing", "a program", "a directory"} {
		t.Run(how, func(t *testing.T) {
			p := newPinned(t)
			l := p.load()
			before, err := l.Rows()
			must(t, err)
			for name := range l.maps {
				p.spoil(l.pin("maps", name), how)
			}
			ids, err := l.ProgramIDs()
			must(t, err)
			l.Close()
			l = p.load()
			p.enforced("right after the start")
			if after, err := l.Rows(); err != nil || len(after) != len(before) {
				t.Errorf("rows %v became %v (%v)", before, after, err)
			}
			if got := p.missing(l); len(got) != 0 {
				t.Errorf("missing: %v", got)
			}
			if now, _ := l.ProgramIDs(); !maps.Equal(ids, now) {
				t.Errorf("programs were made anew: %v, then %v", ids, now)
			}
			for name := range l.maps {
				m, err := ebpf.LoadPinnedMap(l.pin("maps", name), nil)
				must(t, err)
				m.Close()
			}
		})
	}
}

// Taken back from a later version whose maps cannot be read by this one: what is
// attached goes on with its rows until this version's are written, even if the
// agent is killed before that, and then gives way.
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
			for i := range 2 { // killed in between
				l = p.load()
				p.enforced(fmt.Sprintf("start %d", i))
				if len(p.missing(l)) == 0 {
					t.Error("no program is to be attached again, though a map has no rows")
				}
				if i == 0 {
					l.Close()
				}
			}
			p.reconcile(l)
			p.enforced("taken over")
			if got := p.missing(l); len(got) != 0 {
				t.Errorf("missing: %v", got)
			}
			ids, _ := l.ProgramIDs()
			l.Close()
			l = p.load()
			if again, _ := l.ProgramIDs(); !maps.Equal(ids, again) || len(p.missing(l)) != 0 {
				t.Errorf("not settled: %v, then %v; missing %v", ids, again, p.missing(l))
			}
		})
	}
}

// What a later version attached and this one does not know goes when all that
// this one attaches is there; what is not ours stays.
func TestRootUnknownPins(t *testing.T) {
	p := newPinned(t)
	links := filepath.Join(p.pinRoot, "links")
	must(t, os.Mkdir(filepath.Join(links, "ns_5"), 0o700))
	ours := []link.Link{p.linkTo(p.cgroup, filepath.Join(links, "root/bh_prb_later")), p.linkTo(p.cgroup, filepath.Join(links, "ns_5/bh_later")),
		p.linkTo(p.cgroup, filepath.Join(links, "root/bh_prb_conn4_new")), p.linkTo(p.pod, filepath.Join(links, "pod_A/bh_vrf_later"))}
	others := p.linkTo(p.cgroup, filepath.Join(links, "root/somebodys"))
	for _, name := range []string{"maps/bh_later", "maps/somebodys", "progs/somebodys"} {
		p.spoil(filepath.Join(p.pinRoot, name), "a map")
	}
	p.spoil(filepath.Join(p.pinRoot, "progs/bh_later"), "a directory")
	l := p.load()
	for i, lnk := range ours {
		if !onCgroup(t, lnk) {
			t.Errorf("link %d was detached before all was attached", i)
		}
	}
	p.reconcile(l)
	p.enforced("settled")
	for i, lnk := range ours {
		if onCgroup(t, lnk) {
			t.Errorf("link %d of a version that is gone is still attached", i)
		}
	}
	if !onCgroup(t, others) {
		t.Error("somebody else's link was detached")
	}
	for name, want := range map[string]bool{"links/ns_5": false, "links/root/bh_prb_later": false, "links/pod_A/bh_vrf_later": false, "links/root/bh_prb_conn4_new": false,
		"links/root/somebodys": true, "maps/bh_later": false, "maps/somebodys": true, "progs/bh_later": false, "progs/somebodys": true} {
		if _, err := os.Lstat(filepath.Join(p.pinRoot, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func passAll() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}
}
