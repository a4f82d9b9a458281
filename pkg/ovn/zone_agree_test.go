// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"bulkhead/pkg/network"
)

// withSubnets returns an edit that changes the subnets in a NAD.
func withSubnets(subnets string) func(*nadv1.NetworkAttachmentDefinition) {
	return func(n *nadv1.NetworkAttachmentDefinition) {
		c, err := network.ParseNetConf(n.Spec.Config)
		if err != nil {
			panic(err)
		}
		c.Subnets = subnets
		n.Spec.Config = c.Render()
	}
}

// Editing a shared network's NAD in one namespace does not affect other namespaces.
// New pods of its own namespace wait, and running pods are unchanged.
func TestZoneEditedNADAffectsOnlyItsNamespace(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			env := newZoneEnv(t)
			env.node(1, true)
			for _, ns := range []string{"amber", "blue"} {
				env.namespace(ns, true)
			}
			for _, ns := range []string{"amber", "blue", "red"} {
				env.sharedNAD(ns)
				env.pod(ns, "a", nil)
			}
			env.run()
			annotations := map[string]string{}
			for _, ns := range []string{"amber", "blue", "red"} {
				env.waitUntil("annotation", func() bool { return len(env.networks(ns, "a")) == 2 })
				env.setRunning(ns, "a")
				annotations[ns] = env.annotation(ns, "a")
			}
			env.settle()
			before := env.nb.Rows().Dump()
			checkUnchanged := func(when string) {
				t.Helper()
				if got := env.nb.Rows().Dump(); got != before {
					t.Errorf("restart=%v, %s: rows were\n%s\nare\n%s", restart, when, before, got)
				}
				for ns, was := range annotations {
					if got := env.annotation(ns, "a"); got != was {
						t.Errorf("restart=%v, %s: annotation of %s/a was %s, is %s", restart, when, ns, was, got)
					}
				}
			}
			if restart {
				env.stop()
			}
			env.editNAD("amber", "net", withSubnets("10.99.0.0/16/24")) // its key sorts first
			if restart {
				env.run()
			}
			env.settle()
			checkUnchanged("edited")

			env.warningEvents("")
			env.pod("amber", "b", nil)
			env.pod("red", "b", nil)
			env.waitUntil("annotation of a pod in another namespace", func() bool { return len(env.networks("red", "b")) == 2 })
			env.settle()
			if env.annotation("amber", "b") != "" {
				t.Errorf("restart=%v: a pod of the edited NAD got %s", restart, env.annotation("amber", "b"))
			}
			const want = `subnets is "10.99.0.0/16/24", not "10.10.0.0/16/24"`
			if e := env.warningEvents(reasonAllocation); len(e) == 0 || !strings.Contains(e[0], want) {
				t.Errorf("restart=%v: events %q, want %q", restart, e, want)
			}

			env.editNAD("amber", "net", withSubnets(sharedSubnets))
			env.waitUntil("annotation of the waiting pod", func() bool { return len(env.networks("amber", "b")) == 2 })
			env.deletePod("amber", "b")
			env.deletePod("red", "b")
			env.settle()
			checkUnchanged("restored")
		})
	}
}

// The NAD of a UserDefinedNetwork without its owner reference changes nothing.
func TestZoneNADWithoutOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.pod("red", "a", nil)
		env.run()
		env.waitForRow("red.net_red_a")
		env.settle()
		before := env.nb.Rows()
		env.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) { n.OwnerReferences = nil })
		env.settle()
		if after := env.nb.Rows(); after.Dump() != before.Dump() || !slices.EqualFunc(after, before, func(a, b Row) bool { return a.UUID == b.UUID }) {
			t.Errorf("rows were\n%s\nare\n%s", before.Dump(), after.Dump())
		}
		env.stop()
		env.run()
		env.settle()
		if after := env.nb.Rows(); after.Dump() != before.Dump() {
			t.Errorf("after a restart, rows were\n%s\nare\n%s", before.Dump(), after.Dump())
		}
		env.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) { n.OwnerReferences = ownedBy(redNet) })
		env.pod("red", "b", nil)
		env.waitForRow("red.net_red_b")
	})
}

// A change of a shared network is applied when all its NADs have it.
func TestZoneNADsAgreeOnAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.namespace("blue", true)
		env.sharedNAD("blue")
		env.sharedNAD("red")
		env.run()
		env.waitForRow(sharedNet + "_ovn_cluster_router")
		env.settle()
		before := env.nb.Rows().Dump()
		const wider = sharedSubnets + ",10.11.0.0/16/24"
		env.editNAD("blue", "net", withSubnets(wider))
		env.settle()              // NADs and pods have different watches
		env.pod("blue", "a", nil) // refused until red's NAD has the same subnets
		env.settle()
		if got := env.nb.Rows().Dump(); got != before {
			t.Errorf("rows were\n%s\nare\n%s", before, got)
		}
		env.editNAD("red", "net", withSubnets(wider))
		env.waitUntil("annotation", func() bool { return len(env.networks("blue", "a")) == 2 })
		env.waitUntil("rows of the change", func() bool { return strings.Contains(env.nb.Rows().Dump(), "10.11.0.0/16") })
	})
}
