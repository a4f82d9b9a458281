// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"log/slog"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"bulkhead/pkg/cluster/marks"
	"bulkhead/pkg/cluster/podaddr"
	"bulkhead/pkg/config"
)

// addPodAddr adds who gives pods their addresses on Layer2 and Localnet
// networks.
func addPodAddr(mgr manager.Manager, cfg config.Config, given marks.Marks, log *slog.Logger) (*podaddr.Reconciler, error) {
	target := &podaddr.Kube{Cache: mgr.GetCache(), Live: mgr.GetAPIReader(), Client: mgr.GetClient(), Now: time.Now}
	r := podaddr.NewReconciler(cfg.Plan, cfg.IDAge, mgr.GetCache(), mgr.GetAPIReader(), target, given, time.Now, mgr.GetEventRecorder("bulkhead-cluster"), log)
	c, err := newController(mgr, "podaddr", cfg.Workers, r, func(k podaddr.Key) []any {
		kind := "pod"
		if k.Claim {
			kind = "claim"
		}
		return []any{kind, k.String()}
	})
	if err != nil {
		return nil, err
	}
	return r, r.Watch(c, mgr.GetCache())
}
