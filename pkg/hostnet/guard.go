// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"slices"
	"sync"

	"bulkhead/pkg/loader"
)

// guards are the interfaces that Guard guards beside a reconcile that runs: a pod that is connected must not wait for
// it. Its lock is held while one interface is guarded, or a reconcile runs one operation on an interface.
type guards struct {
	mu sync.Mutex
	// rows are those of Guard since the last Reconcile began, by index: the inputs may be older.
	rows map[int]loader.DoorRow
	// changed are the interfaces since the reconcile that runs began: it leaves them alone, as what it knows of them is older.
	changed map[int]bool
}

func newGuards() *guards { return &guards{rows: map[int]loader.DoorRow{}, changed: map[int]bool{}} }

// newInputs returns the doors of a Reconcile's inputs, with the interfaces that they lack. The inputs may have been read before the
// last calls of Guard, but not before those that preceded the last Reconcile.
func (g *guards) newInputs(doors []loader.DoorRow) []loader.DoorRow {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, row := range g.rows {
		if !slices.ContainsFunc(doors, func(r loader.DoorRow) bool { return r.Ifindex == row.Ifindex }) {
			doors = withDoor(doors, row)
		}
	}
	clear(g.rows)
	return doors
}

// reconcileBegins is called before a reconcile reads the kernel's state. It returns the doors of the last inputs, with what was
// guarded since.
func (g *guards) reconcileBegins(doors []loader.DoorRow) []loader.DoorRow {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, row := range g.rows {
		doors = withDoor(doors, row)
	}
	clear(g.changed)
	return doors
}

// withDoor returns the rows with row in place of its interface's, if there is one.
func withDoor(rows []loader.DoorRow, row loader.DoorRow) []loader.DoorRow {
	others := slices.DeleteFunc(slices.Clone(rows), func(r loader.DoorRow) bool { return r.Ifindex == row.Ifindex })
	return append(others, row)
}

// run runs an operation of a reconcile with apply, unless it is on an interface that was guarded since the reconcile began. done is
// false if it was not run.
func (g *guards) run(o Op, apply func(Op) error) (done bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed[o.ifindex()] {
		return false, nil
	}
	return true, apply(o)
}

// Guard attaches the guard to an interface at once, before the interface carries
// traffic. It stays until a Reconcile whose inputs were read afterwards lacks the interface. It does not wait for a reconcile
// that runs. On a kernel that lacks the guard's programs it only writes the row.
func (m *Manager) Guard(row loader.DoorRow) error {
	m.guards.mu.Lock()
	defer m.guards.mu.Unlock()
	if err := m.target.AttachDoor(row); err != nil {
		return err
	}
	m.guards.rows[row.Ifindex], m.guards.changed[row.Ifindex] = row, true
	return nil
}
