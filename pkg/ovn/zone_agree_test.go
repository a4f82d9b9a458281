// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"strings"
	"testing"
	"testing/synctest"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"bulkhead/pkg/network"
)

// resubnetted has a NAD describe its network with other subnets.
func resubnetted(subnets string) func(*nadv1.NetworkAttachmentDefinition) {
	return func(n *nadv1.NetworkAttachmentDefinition) {
		c, err := network.ParseNetConf(n.Spec.Config)
		if err != nil {
			panic(err)
		}
		c.Subnets = subnets
		n.Spec.Config = c.Render()
	}
}

// A NAD in one namespace that is altered changes nothing of the network that
// others have by theirs: its own namespace's new pods wait, what runs goes on.
func TestZoneAlteredNADChangesNothingElsewhere(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.node(1, true)
			for _, ns := range []string{"amber", "blue"} {
				w.namespace(ns, true)
			}
			for _, ns := range []string{"amber", "blue", "red"} {
				w.sharedNAD(ns)
				w.pod(ns, "a", nil)
			}
			w.run()
			told := map[string]string{}
			for _, ns := range []string{"amber", "blue", "red"} {
				w.wait("annotation", func() bool { return len(w.networks(ns, "a")) == 2 })
				w.running(ns, "a")
				told[ns] = w.told(ns, "a")
			}
			w.settled()
			before := w.nb.Rows().Dump()
			asBefore := func(when string) {
				t.Helper()
				if got := w.nb.Rows().Dump(); got != before {
					t.Errorf("restart=%v, %s: rows were\n%s\nare\n%s", restart, when, before, got)
				}
				for ns, was := range told {
					if got := w.told(ns, "a"); got != was {
						t.Errorf("restart=%v, %s: annotation of %s/a was %s, is %s", restart, when, ns, was, got)
					}
				}
			}
			if restart {
				w.stop()
			}
			w.editNAD("amber", "net", resubnetted("10.99.0.0/16/24")) // its key sorts first
			if restart {
				w.run()
			}
			w.settled()
			asBefore("altered")

			w.warnings("")
			w.pod("amber", "b", nil)
			w.pod("red", "b", nil)
			w.wait("annotation of a pod elsewhere", func() bool { return len(w.networks("red", "b")) == 2 })
			w.settled()
			if w.told("amber", "b") != "" {
				t.Errorf("restart=%v: a pod of the altered NAD got %s", restart, w.told("amber", "b"))
			}
			const want = `subnets is "10.99.0.0/16/24", not "10.10.0.0/16/24"`
			if e := w.warnings(reasonAllocation); len(e) == 0 || !strings.Contains(e[0], want) {
				t.Errorf("restart=%v: events %q, want %q", restart, e, want)
			}

			w.editNAD("amber", "net", resubnetted(sharedSubnets))
			w.wait("annotation of the pod that waited", func() bool { return len(w.networks("amber", "b")) == 2 })
			w.deletePod("amber", "b")
			w.deletePod("red", "b")
			w.settled()
			asBefore("mended")
		})
	}
}

// A change that all of a network's NADs come to say is made when the last does.
func TestZoneNADsAgreeOnAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node(1, true)
		w.namespace("blue", true)
		w.sharedNAD("blue")
		w.sharedNAD("red")
		w.run()
		w.waitFor(sharedNet + "_ovn_cluster_router")
		w.settled()
		before := w.nb.Rows().Dump()
		const wider = sharedSubnets + ",10.11.0.0/16/24"
		w.editNAD("blue", "net", resubnetted(wider))
		w.pod("blue", "a", nil) // refused until red's says so too
		w.settled()
		if got := w.nb.Rows().Dump(); got != before {
			t.Errorf("rows were\n%s\nare\n%s", before, got)
		}
		w.editNAD("red", "net", resubnetted(wider))
		w.wait("annotation", func() bool { return len(w.networks("blue", "a")) == 2 })
		w.wait("rows of the change", func() bool { return strings.Contains(w.nb.Rows().Dump(), "10.11.0.0/16") })
	})
}
