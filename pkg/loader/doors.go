// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// AttachDoor writes an interface's row and attaches the guard that fits its
// kind: the row first, as the programs judge by it. Doing it again repairs what
// is missing and changes nothing else. The interface is of the calling thread's
// network namespace.
func (l *Loader) AttachDoor(row DoorRow) error {
	if row.Ifindex <= 0 {
		return fmt.Errorf("guard interface %d: not an interface index", row.Ifindex)
	}
	if err := l.Put(row); err != nil {
		return err
	}
	set := l.hooks(doorHooks(row.Kind))
	if len(set) == 0 {
		return nil // what this kernel lacks is a missing feature, which is told
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.tcx {
		return l.attachFilters(row.Ifindex, set)
	}
	dir := doorPrefix + strconv.Itoa(row.Ifindex)
	if err := os.MkdirAll(l.pin("links", dir), 0o700); err != nil {
		return fmt.Errorf("create pin directory for %s: %w", dir, err)
	}
	var errs []error
	for _, name := range set {
		if err := l.attachTCX(l.pin("links", dir, name), name, row.Ifindex); err != nil {
			errs = append(errs, fmt.Errorf("attach %s to interface %d: %w", name, row.Ifindex, err))
		}
	}
	// One that was another kind before keeps no program of that.
	entries, err := os.ReadDir(l.pin("links", dir))
	errs = append(errs, err)
	for _, e := range entries {
		if !slices.Contains(set, e.Name()) {
			errs = append(errs, unpinLink(l.pin("links", dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// DetachDoor takes the guard from an interface. Its row is deleted apart.
func (l *Loader) DetachDoor(ifindex int) error {
	if !l.tcx {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.detachFilters(ifindex)
	}
	return l.detach(doorPrefix + strconv.Itoa(ifindex))
}

func (l *Loader) attachTCX(path, name string, ifindex int) error {
	prog := l.programs[name]
	have, err := linkIfindex(path)
	switch {
	case err == nil && have == ifindex:
		_, err := updateLink(path, prog)
		if !errors.Is(err, unix.ENOLINK) {
			return err
		}
		fallthrough
	case err == nil:
		if err := unpinLink(path); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	// At the head: nothing that is attached beside it can let a packet past it.
	lnk, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: prog, Attach: l.attachTypes[name], Anchor: link.Head()})
	if err != nil {
		return fmt.Errorf("create link: %w", err)
	}
	defer lnk.Close()
	if err := lnk.Pin(path); err != nil {
		return fmt.Errorf("pin link at %s: %w", path, err)
	}
	return nil
}

// linkIfindex is the interface a pinned link is on; 0: it is gone.
func linkIfindex(path string) (int, error) {
	lnk, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return 0, fmt.Errorf("open pinned link %s: %w", path, err)
	}
	defer lnk.Close()
	info, err := lnk.Info()
	if err != nil {
		return 0, fmt.Errorf("read pinned link %s: %w", path, err)
	}
	tcx := info.TCX()
	if tcx == nil {
		return 0, fmt.Errorf("pinned link %s is no tcx link", path)
	}
	return int(tcx.Ifindex), nil
}

// doorAttachment reads the pinned links of one interface.
func (l *Loader) doorAttachment(dir string) (Attachment, error) {
	a := Attachment{Gone: true}
	var err error
	if a.Ifindex, err = strconv.Atoi(strings.TrimPrefix(dir, doorPrefix)); err != nil {
		return a, fmt.Errorf("pin directory %s: its name holds no interface index", l.pin("links", dir))
	}
	entries, err := os.ReadDir(l.pin("links", dir))
	if err != nil {
		return a, fmt.Errorf("list pinned links of %s: %w", dir, err)
	}
	for _, e := range entries {
		have, err := linkIfindex(l.pin("links", dir, e.Name()))
		if err != nil {
			return a, err
		}
		if have == a.Ifindex {
			a.Gone = false
			a.Programs = append(a.Programs, e.Name())
		}
	}
	return a, nil
}

// DoorPrograms are the loaded programs that guard an interface of a kind, sorted.
func (l *Loader) DoorPrograms(k DoorKind) []string { return l.hooks(doorHooks(k)) }

// haveTCX tells whether programs can be attached to interfaces by link (Linux 6.6).
func haveTCX() bool {
	// Asked of an interface that cannot be: the kernel looks at the attach type first.
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXEgress})
	return err == nil
}
