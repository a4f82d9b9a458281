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

// Reconciler brings one owner's NADs and status to what they should be. It is
// level-driven: a key is all it is told.
type Reconciler struct {
	cfg    config.Config
	cache  client.Reader // with the indexes of AddIndexes
	live   client.Reader // the API server itself
	target *Kube
	log    *slog.Logger

	networkIDs *netid.Allocator
	waiters    nadusers.Waiters[Owner]
	nodes      nodeIDs
	// failures are what nodes say that they have not built, or not removed.
	failures failures
	enqueue  func(Owner) // set before the first Reconcile
	restore  struct {
		sync.Mutex
		done bool
	}
}

// backstop is how often a deletion that waits for pods looks again. Events
// normally end the wait; this covers one that was lost.
const backstop = time.Minute

// conflict is how long the cache is given to catch up with another's write.
const conflict = 100 * time.Millisecond

// NewReconciler makes a reconciler.
func NewReconciler(cfg config.Config, cache, live client.Reader, target *Kube, l *netid.Allocator, log *slog.Logger) *Reconciler {
	r := &Reconciler{cfg: cfg, cache: cache, live: live, target: target, log: log, networkIDs: l}
	r.nodes.markDirty()
	return r
}

// Reconcile brings o to what it should be.
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
		return reconcile.Result{RequeueAfter: conflict}, nil // the cache is behind: nothing to tell anybody
	}
	status := DiffStatus(o, Conditions(in, want, problems, failed), have.Conditions)
	if in.Request != nil && in.Request.Deleting && !o.Cluster() {
		for i := range status { // the namespace is often ending too, and takes no events then
			status[i].Warn = nil
		}
	}
	statusErr := r.target.Apply(ctx, status)

	r.networkIDs.ReleaseClaims(o.String(), func(ns string) bool {
		_, wanted := want.NADs[ns]
		_, there := have.NADs[ns]
		return wanted || there
	})
	held := false
	if in.Idle || in.Request == nil && len(have.NADs) == 0 {
		if held, err = r.release(ctx, o); err != nil {
			return reconcile.Result{}, err
		}
	}
	if err := errors.Join(applyErr, statusErr); err != nil {
		return reconcile.Result{}, err // logged and tried again by the caller
	}
	if held {
		return reconcile.Result{RequeueAfter: backstop}, nil
	}
	for ns := range in.Users {
		if len(in.Users[ns]) > 0 {
			return reconcile.Result{RequeueAfter: backstop}, nil
		}
	}
	return reconcile.Result{}, nil
}
