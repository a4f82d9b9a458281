// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
)

// TestLockFailsClosed: lock returns once the pod's address is locked, and fails
// if it could not be locked; a failure to permit something does not matter.
func TestLockFailsClosed(t *testing.T) {
	pod := Pod{UID: "u1", Namespace: "shop", Name: "web", Networks: network.PodNetworks{
		"default": {IPs: []netip.Prefix{netip.MustParsePrefix("10.244.2.7/24")}, Role: network.RoleInfrastructureLocked}}}
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := f.agent.hosts.lock(ctx, pod); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "shop/web") {
			t.Errorf("before the cache is synced: %v", err)
		}
		cancel()
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil })
		for _, c := range []struct {
			what string
			err  error
			want bool
		}{
			{"a restriction is not enforced", fmt.Errorf("row: %w", hostnet.ErrNotEnforced), false},
			{"a permission is not applied", errors.New("a host-network pod's row"), true},
			{"no failure", nil, true},
		} {
			f.set(func() { f.hostErr = c.err })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := f.agent.hosts.lock(ctx, pod); (err == nil) != c.want || c.want == false && !errors.Is(err, hostnet.ErrNotEnforced) {
				t.Errorf("%s: %v", c.what, err)
			}
			cancel()
		}
		if locked := f.hosts().Locked; len(locked) != 1 {
			t.Errorf("locked: %v", locked)
		}
	})
	t.Run("neither nftables nor eBPF", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeNode(t, func(p *Parts) { p.Firewall, p.HostNet = nil, nil })
			f.agent.start()
			f.setNodeID(3)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := f.agent.hosts.lock(ctx, pod); err == nil || !strings.Contains(err.Error(), "neither nftables nor eBPF") {
				t.Errorf("%v", err)
			}
		})
	})
}
