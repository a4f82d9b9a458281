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

// hookSet names the programs of one attachment, by the prefix of their names.
type hookSet string

const (
	vrfHooks   hookSet = "bh_vrf_"
	probeHooks hookSet = "bh_prb_"
)

// openPrograms fills l.programs: the pinned program where code and maps are
// unchanged, else a new one. It returns the names of the new ones.
func (l *Loader) openPrograms(specs []*ebpf.CollectionSpec) []string {
	var fresh []string
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
				f.Reason = reason(err)
				l.log.Warn("eBPF program not available", "program", name, "err", err)
			} else {
				l.programs[name] = p
				if isNew {
					fresh = append(fresh, name)
				}
			}
			l.features = append(l.features, f)
		}
	}
	return fresh
}

func (l *Loader) openProgram(cs *ebpf.CollectionSpec, name string) (*ebpf.Program, bool, error) {
	spec := cs.Programs[name]
	if p, err := ebpf.LoadPinnedProgram(l.pin("progs", name), nil); err == nil {
		if l.unchanged(p, spec) {
			return p, false, nil
		}
		p.Close()
	} else if !errors.Is(err, os.ErrNotExist) {
		l.log.Warn("pinned program cannot be opened; loading it anew", "program", name, "err", err)
	}
	// One collection per program: a hook this kernel lacks costs that hook alone.
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
	return coll.DetachProgram(name), true, nil
}

// unchanged: the same instructions on the same maps. Then the pinned program
// stays, and with it its id and its links.
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

func (l *Loader) pinPrograms(names []string) error {
	var errs []error
	for _, n := range names {
		errs = append(errs, replacePin(l.pin("progs", n), l.programs[n].Pin))
	}
	return errors.Join(errs...)
}

// hooks returns the loaded programs of a set, sorted by name.
func (l *Loader) hooks(set hookSet) []string {
	var out []string
	for n := range l.programs {
		if strings.HasPrefix(n, string(set)) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// reason is the last line of a verifier log, or the error itself.
func reason(err error) string {
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
