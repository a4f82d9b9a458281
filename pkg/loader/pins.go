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

// Pins may be of another version, earlier or later, or broken. What cannot be
// used gives way to what this version makes, once that is there, and holds up
// nothing else. What an attached program judges by is asked of the kernel where
// its pin is no use, so that nothing is open in between.

const (
	ourPrefix = "bh_"
	// newSuffix is of a pin that is about to take another's place.
	newSuffix = "_new"
)

// place makes the link that is pinned at path do what fits checks, or puts one
// that create makes in its place. The new one is there before the old one goes.
// One that cannot be pinned at path stays beside it: attached all the same.
func (l *Loader) place(path string, fits func(path string) error, create func() (link.Link, error)) error {
	why := fits(path)
	if why == nil {
		return nil
	}
	if !errors.Is(why, os.ErrNotExist) && !errors.Is(why, errElsewhere) && !errors.Is(why, unix.ENOLINK) {
		l.log.Warn("pinned link cannot be used; putting another in its place", "pin", path, "err", why)
	}
	beside := path + newSuffix
	if fits(beside) != nil {
		lnk, err := create()
		if err != nil {
			return fmt.Errorf("create link: %w", err)
		}
		defer lnk.Close()
		if err := unpinLink(beside); err != nil {
			return err
		}
		if err := lnk.Pin(beside); err != nil {
			return fmt.Errorf("pin link at %s: %w", beside, err)
		}
	}
	old, err := link.LoadPinnedLink(path, nil)
	if err == nil {
		defer old.Close()
	}
	if err := movePin(beside, path); err != nil {
		return err
	}
	if old != nil {
		_ = old.Detach() // somebody else may hold it open; it fails for a dead one
	}
	return nil
}

// replacePin pins something over what is pinned at path. bpffs knows rename, so
// there is no moment without a pin.
func replacePin(path string, pin func(string) error) error {
	beside := path + newSuffix
	if err := os.RemoveAll(beside); err != nil {
		return fmt.Errorf("remove left-over pin %s: %w", beside, err)
	}
	if err := pin(beside); err != nil {
		return fmt.Errorf("pin %s: %w", beside, err)
	}
	return movePin(beside, path)
}

func movePin(from, to string) error {
	err := os.Rename(from, to)
	if st, no := os.Lstat(to); err != nil && no == nil && st.IsDir() {
		// Not of any version: pins of ours are no directories.
		if err = os.RemoveAll(to); err == nil {
			err = os.Rename(from, to)
		}
	}
	if err != nil {
		return fmt.Errorf("pin %s cannot be replaced: %w: take away what is there by hand", to, err)
	}
	return nil
}

// makeDir makes a directory of pins, in the place of anything else.
func (l *Loader) makeDir(elem ...string) error {
	path := l.pin(elem...)
	if st, err := os.Lstat(path); err == nil && !st.IsDir() {
		l.log.Warn("something else is where a directory of pins belongs; removing it", "pin", path)
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("make way for the pin directory %s: %w: take away what is there by hand", path, err)
		}
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("create pin directory %s: %w", path, err)
	}
	return nil
}

// unpinLink removes the pin and detaches even when someone else holds the link open.
func unpinLink(path string) error {
	if lnk, err := link.LoadPinnedLink(path, nil); err == nil {
		_ = lnk.Detach() // fails for a dead link, which is what we want anyway
		lnk.Close()
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove link pin %s: %w: take it away by hand", path, err)
	}
	return nil
}

// mapsInForce are the maps that programs use which are pinned or linked: where
// a map's own pin is no use, they hold the rows that count.
func (l *Loader) mapsInForce() map[string]*ebpf.Map {
	programs := map[ebpf.ProgramID]bool{}
	for _, dir := range l.names("links") {
		for _, name := range l.names("links", dir) {
			if have, err := readLink(l.pin("links", dir, name)); err == nil {
				programs[have.program] = true
			}
		}
	}
	ids := map[ebpf.MapID]bool{}
	note := func(p *ebpf.Program, err error) {
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
		note(ebpf.LoadPinnedProgram(l.pin("progs", name), nil))
	}
	for id := range programs {
		note(ebpf.NewProgramFromID(id))
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

// attached tells whether any link of ours is there.
func (l *Loader) attached() bool {
	return slices.ContainsFunc(l.names("links"), func(dir string) bool { return len(l.names("links", dir)) > 0 })
}

// names are the entries of a directory of pins; none if it cannot be read.
func (l *Loader) names(elem ...string) []string {
	entries, _ := os.ReadDir(l.pin(elem...))
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// dropUnknownPins removes pins of maps and programs that this version does not
// have. What is attached goes on with them.
func (l *Loader) dropUnknownPins() {
	drop := func(dir string, known func(string) bool) {
		for _, name := range l.names(dir) {
			path := l.pin(dir, name)
			switch {
			case known(name):
			case !strings.HasPrefix(name, ourPrefix):
				l.log.Warn("what is pinned here is not ours; left as it is", "pin", path)
			default:
				l.log.Info("removing pin of another version", "pin", path)
				if err := os.RemoveAll(path); err != nil {
					l.log.Warn("pin of another version cannot be removed; take it away by hand", "pin", path, "err", err)
				}
			}
		}
	}
	drop("maps", func(n string) bool { return l.maps[n] != nil })
	drop("progs", func(n string) bool { return l.programs[n] != nil })
}

// pinAll pins maps and programs over the former ones.
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

// Settle ends what began with Load. The caller has written all rows and attached
// all that should be: until then what another version left is better than
// nothing. What was not ready to take over is pinned now, and programs of ours
// that this version does not know, as a later one leaves them when it is taken
// back, are detached.
func (l *Loader) Settle() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settled {
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
	l.settled = err == nil
	return err
}

func (l *Loader) dropLinks(dir string, known func(name string) bool) error {
	var errs []error
	for _, name := range l.names("links", dir) {
		path := l.pin("links", dir, name)
		switch {
		case known(name):
		case !strings.HasPrefix(name, ourPrefix):
			l.log.Warn("what is pinned here is not ours; left as it is", "pin", path)
		default:
			l.log.Info("detaching a program of another version", "pin", path)
			errs = append(errs, unpinLink(path))
		}
	}
	return errors.Join(errs...)
}
