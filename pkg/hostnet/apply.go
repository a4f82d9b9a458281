// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/loader"
)

// Kernel is the interface to the eBPF programs: *loader.Loader, or a fake in tests.
type Kernel interface {
	Rows() ([]loader.Row, error)
	Put(loader.Row) error
	Delete(loader.Row) error
	Config() (loader.Config, error)
	SetConfig(loader.Config) error
	Attachments() ([]loader.Attachment, error)
	AttachPod(cgroupPath, podUID string, row loader.PodRow) error
	DetachPod(podUID string) error
	AttachRoot() error
	AttachPacketChecks() error
	AttachDoor(row loader.DoorRow) error
	DetachDoor(ifindex int) error
	DoorPrograms(k loader.DoorKind) []string
	HeldProbes() ([]uint16, error)
	FinishTakeover() error
}

var _ Kernel = (*loader.Loader)(nil)

// Target reads and changes the kernel's state. It covers everything below
// Bulkhead's pins and nothing else.
type Target struct {
	Kernel
	// run runs an operation with apply, or leaves it out; nil: none is left out.
	run func(o Op, apply func(Op) error) (done bool, err error)
}

// Read returns the actual state. A dead or incomplete attachment is returned with
// cgroup id 0, which no pod has, so that Diff repairs or removes it.
func (t *Target) Read(ctx context.Context) (State, error) {
	s := NewState()
	rows, err := t.Rows()
	if err != nil {
		return s, err
	}
	for _, r := range rows {
		s.put(r)
	}
	as, err := t.Attachments()
	if err != nil {
		return s, fmt.Errorf("read attachments: %w", err)
	}
	for _, a := range as {
		complete := a.CgroupID != 0 && len(a.Missing) == 0
		switch {
		case a.Ifindex != 0:
			row, _ := s.Rows[loader.DoorRow{Ifindex: a.Ifindex}.Key()].(loader.DoorRow)
			s.Doors[a.Ifindex] = !a.Gone && slices.Equal(slices.Sorted(slices.Values(a.Programs)), t.DoorPrograms(row.Kind))
		case a.Root():
			s.Root = complete
		case complete:
			s.Pods[a.PodUID] = Cgroup{ID: a.CgroupID}
		default:
			s.Pods[a.PodUID] = Cgroup{}
		}
	}
	s.Config, err = t.Config()
	return s, err
}

// ErrNotEnforced is wrapped by the error of Apply and of Reconcile if an operation failed, or was not run, without which
// pods are restricted too little.
var ErrNotEnforced = errors.New("a restriction is not enforced")

// Apply runs all operations, also after one fails, and returns those that succeeded.
func (t *Target) Apply(ctx context.Context, ops []Op) (done []Op, err error) {
	var errs []error
	for i, o := range ops {
		if err := ctx.Err(); err != nil {
			if slices.ContainsFunc(ops[i:], Op.Enforces) {
				err = errors.Join(ErrNotEnforced, err)
			}
			return done, errors.Join(append(errs, fmt.Errorf("cancelled before %s: %w", o, err))...)
		}
		run := true
		var err error
		if t.run == nil {
			err = t.apply(o)
		} else {
			run, err = t.run(o, t.apply)
		}
		if err != nil {
			if o.Enforces() && !isOwnWithoutClsact(o, err) {
				err = errors.Join(ErrNotEnforced, err)
			}
			errs = append(errs, fmt.Errorf("%s: %w", o, err))
			continue
		}
		if run {
			done = append(done, o)
		}
	}
	return done, errors.Join(errs...)
}

// isOwnWithoutClsact reports whether the guard cannot be attached to an interface of the node itself because somebody else has given it
// an ingress qdisc. That lasts until an operator removes the qdisc, and costs what the guard's program costs where the kernel lacks it:
// both degrade the node, and stop no pod. The other interfaces lead to pods.
func isOwnWithoutClsact(o Op, err error) bool {
	row, ok := o.Row.(loader.DoorRow)
	return ok && row.Kind == loader.DoorOwn && errors.Is(err, loader.ErrNoClsact)
}

func (t *Target) apply(o Op) error {
	switch o.Kind {
	case PutRow:
		return t.Put(o.Row)
	case DeleteRow:
		return t.Delete(o.Row)
	case SetConfig:
		return t.SetConfig(o.Config)
	case AttachRoot:
		return t.AttachRoot()
	case AttachPod:
		row, ok := o.Row.(loader.PodRow)
		if !ok {
			return errors.New("no row for the pod")
		}
		return t.AttachPod(o.Path, o.PodUID, row)
	case DetachPod:
		return t.DetachPod(o.PodUID)
	case AttachDoor:
		row, ok := o.Row.(loader.DoorRow)
		if !ok {
			return errors.New("no row for the interface")
		}
		err := t.AttachDoor(row)
		if errors.Is(err, unix.ENODEV) {
			// The interface was deleted meanwhile: remove its row and programs.
			return errors.Join(t.DetachDoor(row.Ifindex), t.Delete(row))
		}
		return err
	case DetachDoor:
		return t.DetachDoor(o.Door)
	}
	return fmt.Errorf("unknown operation")
}
