// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"
	"sync"

	"bulkhead/pkg/firewall"
)

// conflictReconciler finds what other programs have configured on the node that affects packets of
// networks. It changes none of it.
type conflictReconciler struct {
	kernel    Kernel
	firewalls func() (firewall.Conflicts, error) // nil: no nftables

	mu   sync.Mutex
	last []Problem
}

// Reasons of problems that other programs cause.
const (
	reasonRouting   = "RoutingConflict"
	reasonKubeProxy = "KubeProxyLeft"
	reasonFirewall  = "FirewallDrops" // perhaps not what networks need: informational
)

// reconcile reads what others have configured, and reports whether it has changed. After an error the last
// problems stay.
func (r *conflictReconciler) reconcile(ctx context.Context) (changed bool, err error) {
	routing, errRouting := r.kernel.Conflicts(ctx)
	var firewalls firewall.Conflicts
	var errFirewall error
	if r.firewalls != nil {
		firewalls, errFirewall = r.firewalls()
	}
	if err := errors.Join(errRouting, errFirewall); err != nil {
		return false, err
	}
	var found []Problem
	for _, kind := range []struct {
		reason   string
		messages []string
	}{{reasonRouting, routing}, {reasonKubeProxy, firewalls.KubeProxy}, {reasonFirewall, firewalls.Drops}} {
		for _, m := range kind.messages {
			found = append(found, Problem{Reason: kind.reason, Message: m})
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = !slices.Equal(r.last, found)
	r.last = found
	return changed, nil
}

// problems returns what the last reconcile found.
func (r *conflictReconciler) problems() []Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}
