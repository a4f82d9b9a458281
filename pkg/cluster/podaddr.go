// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/cluster/podaddr"
	"bulkhead/pkg/config"
)

// addPodAddr adds the controller that allocates pod addresses on Layer2 and
// Localnet networks.
func addPodAddr(mgr manager.Manager, check *transportCheck, cfg config.Config, marks idlease.HighWater, log *slog.Logger) (*podaddr.Reconciler, error) {
	target := &podaddr.Kube{Cache: mgr.GetCache(), Live: mgr.GetAPIReader(), Client: mgr.GetClient(), Now: time.Now}
	r := podaddr.NewReconciler(cfg.Plan, cfg.IDAge, mgr.GetCache(), mgr.GetAPIReader(), target, marks, time.Now, shortNotes{mgr.GetEventRecorder("bulkhead-cluster")}, log)
	c, err := newController(mgr, check, "podaddr", cfg.Workers, r, func(k podaddr.Key) []any {
		kind := "pod"
		if k.Claim {
			kind = "claim"
		}
		return []any{kind, k.String()}
	})
	if err != nil {
		return nil, err
	}
	if err := r.Watch(c, mgr.GetCache()); err != nil {
		return nil, err
	}
	r.WatchClaims(c, mgr.GetCache(), func() (bool, error) { return hasKind(mgr, ipamClaim) })
	if has, err := r.DiscoverClaims(); err != nil || has {
		return r, err
	}
	log.Warn("the CRD of IPAMClaims is not installed: pods that name an IPAMClaim wait until it is")
	return r, mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		err := wait.PollUntilContextCancel(ctx, crdPollInterval, false, func(context.Context) (bool, error) {
			has, err := r.DiscoverClaims()
			if err != nil {
				log.Warn("cannot discover IPAMClaims, will retry", "error", err)
			}
			return has, nil
		})
		if err == nil { // or ctx has ended
			log.Info("the CRD of IPAMClaims is installed now")
		}
		return nil
	}))
}

var ipamClaim = ipamclaimv1.SchemeGroupVersion.WithKind("IPAMClaim")

// crdPollInterval is the interval of checks for a CRD that is not installed.
const crdPollInterval = 10 * time.Second

func hasKind(mgr manager.Manager, kind schema.GroupVersionKind) (bool, error) {
	_, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("discover %s: %w", kind, err)
	}
	return true, nil
}
