// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// transportRetry is the pause between attempts to read the nodes.
const transportRetry = time.Second

// transportCheck ends the cluster controller if the configured transport of the cluster default
// network is not the one with which the cluster was installed. Nodes say which that is.
type transportCheck struct {
	live    client.Reader // reads from the API server, not from the cache
	network network.Network
	elected <-chan struct{}
	log     *slog.Logger

	passed chan struct{} // closed when reconcilers may run
}

// newTransportCheck adds the check to a manager.
func newTransportCheck(mgr manager.Manager, n network.Network, log *slog.Logger) (*transportCheck, error) {
	c := &transportCheck{live: mgr.GetAPIReader(), network: n, elected: mgr.Elected(), log: log, passed: make(chan struct{})}
	return c, mgr.Add(c)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: a process that waits for
// its turn ends at its start, too, so that the administrator sees the mistake then.
func (c *transportCheck) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable. It checks again when this process is elected: the
// first nodes may have been installed by another leader meanwhile.
func (c *transportCheck) Start(ctx context.Context) error {
	if err := c.check(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-c.elected:
	}
	if err := c.check(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	close(c.passed)
	<-ctx.Done()
	return nil
}

// check returns a network.ErrTransport. It waits for the API server; the end of ctx is no
// error.
func (c *transportCheck) check(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, transportRetry, true, func(ctx context.Context) (bool, error) {
		nodes, err := kube.ListMetadata(ctx, c.live, "Node")
		if err != nil {
			c.log.Warn("cannot read the nodes, will retry", "error", err)
			return false, nil
		}
		return true, network.CheckTransport(installedTransport(nodes), c.network)
	})
	if errors.Is(err, network.ErrTransport) {
		return err
	}
	return nil
}

// installedTransport returns the transport with which the cluster was installed, "" before
// any node is. If nodes differ, because somebody has edited one, it is what most say, and of
// equally many what the oldest node says.
func installedTransport(nodes []metav1.PartialObjectMetadata) string {
	count, oldest := map[string]int{}, map[string]time.Time{}
	for _, n := range nodes {
		t := n.Annotations[network.AnnotationDefaultTransport]
		if t == "" {
			continue
		}
		count[t]++
		if at, ok := oldest[t]; !ok || n.CreationTimestamp.Time.Before(at) {
			oldest[t] = n.CreationTimestamp.Time
		}
	}
	if len(count) == 0 {
		return ""
	}
	return slices.MinFunc(slices.Sorted(maps.Keys(count)), func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), oldest[a].Compare(oldest[b]))
	})
}

// afterCheck delays a reconciler until the check has passed.
type afterCheck[K comparable] struct {
	reconcile.TypedReconciler[K]
	check *transportCheck
}

func (r afterCheck[K]) Reconcile(ctx context.Context, key K) (reconcile.Result, error) {
	select {
	case <-ctx.Done():
		return reconcile.Result{}, nil
	case <-r.check.passed:
		return r.TypedReconciler.Reconcile(ctx, key)
	}
}
