// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
)

// Target is where the objects are stored.
type Target interface {
	// Apply applies the operations in order. It continues after failures and joins the
	// errors, which are OpErrors.
	Apply(ctx context.Context, ops []Op) error
}

// Kube is the Kubernetes API.
type Kube struct {
	Client client.Client
	Now    func() time.Time
	Log    *slog.Logger
}

// Apply implements Target.
func (k *Kube) Apply(ctx context.Context, ops []Op) error {
	var errs []error
	for _, op := range ops {
		if err := k.do(ctx, op); err != nil {
			errs = append(errs, &OpError{op, err})
			continue
		}
		k.Log.Debug(op.String())
	}
	return errors.Join(errs...)
}

func (k *Kube) do(ctx context.Context, op Op) error {
	switch op.Kind {
	case Delete:
		uid := op.Object.GetUID()
		return client.IgnoreNotFound(k.Client.Delete(ctx, op.Object, client.Preconditions{UID: &uid}))
	case Create:
		return k.Client.Create(ctx, op.Object.DeepCopyObject().(client.Object))
	case Update:
		// It carries the resource version: a concurrent change by others is a conflict.
		return k.Client.Update(ctx, op.Object.DeepCopyObject().(client.Object))
	case SetLabel:
		return k.setLabel(ctx, op)
	case SetStatus:
		return k.setStatus(ctx, op.Object.(*udnv1.RouteAdvertisements))
	}
	return fmt.Errorf("unknown operation %q", op.Kind)
}

func (k *Kube) setLabel(ctx context.Context, op Op) error {
	var value any
	if op.Add {
		value = LabelFabricValue
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": op.Object.GetUID(), "labels": map[string]any{LabelFabric: value},
	}})
	if err != nil {
		return fmt.Errorf("render patch: %w", err)
	}
	obj := &udnv1.ClusterUserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Name: op.Object.GetName()}}
	return client.IgnoreNotFound(k.Client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, body)))
}

func (k *Kube) setStatus(ctx context.Context, ra *udnv1.RouteAdvertisements) error {
	status := ra.Status.DeepCopy()
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.LastTransitionTime.IsZero() {
			c.LastTransitionTime = metav1.NewTime(k.Now())
		}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": ra.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("render patch: %w", err)
	}
	obj := &udnv1.RouteAdvertisements{ObjectMeta: metav1.ObjectMeta{Name: ra.Name}}
	return client.IgnoreNotFound(k.Client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, body)))
}

// OpError is the failure of an operation.
type OpError struct {
	Op  Op
	Err error
}

func (e *OpError) Error() string { return fmt.Sprintf("%s: %v", e.Op, e.Err) }
func (e *OpError) Unwrap() error { return e.Err }

// opErrors returns the failures that an error of Apply joins.
func opErrors(err error) []*OpError {
	var out []*OpError
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			out = append(out, opErrors(e)...)
		}
		return out
	}
	if e := (*OpError)(nil); errors.As(err, &e) {
		out = append(out, e)
	}
	return out
}

// isStale reports whether an error only says that the cache was behind, as every error that it joins.
func isStale(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
	}
	return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !isStale(e) })
}
