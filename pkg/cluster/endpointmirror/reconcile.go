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

// Reconciler reconciles the mirrors of sources. It is level-driven.
type Reconciler struct {
	cache  client.Reader // with the index of AddIndexes
	lookup kube.Lookup
	target *Kube
	log    *slog.Logger
	deps   dependencyIndex
}

// NewReconciler returns a reconciler.
func NewReconciler(cache client.Reader, plan network.Plan, target *Kube, log *slog.Logger) *Reconciler {
	return &Reconciler{cache: cache, lookup: kube.Lookup{Cache: cache, Plan: plan}, target: target, log: log}
}

// Reconcile reconciles the mirror of s. Missing inputs need no retry, because
// their events enqueue s.
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
		r.log.Warn("cannot determine the primary network; the mirror stays unchanged", "endpointslice", s.String(), "reason", in.NetworkUnknown)
	}
	return reconcile.Result{}, r.target.Apply(ctx, Diff(Build(in, have), have))
}
