// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"bulkhead/pkg/cluster/nadusers"
	"bulkhead/pkg/cluster/netid"
	"bulkhead/pkg/config"
)

// Reconciler reconciles the NADs and the status of owners. It is level-driven.
type Reconciler struct {
	cfg    config.Config
	cache  client.Reader // with the indexes of AddIndexes
	live   client.Reader // reads from the API server, not from the cache
	target *Kube
	log    *slog.Logger

	networkIDs *netid.Allocator
	waiters    nadusers.Waiters[Owner]
	nodes      nodeIDs
	failures   failures // networks that nodes have not built, or not removed
	advertised advertised
	enqueue    func(Owner) // set before the first Reconcile
	restore    struct {
		sync.Mutex
		done bool
	}
}

// usersResync is the interval of retries while pods use a NAD. Pod events normally
// end the wait; this covers a lost one.
const usersResync = time.Minute

// conflictRetry is the delay after a conflict, in which the cache catches up.
const conflictRetry = 100 * time.Millisecond

// NewReconciler returns a reconciler.
func NewReconciler(cfg config.Config, cache, live client.Reader, target *Kube, ids *netid.Allocator, log *slog.Logger) *Reconciler {
	r := &Reconciler{cfg: cfg, cache: cache, live: live, target: target, log: log, networkIDs: ids}
	r.nodes.markDirty()
	return r
}

// allRejected reports whether the API server has rejected each desired NAD. Errors after which a NAD may exist do not
// count, such as timeouts.
func allRejected(want State, failed []*Failure) bool {
	rejected := 0
	for _, f := range failed {
		if f.Op.Kind == CreateNAD && (apierrors.IsForbidden(f.Err) || apierrors.IsInvalid(f.Err) || apierrors.IsBadRequest(f.Err) || apierrors.IsRequestEntityTooLargeError(f.Err)) {
			rejected++
		}
	}
	return len(want.NADs) > 0 && rejected == len(want.NADs)
}

// Reconcile reconciles one owner.
func (r *Reconciler) Reconcile(ctx context.Context, o Owner) (reconcile.Result, error) {
	if err := r.Restore(ctx); err != nil {
		return reconcile.Result{}, err
	}
	have, err := r.target.Read(ctx, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	in, err := r.inputs(ctx, o, have)
	if err != nil {
		return reconcile.Result{}, err
	}
	want, problems := Build(in, have)
	applyErr := r.target.Apply(ctx, Diff(want, have))
	failed := slices.DeleteFunc(Failures(applyErr), func(f *Failure) bool {
		return apierrors.IsConflict(f.Err) || apierrors.IsAlreadyExists(f.Err)
	})
	if applyErr != nil && len(failed) == 0 {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil // the cache is stale: no reason for a condition
	}
	var status []Op
	if !in.unknownNamespace(have) {
		status = DiffStatus(o, BuildStatus(in, want, problems, failed), have.Status)
	}
	if in.Request != nil && in.Request.Deleting && !o.Cluster() {
		leaves, err := r.namespaceLeaves(ctx, o.Namespace)
		if err != nil {
			return reconcile.Result{}, err
		}
		if leaves {
			for i := range status {
				status[i].Warn = nil
			}
		}
	}
	statusErr := r.target.Apply(ctx, status)

	r.networkIDs.ReleaseClaims(o.String(), func(ns string) bool { return want.hasPrimary(ns) || have.hasPrimary(ns) })
	kept := false
	// An owner that is deleted may exist for long: its user can give it finalizers.
	gone := (in.Request == nil || in.Request.Deleting) && len(have.NADs) == 0
	if gone {
		r.waiters.Forget(o)
	}
	rejected := len(have.NADs) == 0 && allRejected(want, failed)
	if rejected && !in.NewID {
		if rejected, err = r.noneExists(ctx, want.NADs); err != nil {
			return reconcile.Result{}, err
		}
	}
	switch {
	case rejected && in.NewID: // the next attempt gets the same id: retries must not use up those that were released lately
		r.networkIDs.CancelID(o.Network())
	case in.Idle || gone || rejected:
		if kept, err = r.releaseID(ctx, o); err != nil {
			return reconcile.Result{}, err
		}
	}
	if err := errors.Join(applyErr, statusErr); err != nil {
		return reconcile.Result{}, err // the caller logs and retries
	}
	if kept {
		return reconcile.Result{RequeueAfter: usersResync}, nil
	}
	for ns := range in.Users {
		if len(in.Users[ns]) > 0 {
			return reconcile.Result{RequeueAfter: usersResync}, nil
		}
	}
	return reconcile.Result{}, nil
}
