// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A pin may be broken or of another version, older or newer. The Loader creates the
// replacement of an unusable pin before it removes the pin, and such a pin blocks
// nothing else. If a map's pin is unusable, the Loader gets the map from the
// programs that use it, so that enforcement has no gap.

const (
	ourPrefix = "bh_"
	// newSuffix marks a pin that is about to replace another.
	newSuffix = "_new"
)

// ensureLink keeps the link pinned at path if check accepts or repairs it, and
// otherwise replaces it by one that create returns. The new link is attached
// before the old one is detached. A link that cannot be pinned at path stays
// attached and pinned at path + newSuffix.
func (l *Loader) ensureLink(path string, check func(path string) error, create func() (link.Link, error)) error {
	err := check(path)
	if err == nil {
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errElsewhere) && !errors.Is(err, unix.ENOLINK) {
		l.log.Warn("pinned link cannot be used; replacing it", "pin", path, "error", err)
	}
	temporary := path + newSuffix
	if check(temporary) != nil {
		lnk, err := create()
		if err != nil {
			return fmt.Errorf("create link: %w", err)
		}
		defer lnk.Close()
		if err := unpinLink(temporary); err != nil {
			return err
		}
		if err := lnk.Pin(temporary); err != nil {
			return fmt.Errorf("pin link at %s: %w", temporary, err)
		}
	}
	old, err := link.LoadPinnedLink(path, nil)
	if err == nil {
		defer old.Close()
	}
	if err := movePin(temporary, path); err != nil {
		return err
	}
	if old != nil {
		_ = old.Detach() // another process may hold the link open; fails for a dead link
	}
	return nil
}

// replacePin replaces the pin at path. It pins under a temporary name and renames,
// so that a pin always exists.
func replacePin(path string, pin func(string) error) error {
	temporary := path + newSuffix
	if err := os.RemoveAll(temporary); err != nil {
		return fmt.Errorf("remove leftover pin %s: %w", temporary, err)
	}
	if err := pin(temporary); err != nil {
		return fmt.Errorf("pin %s: %w", temporary, err)
	}
	return movePin(temporary, path)
}

func movePin(from, to string) error {
	err := os.Rename(from, to)
	if st, statErr := os.Lstat(to); err != nil && statErr == nil && st.IsDir() {
		// No version of Bulkhead creates a directory here.
		if err = os.RemoveAll(to); err == nil {
			err = os.Rename(from, to)
		}
	}
	if err != nil {
		return fmt.Errorf("pin %s cannot be replaced: %w: remove it by hand", to, err)
	}
	return nil
}

// makeDir creates a directory of pins and removes anything else from its path.
func (l *Loader) makeDir(elem ...string) error {
	path := l.pin(elem...)
	if st, err := os.Lstat(path); err == nil && !st.IsDir() {
		l.log.Warn("not a directory of pins; removing it", "pin", path)
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove the file in place of the pin directory %s: %w: remove it by hand", path, err)
		}
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("create pin directory %s: %w", path, err)
	}
	return nil
}

// unpinLink removes the pin and detaches the link, even if another process holds it open.
func unpinLink(path string) error {
	if lnk, err := link.LoadPinnedLink(path, nil); err == nil {
		_ = lnk.Detach() // fails for a dead link, which needs no detaching
		lnk.Close()
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove link pin %s: %w: remove it by hand", path, err)
	}
	return nil
}

// usedMaps returns, by name, the maps that pinned or linked programs use. If a map's
// own pin is unusable, this is how its rows are found. Of maps with the same name
// it returns the newest.
func (l *Loader) usedMaps() map[string]*ebpf.Map {
	programs := map[ebpf.ProgramID]bool{}
	for _, dir := range l.names("links") {
		for _, name := range l.names("links", dir) {
			if have, err := readLink(l.pin("links", dir, name)); err == nil {
				programs[have.program] = true
			}
		}
	}
	ids := map[ebpf.MapID]bool{}
	addMapsOf := func(p *ebpf.Program, err error) {
		if err != nil {
			return
		}
		defer p.Close()
		if info, err := p.Info(); err == nil {
			used, _ := info.MapIDs()
			for _, id := range used {
				ids[id] = true
			}
		}
	}
	for _, name := range l.names("progs") {
		addMapsOf(ebpf.LoadPinnedProgram(l.pin("progs", name), nil))
	}
	for id := range programs {
		addMapsOf(ebpf.NewProgramFromID(id))
	}
	out, newest := map[string]*ebpf.Map{}, map[string]ebpf.MapID{}
	for id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		info, err := m.Info()
		if err != nil || id < newest[info.Name] {
			m.Close()
			continue
		}
		if old := out[info.Name]; old != nil {
			old.Close()
		}
		out[info.Name], newest[info.Name] = m, id
	}
	return out
}

// anyAttached reports whether any link is pinned.
func (l *Loader) anyAttached() bool {
	return slices.ContainsFunc(l.names("links"), func(dir string) bool { return len(l.names("links", dir)) > 0 })
}

// names lists the entries of a directory of pins; it is empty if the directory cannot be read.
func (l *Loader) names(elem ...string) []string {
	entries, _ := os.ReadDir(l.pin(elem...))
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// dropUnknownPins removes pins of maps and programs that this version does not
// have. Attached programs keep using them.
func (l *Loader) dropUnknownPins() {
	drop := func(dir string, known func(string) bool) {
		for _, name := range l.names(dir) {
			path := l.pin(dir, name)
			switch {
			case known(name):
			case !strings.HasPrefix(name, ourPrefix):
				l.log.Warn("pin is not Bulkhead's; leaving it", "pin", path)
			default:
				l.log.Info("removing pin of another version", "pin", path)
				if err := os.RemoveAll(path); err != nil {
					l.log.Warn("cannot remove the pin of another version; remove it by hand", "pin", path, "error", err)
				}
			}
		}
	}
	drop("maps", func(n string) bool { return l.maps[n] != nil })
	drop("progs", func(n string) bool { return l.programs[n] != nil })
}

// pinAll pins maps and programs and replaces the old pins.
func (l *Loader) pinAll(maps, programs []string) error {
	var errs []error
	for _, n := range programs {
		errs = append(errs, replacePin(l.pin("progs", n), l.programs[n].Pin))
	}
	for _, n := range maps {
		errs = append(errs, replacePin(l.pin("maps", n), l.maps[n].Pin))
	}
	return errors.Join(errs...)
}

// FinishTakeover completes the takeover that Load began. The caller must have written all
// rows and attached everything; until then programs of another version are better
// than none. FinishTakeover pins the maps and programs that lacked rows, and detaches
// Bulkhead's programs that this version does not know, which a downgrade leaves.
func (l *Loader) FinishTakeover() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.takeoverFinished {
		return nil
	}
	errs := []error{l.pinAll(l.unfilled, slices.Collect(maps.Keys(l.unready)))}
	for _, dir := range l.names("links") {
		if knownDir(dir) {
			errs = append(errs, l.dropLinks(dir, func(name string) bool { _, ok := l.attachTypes[name]; return ok }))
			continue
		}
		errs = append(errs, l.dropLinks(dir, func(string) bool { return false }))
		if len(l.names("links", dir)) == 0 {
			errs = append(errs, os.RemoveAll(l.pin("links", dir)))
		}
	}
	err := errors.Join(errs...)
	l.takeoverFinished = err == nil
	return err
}

func (l *Loader) dropLinks(dir string, known func(name string) bool) error {
	var errs []error
	for _, name := range l.names("links", dir) {
		path := l.pin("links", dir, name)
		switch {
		case known(name):
		case !strings.HasPrefix(name, ourPrefix):
			l.log.Warn("pin is not Bulkhead's; leaving it", "pin", path)
		default:
			l.log.Info("detaching a program of another version", "pin", path)
			errs = append(errs, unpinLink(path))
		}
	}
	return errors.Join(errs...)
}
