// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// hookSet reports whether a program belongs to an attachment, by its name.
type hookSet func(name string) bool

func vrfHooks(name string) bool { return strings.HasPrefix(name, "bh_vrf_") }

func rootHooks(name string) bool {
	return strings.HasPrefix(name, "bh_prb_") || strings.HasPrefix(name, "bh_lsm_") || packetHooks(name)
}

// packetHooks are the programs of the root cgroup that check packets of sockets.
func packetHooks(name string) bool { return name == "bh_grd_send" || name == "bh_grd_recv" }

func doorHooks(k DoorKind) hookSet {
	var names []string
	switch k {
	case DoorPort, DoorVRF, DoorDefault, DoorLink:
		names = []string{"bh_grd_port"}
	case DoorPod, DoorLocked:
		names = []string{"bh_grd_pod", "bh_grd_from"}
	case DoorOwn, DoorLoopback:
		names = []string{"bh_grd_own"}
	}
	return func(name string) bool { return slices.Contains(names, name) }
}

// openPrograms fills l.programs with the pinned program if its code and maps are
// unchanged, and with a new one otherwise. It returns the names of the new programs
// to pin. Programs that use a map which lacks rows go to l.unready instead.
func (l *Loader) openPrograms(specs []*ebpf.CollectionSpec) []string {
	var created []string
	for _, cs := range specs {
		names := make([]string, 0, len(cs.Programs))
		for n := range cs.Programs {
			names = append(names, n)
		}
		slices.Sort(names)
		for _, name := range names {
			p, isNew, err := l.openProgram(cs, name)
			f := Feature{Name: "program " + name, OK: err == nil}
			if err != nil {
				f.Reason = verifierReason(err)
				l.log.Warn("eBPF program not available", "program", name, "error", err)
			} else {
				l.programs[name] = p
				if slices.ContainsFunc(mapsOf(cs.Programs[name]), func(m string) bool { return slices.Contains(l.unfilled, m) }) {
					l.unready[name] = true
				} else if isNew {
					created = append(created, name)
				}
			}
			l.features = append(l.features, f)
		}
	}
	return created
}

func (l *Loader) openProgram(cs *ebpf.CollectionSpec, name string) (*ebpf.Program, bool, error) {
	spec := cs.Programs[name]
	l.attachTypes[name] = spec.AttachType
	if reason := l.inactive(spec); reason != "" {
		return nil, false, errors.New(reason)
	}
	pinned, err := ebpf.LoadPinnedProgram(l.pin("progs", name), nil)
	if err == nil {
		if l.unchanged(pinned, spec) {
			return pinned, false, nil
		}
		defer func() {
			if pinned != nil {
				pinned.Close()
			}
		}()
	} else if !errors.Is(err, os.ErrNotExist) {
		l.log.Warn("pinned program cannot be opened; loading a new one", "program", name, "error", err)
	}
	// One collection per program: a hook that this kernel lacks fails that program only.
	one := &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{}, Programs: map[string]*ebpf.ProgramSpec{name: spec}, Types: cs.Types, ByteOrder: cs.ByteOrder}
	repl := map[string]*ebpf.Map{}
	for _, m := range mapsOf(spec) {
		one.Maps[m], repl[m] = cs.Maps[m], l.maps[m]
	}
	coll, err := ebpf.NewCollectionWithOptions(one, ebpf.CollectionOptions{MapReplacements: repl})
	if err != nil {
		return nil, false, fmt.Errorf("load program %s: %w", name, err)
	}
	defer coll.Close()
	if pinned != nil && sameProgram(pinned, coll.Programs[name]) {
		p := pinned
		pinned = nil
		return p, false, nil
	}
	return coll.DetachProgram(name), true, nil
}

// inactive returns the reason if the kernel would load the program but never call it.
func (l *Loader) inactive(spec *ebpf.ProgramSpec) string {
	if spec.AttachType != ebpf.AttachLSMMac {
		return ""
	}
	raw, err := os.ReadFile(l.opts.LSMPath)
	if err != nil {
		return fmt.Sprintf("cannot read whether BPF LSM is enabled: %v", err)
	}
	if !slices.Contains(strings.Split(strings.TrimSpace(string(raw)), ","), "bpf") {
		return fmt.Sprintf("BPF LSM is disabled: start the kernel with lsm=%s,bpf", strings.TrimSpace(string(raw)))
	}
	return ""
}

// sameProgram reports whether two loaded programs have the same instructions and
// maps. CO-RE relocations change the instructions at load time, so programs that
// have them can be compared only after loading.
func sameProgram(a, b *ebpf.Program) bool {
	x, err := a.Info()
	if err != nil {
		return false
	}
	y, err := b.Info()
	if err != nil || x.Tag != y.Tag {
		return false
	}
	have, ok1 := x.MapIDs()
	want, ok2 := y.MapIDs()
	slices.Sort(have)
	slices.Sort(want)
	return ok1 && ok2 && slices.Equal(have, want)
}

// unchanged reports whether the pinned program has the instructions of spec and
// uses the opened maps.
func (l *Loader) unchanged(p *ebpf.Program, spec *ebpf.ProgramSpec) bool {
	info, err := p.Info()
	if err != nil || spec.Compatible(info) != nil {
		return false
	}
	have, ok := info.MapIDs()
	if !ok {
		return false
	}
	var want []ebpf.MapID
	for _, n := range mapsOf(spec) {
		mi, err := l.maps[n].Info()
		if err != nil {
			return false
		}
		id, _ := mi.ID()
		want = append(want, id)
	}
	slices.Sort(have)
	slices.Sort(want)
	return slices.Equal(have, want)
}

func mapsOf(spec *ebpf.ProgramSpec) []string {
	var out []string
	for _, ins := range spec.Instructions {
		if ins.IsLoadFromMap() && !slices.Contains(out, ins.Reference()) {
			out = append(out, ins.Reference())
		}
	}
	return out
}

// hooks returns the loaded programs of a set, sorted by name.
func (l *Loader) hooks(set hookSet) []string {
	var out []string
	for n := range l.programs {
		if set(n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// verifierReason returns the last line of the verifier log, or else the error itself.
func verifierReason(err error) string {
	var v *ebpf.VerifierError
	if errors.As(err, &v) {
		for i := len(v.Log) - 1; i >= 0; i-- {
			if s := strings.TrimSpace(v.Log[i]); s != "" && !strings.HasPrefix(s, "processed ") {
				return fmt.Sprintf("%v (%s)", v.Cause, s)
			}
		}
	}
	return err.Error()
}
