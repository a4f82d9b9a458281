// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/vrf"
)

// TestConflicts: what other programs configure is reported when it changes, degrades the node unless
// it may be intended, and is withdrawn when it is gone. What cannot be read does not withdraw it.
func TestConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var firewalls firewall.Conflicts
		var failed error
		var f *fakeNode
		f = newFakeNode(t, func(p *Parts) {
			p.Firewalls = func() (firewall.Conflicts, error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				return firewalls, failed
			}
		})
		setRules := func(messages ...string) {
			f.kernel.mu.Lock()
			f.kernel.Foreign = messages
			f.kernel.mu.Unlock()
			f.agent.KernelChanged(vrf.Change{Foreign: true})
		}
		degraded := func(reason string) {
			t.Helper()
			eventually(t, reason, func() bool { c := f.conditionNow(); return c.Reason == reason })
		}
		f.set(func() { firewalls.Drops = []string{"chain FORWARD drops"} })
		f.agent.start()
		f.setNodeID(3)
		degraded("AllWell")
		eventually(t, "an event", func() bool { return countPrefix(f.eventsNow(), "FirewallDrops chain FORWARD drops") == 1 })

		setRules("rule 100")
		degraded("RoutingConflict")
		f.set(func() { firewalls.KubeProxy = []string{"kube-proxy's chain"} })
		f.agent.FirewallChanged(7)
		degraded("SeveralProblems")
		f.set(func() { failed = errors.New("no socket") })
		setRules()
		eventually(t, "the failure", func() bool { return strings.Contains(f.conditionNow().Message, "no socket") })
		if m := f.conditionNow().Message; !strings.Contains(m, "rule 100") || !strings.Contains(m, "kube-proxy's chain") {
			t.Errorf("withdrawn by a failure: %s", m)
		}
		f.set(func() { failed = nil })
		degraded("KubeProxyLeft")
		f.set(func() { firewalls.KubeProxy = nil })
		f.agent.resync()
		degraded("AllWell")
		if n := countPrefix(f.eventsNow(), "RoutingConflict"); n != 1 {
			t.Errorf("%d events of the rule: %q", n, f.eventsNow())
		}
	})
}

// TestTakenTable: a network is not configured while a VRF device of others has its table, others are, and
// the device's end configures it.
func TestTakenTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.kernel.AddLink("mgmt").Table = f.agent.config.Plan.VRFTableBase + 7
		f.agent.start()
		f.setNodeID(3)
		f.setNAD(nad(f.agent.config, "shop", "net", 7))
		f.setNAD(nad(f.agent.config, "bank", "net", 8))
		eventually(t, "network 8", func() bool { return f.state(8).State == StateReady })
		eventually(t, "the condition", func() bool {
			c := f.conditionNow()
			return c.Reason == "NetworkNotConfigured" && strings.Contains(c.Message, "VRF device mgmt")
		})
		f.kernel.mu.Lock()
		f.kernel.DelLink("mgmt")
		f.kernel.mu.Unlock()
		f.agent.KernelChanged(vrf.Change{ID: 7, Links: true})
		eventually(t, "network 7", func() bool { return f.state(7).State == StateReady })
		eventually(t, "not degraded", func() bool { c := f.conditionNow(); return c.Reason == "AllWell" })
	})
}
