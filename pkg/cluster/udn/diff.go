// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// OpKind is what an Op does.
type OpKind string

// The operations, in the order of execution.
const (
	AddFinalizer    OpKind = "add finalizer to"
	CreateNAD       OpKind = "create"
	RepairNAD       OpKind = "repair"
	DeleteNAD       OpKind = "delete"
	ReleaseNAD      OpKind = "release"
	RemoveFinalizer OpKind = "remove finalizer from"
	SetStatus       OpKind = "set status of"
)

// Op is one API write.
type Op struct {
	Kind   OpKind
	Owner  Owner
	NAD    NAD                // desired; RepairNAD, DeleteNAD and ReleaseNAD: with the actual UID and version
	Status Status             // SetStatus
	Warn   []metav1.Condition // SetStatus: those that became False or changed their message, for events
}

func (o Op) String() string {
	switch o.Kind {
	case AddFinalizer, RemoveFinalizer, SetStatus:
		return string(o.Kind) + " " + o.Owner.String()
	case CreateNAD:
		return fmt.Sprintf("create NetworkAttachmentDefinition %s with network id %s", o.NAD.Key(), o.NAD.Annotations[network.AnnotationNetworkID])
	}
	return string(o.Kind) + " NetworkAttachmentDefinition " + o.NAD.Key()
}

// Failure is an Op that failed.
type Failure struct {
	Op  Op
	Err error
}

func (f *Failure) Error() string { return f.Op.String() + ": " + f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Failures returns the failed operations in the tree of joined errors.
func Failures(err error) []*Failure {
	if err == nil {
		return nil
	}
	if f, ok := err.(*Failure); ok { //nolint:errorlint // the tree is walked here
		return []*Failure{f}
	}
	var out []*Failure
	if j, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // the tree is walked here
		for _, e := range j.Unwrap() {
			out = append(out, Failures(e)...)
		}
	} else if f := (*Failure)(nil); errors.As(err, &f) {
		out = append(out, f)
	}
	return out
}

// Diff returns the operations from have to want, except the status: DiffStatus runs
// after them, because the status reports their failures.
func Diff(want, have State) []Op {
	var ops, create, repair, remove []Op
	if want.Finalizer && !have.Finalizer {
		ops = append(ops, Op{Kind: AddFinalizer, Owner: want.Owner})
	}
	for _, ns := range sortedKeys(want.NADs) {
		w := want.NADs[ns]
		h, exists := have.NADs[ns]
		w.UID, w.ResourceVersion, w.OtherFinalizers = h.UID, h.ResourceVersion, h.OtherFinalizers
		switch {
		case !exists:
			create = append(create, Op{Kind: CreateNAD, Owner: want.Owner, NAD: w})
		case w.Phase == Terminating && h.Phase == Present:
			remove = append(remove, Op{Kind: DeleteNAD, Owner: want.Owner, NAD: w})
		case w.Phase == h.Phase && !w.SatisfiedBy(h):
			repair = append(repair, Op{Kind: RepairNAD, Owner: want.Owner, NAD: w})
		}
	}
	for _, ns := range sortedKeys(have.NADs) {
		h := have.NADs[ns]
		if _, wanted := want.NADs[ns]; wanted {
			continue
		}
		if h.Phase == Present {
			remove = append(remove, Op{Kind: DeleteNAD, Owner: want.Owner, NAD: h})
		}
		if h.Finalizer {
			remove = append(remove, Op{Kind: ReleaseNAD, Owner: want.Owner, NAD: h})
		}
	}
	ops = append(append(append(ops, create...), repair...), remove...)
	if have.Finalizer && !want.Finalizer {
		ops = append(ops, Op{Kind: RemoveFinalizer, Owner: want.Owner})
	}
	return ops
}
