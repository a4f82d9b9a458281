// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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

// A namespace that joins or leaves a shared network changes what it has there, and nothing else of the network is built.
func TestZoneNamespaceJoinsAndLeaves(t *testing.T) {
	for _, topology := range []string{"layer2", "layer3"} {
		t.Run(topology, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newZoneEnv(t)
				env.node(1, true)
				env.node(2, true)
				layer2 := topology == "layer2"
				join := func(ns string) {
					c := network.NetConf{Name: sharedNet, Topology: topology, Role: "primary", Subnets: sharedSubnets}
					if layer2 {
						c.Subnets = "10.10.0.0/16"
					}
					env.nadOf(ns, "net", 1, c)
				}
				far := func(ns string, n int) {
					env.remotePod("node2", ns, fmt.Sprintf("far-%s-%d", ns, n), fmt.Sprintf(`{"default":{},"%s/net":%s}`, ns, layer2Entry(fmt.Sprintf("10.10.1.%d", n), fmt.Sprintf("0a:58:0a:0a:01:%02d", n), 100+n)))
				}
				fill := func(ns string, n int) {
					env.pod(ns, "a", nil)
					env.service(ns, "web", 0, nil, fmt.Sprintf("10.96.0.%d", n))
					env.endpoints(ns, "web", sharedNet, fmt.Sprintf("10.10.0.%d", n))
					if layer2 {
						far(ns, n)
					}
				}
				entries := func(ns string, n int) {
					env.waitUntil("annotation", func() bool { return len(env.networks(ns, "a")) > 0 })
					if layer2 {
						env.setNetworks(ns, "a", func(p network.PodNetworks) {
							p[ns+"/net"] = entry(t, layer2Entry(fmt.Sprintf("10.10.2.%d", n), fmt.Sprintf("0a:58:0a:0a:02:%02d", n), 200+n))
						})
					}
				}
				rowsOf := func(ns string) []string {
					out := []string{ns + ".net_" + ns + "_a"}
					if layer2 {
						out = append(out, ns+".net_"+ns+"_far-"+ns+"-"+map[string]string{"amber": "11", "blue": "12", "red": "13", "green": "14"}[ns])
					}
					return out
				}
				for i, ns := range []string{"amber", "blue", "red"} {
					if ns != "red" {
						env.namespace(ns, true)
					}
					join(ns)
					fill(ns, 11+i)
				}
				env.run()
				for i, ns := range []string{"amber", "blue", "red"} {
					entries(ns, 11+i)
				}
				env.settle()
				vips := func(of ...int) map[string]string {
					out := map[string]string{}
					for _, n := range of {
						out[fmt.Sprintf("%s 10.96.0.%d:80", sharedNet, n)] = fmt.Sprintf("10.10.0.%d:8080", n)
					}
					return out
				}
				env.waitForVIPs("of three namespaces", vips(11, 12, 13))
				before := env.nb.Rows().Dump()
				// Everything of the fourth namespace is there before its NAD.
				env.namespace("green", true)
				fill("green", 14)
				env.settle()
				whole, start := env.nb.whole.Load(), time.Now() // just after an audit
				join("green")
				entries("green", 14)
				for _, ns := range []string{"amber", "blue", "red", "green"} {
					for _, id := range rowsOf(ns) {
						env.waitForRow(id)
					}
				}
				env.waitUntil("services of four namespaces", func() bool { return maps.Equal(env.vips(), vips(11, 12, 13, 14)) })

				env.deletePod("green", "a")
				if layer2 {
					env.deletePod("green", "far-green-14")
				}
				env.waitUntil("pods' ports gone", func() bool { return !slices.ContainsFunc(rowsOf("green"), env.has) })
				env.deleteNAD("green", "net")
				env.waitUntil("the rows of three namespaces", func() bool { return env.nb.Rows().Dump() == before })
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if n := env.nb.whole.Load() - whole; n > 0 || time.Since(start) > auditPause/2 {
					t.Errorf("%d networks were built as a whole in %v, want none, before the next audit", n, time.Since(start))
				}
				// The last NAD concerns the whole network.
				for _, ns := range []string{"amber", "blue", "red"} {
					env.deletePod(ns, "a")
					env.deleteNAD(ns, "net")
				}
				env.waitUntil("no network", func() bool { return !strings.Contains(env.nb.Rows().Dump(), sharedNet) })
			})
		})
	}
}
