// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"context"
	"log/slog"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Reconciler brings the mirror of one source to what it should be. It is
// level-driven: a key is all it is told.
type Reconciler struct {
	cache  client.Reader // with the index of AddIndexes
	lookup kube.Lookup
	target *Kube
	log    *slog.Logger
	deps   dependencyIndex
}

// NewReconciler makes a reconciler.
func NewReconciler(cache client.Reader, plan network.Plan, target *Kube, log *slog.Logger) *Reconciler {
	return &Reconciler{cache: cache, lookup: kube.Lookup{Cache: cache, Plan: plan}, target: target, log: log}
}

// Reconcile brings the mirror of s to what it should be. What it waits for has
// an event of its own: only failed writes are tried again.
func (r *Reconciler) Reconcile(ctx context.Context, s Source) (reconcile.Result, error) {
	in, err := r.inputs(ctx, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	have, err := r.target.Read(ctx, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	if in.NetworkUnknown != "" && in.Slice != nil {
		r.log.Warn("the mirror is left as it is", "endpointslice", s.String(), "reason", in.NetworkUnknown)
	}
	return reconcile.Result{}, r.target.Apply(ctx, Diff(Build(in, have), have))
}
