// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"bulkhead/pkg/loader"
)

// A pod is being connected while the host network is reconciled: the inputs do not contain
// its interface yet, and those of Run are older still. The guard stays.
func TestGuardStays(t *testing.T) {
	root, procs, kernel := t.TempDir(), t.TempDir(), newFakeKernel()
	writeProc(t, procs, "self", "agent", "/agent", "/", "0", "1")
	m, err := New(kernel, Options{CgroupRoot: root, ProcRoot: procs, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if m.watch != nil {
		defer m.watch.Close()
	}
	m.readLayout = func(string) (Layout, error) { return Layout{}, nil }
	before := Inputs{Doors: []loader.DoorRow{{Ifindex: 2, Kind: loader.DoorOwn}}}
	row := loader.DoorRow{Ifindex: 9, Kind: loader.DoorPod}
	after := Inputs{Doors: append(slices.Clone(before.Doors), row)}
	run := func() error { m.mu.Lock(); defer m.mu.Unlock(); return m.reconcile(t.Context()) }
	for _, step := range []struct {
		what    string
		do      func() error
		guarded bool
	}{
		{"before", func() error { return m.Reconcile(t.Context(), before) }, false},
		{"guarded", func() error { return m.Guard(row) }, true},
		{"Run's reconcile", run, true},
		{"with inputs that were read before", func() error { return m.Reconcile(t.Context(), before) }, true},
		{"Run's reconcile again", run, true},
		{"with inputs that were read afterwards", func() error { return m.Reconcile(t.Context(), after) }, true},
		{"the interface is gone", func() error { return m.Reconcile(t.Context(), before) }, false},
		{"Run's last reconcile", run, false},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		rows, err := kernel.Rows()
		if err != nil {
			t.Fatal(err)
		}
		if _, attached := kernel.doors[9]; attached != step.guarded || slices.Contains(rows, loader.Row(row)) != step.guarded {
			t.Errorf("%s: programs attached %v, rows %v", step.what, attached, rows)
		}
	}
}

// readingKernel calls a function while a reconcile reads.
type readingKernel struct {
	*fakeKernel
	rows, attachments func()
}

func (r readingKernel) Rows() ([]loader.Row, error) { r.rows(); return r.fakeKernel.Rows() }
func (r readingKernel) Attachments() ([]loader.Attachment, error) {
	r.attachments()
	return r.fakeKernel.Attachments()
}

// A pod is connected while a reconcile runs: Guard does not wait for the reconcile, and the reconcile does not undo what Guard has done,
// wherever it is, and whatever its inputs say of the interface. The next ones treat it as if Guard had come before them.
func TestGuardDuringReconcile(t *testing.T) {
	row := loader.DoorRow{Ifindex: 9, Kind: loader.DoorPod}
	for what, older := range map[string][]loader.DoorRow{"unknown": nil, "of another kind": {{Ifindex: 9, Kind: loader.DoorLocked}}} {
		for _, at := range []string{"rows", "attachments"} {
			m, kernel := managerOf(t, Layout{})
			guard := func(now string) func() {
				return func() {
					if now != at {
						return
					}
					at = "" // once
					done := make(chan error)
					go func() { done <- m.Guard(row) }()
					select {
					case err := <-done:
						if err != nil {
							t.Error(err)
						}
					case <-time.After(10 * time.Second):
						t.Fatal("Guard waits for the reconcile")
					}
				}
			}
			where := at
			m.target.Kernel = readingKernel{kernel, guard("rows"), guard("attachments")}
			in := Inputs{Doors: older}
			run := func() error { m.mu.Lock(); defer m.mu.Unlock(); return m.reconcile(t.Context()) }
			for _, step := range []struct {
				what string
				do   func() error
				want *loader.DoorRow
			}{
				{"Reconcile", func() error { return m.Reconcile(t.Context(), in) }, &row},
				{"Run's reconcile", run, &row},
				{"with inputs that were read before", func() error { return m.Reconcile(t.Context(), Inputs{}) }, &row},
				{"with inputs that were read afterwards", func() error { return m.Reconcile(t.Context(), Inputs{}) }, nil},
			} {
				if err := step.do(); err != nil {
					t.Fatalf("%s: %v", step.what, err)
				}
				has, _ := kernel.rows[row.Key()].(loader.DoorRow)
				if step.want == nil && (kernel.doors[9] || has != loader.DoorRow{}) || step.want != nil && (!kernel.doors[9] || has != *step.want) {
					t.Errorf("%s, guarded when the %s are read: after %s attached %t, row %v", what, where, step.what, kernel.doors[9], has)
				}
			}
		}
	}
}
