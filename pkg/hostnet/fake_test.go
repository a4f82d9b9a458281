// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/loader"
)

// fakeKernel implements Kernel in memory. If fail is set and returns true for n, the
// n-th change fails.
type fakeKernel struct {
	mu     sync.Mutex
	rows   map[loader.Key]loader.Row
	pods   map[string]loader.Attachment
	root   bool
	checks bool // AttachPacketChecks was called
	doors  map[int]bool
	held   []uint16
	// deleted holds interfaces on which AttachDoor fails with ENODEV after it wrote
	// the row and attached a part of the programs.
	deleted map[int]bool
	// otherQdisc holds interfaces with an ingress qdisc, on which AttachDoor fails.
	otherQdisc map[int]bool

	config  loader.Config
	changes int
	fail    func(n int) bool
	unread  error             // of Rows
	after   func()            // called after each change
	ids     map[string]uint64 // cgroup ids by path

	takeoverFinished int
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{rows: map[loader.Key]loader.Row{}, pods: map[string]loader.Attachment{}, doors: map[int]bool{}, ids: map[string]uint64{}}
}

var errInjected = errors.New("injected")

func (f *fakeKernel) change(apply func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes++
	if f.fail != nil && f.fail(f.changes) {
		return errInjected
	}
	apply()
	if f.after != nil {
		f.after()
	}
	return nil
}

func (f *fakeKernel) Rows() ([]loader.Row, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.rows)), f.unread
}
func (f *fakeKernel) Put(r loader.Row) error {
	return f.change(func() { f.rows[r.Key()] = r })
}
func (f *fakeKernel) Delete(r loader.Row) error {
	return f.change(func() { delete(f.rows, r.Key()) })
}
func (f *fakeKernel) Config() (loader.Config, error) { return f.config, nil }
func (f *fakeKernel) SetConfig(c loader.Config) error {
	return f.change(func() { f.config = c })
}
func (f *fakeKernel) Attachments() ([]loader.Attachment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Collect(maps.Values(f.pods))
	if f.root {
		out = append(out, loader.Attachment{CgroupID: 1})
	}
	for i := range f.doors {
		row, _ := f.rows[loader.DoorRow{Ifindex: i}.Key()].(loader.DoorRow)
		out = append(out, loader.Attachment{Ifindex: i, Programs: f.DoorPrograms(row.Kind)})
	}
	return out, nil
}
func (f *fakeKernel) AttachPod(path, uid string, row loader.PodRow) error {
	id, ok := f.ids[path]
	if !ok {
		return fmt.Errorf("no cgroup %s", path)
	}
	row.CgroupID = id
	return f.change(func() {
		f.rows[row.Key()] = row
		f.pods[uid] = loader.Attachment{PodUID: uid, CgroupID: id}
	})
}
func (f *fakeKernel) DetachPod(uid string) error {
	return f.change(func() { delete(f.pods, uid) })
}
func (f *fakeKernel) AttachRoot() error { return f.change(func() { f.root = true }) }

func (f *fakeKernel) AttachPacketChecks() error { return f.change(func() { f.checks = true }) }

func (f *fakeKernel) AttachDoor(row loader.DoorRow) error {
	err := f.change(func() { f.rows[row.Key()] = row; f.doors[row.Ifindex] = true })
	if err == nil && f.deleted[row.Ifindex] {
		err = fmt.Errorf("attach: %w", unix.ENODEV)
	}
	if err == nil && f.otherQdisc[row.Ifindex] {
		err = fmt.Errorf("attach: %w", loader.ErrNoClsact)
	}
	return err
}
func (f *fakeKernel) DetachDoor(i int) error { return f.change(func() { delete(f.doors, i) }) }
func (f *fakeKernel) DoorPrograms(k loader.DoorKind) []string {
	if k == 0 {
		return nil
	}
	return []string{"bh_grd_" + k.String()}
}
func (f *fakeKernel) HeldProbes() ([]uint16, error) { return f.held, nil }
func (f *fakeKernel) FinishTakeover() error         { f.takeoverFinished++; return nil }
