// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// AttachDoor writes an interface's row and attaches the guard's programs for its
// kind. It writes the row first, because the programs read it. A repeated call
// repairs missing links and changes nothing else. The interface must be in the
// calling thread's network namespace.
func (l *Loader) AttachDoor(row DoorRow) error {
	if row.Ifindex <= 0 {
		return fmt.Errorf("guard interface %d: not an interface index", row.Ifindex)
	}
	if err := l.Put(row); err != nil {
		return err
	}
	set := l.hooks(doorHooks(row.Kind))
	if len(set) == 0 {
		return nil // Features reports the missing programs
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.tcx {
		return l.attachFilters(row.Ifindex, set)
	}
	dir := doorPrefix + strconv.Itoa(row.Ifindex)
	if err := l.makeDir("links", dir); err != nil {
		return err
	}
	var errs []error
	for _, name := range set {
		if err := l.attachTCX(l.pin("links", dir, name), name, row.Ifindex); err != nil {
			errs = append(errs, fmt.Errorf("attach %s to interface %d: %w", name, row.Ifindex, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	// Detach programs of the kind that the interface had before.
	for _, name := range l.names("links", dir) {
		if _, known := l.attachTypes[name]; known && !doorHooks(row.Kind)(name) {
			errs = append(errs, unpinLink(l.pin("links", dir, name)))
		}
	}
	return errors.Join(errs...)
}

// DetachDoor detaches the guard from an interface. The caller deletes the row.
func (l *Loader) DetachDoor(ifindex int) error {
	if !l.tcx {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.detachFilters(ifindex)
	}
	return l.detach(doorPrefix + strconv.Itoa(ifindex))
}

func (l *Loader) attachTCX(path, name string, ifindex int) error {
	return l.ensureLink(path, func(path string) error {
		have, err := readLink(path)
		if err == nil && have.ifindex != ifindex {
			err = errElsewhere
		}
		if err != nil {
			return err
		}
		return l.updateLink(path, name)
	}, func() (link.Link, error) {
		// At the head, so that no other program can pass a packet before the guard sees it.
		return link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: l.programs[name], Attach: l.attachTypes[name], Anchor: link.Head()})
	})
}

// doorAttachment reads the pinned links of one interface.
func (l *Loader) doorAttachment(dir string, ids map[string]ebpf.ProgramID) (Attachment, error) {
	a := Attachment{Gone: true}
	var err error
	if a.Ifindex, err = strconv.Atoi(strings.TrimPrefix(dir, doorPrefix)); err != nil {
		return a, fmt.Errorf("pin directory %s: its name has no interface index", l.pin("links", dir))
	}
	for _, name := range l.names("links", dir) {
		have, err := readLink(l.pin("links", dir, name))
		if err != nil || have.ifindex != a.Ifindex {
			continue
		}
		a.Gone = false
		if id, ok := ids[name]; ok && id == have.program {
			a.Programs = append(a.Programs, name)
		}
	}
	return a, nil
}

// DoorPrograms lists the loaded programs for a kind of interface, sorted by name.
func (l *Loader) DoorPrograms(k DoorKind) []string { return l.hooks(doorHooks(k)) }

// haveTCX reports whether the kernel has tcx links (Linux 6.6).
func haveTCX() bool {
	// Query loopback, which always exists: the kernel rejects an unknown attach type.
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXEgress})
	return err == nil
}
