// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// setText returns the addresses of one of the shared address sets.
func (env *zoneEnv) setText(id string) string {
	row, ok := env.row(id)
	if !ok {
		return "none"
	}
	return strings.Join(row.Model.(*nbdb.AddressSet).Addresses, " ")
}

// The annotation of a network's NAD says whether it is advertised: its SNAT, its ACLs and the
// set of advertised subnets follow, there and back.
func TestZoneAdvertised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("sky", "sky", "cluster_udn_sky", 1, "10.10.0.0/16/24")
		env.run()
		env.waitUntil("ready", env.zone.Ready)
		set := func(vrfs string) {
			api := env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("sky")
			obj, err := api.Get(context.Background(), "sky", metav1.GetOptions{})
			env.must(err)
			obj.Annotations[network.AnnotationAdvertisedVRFs] = vrfs
			_, err = api.Update(context.Background(), obj, metav1.UpdateOptions{})
			env.must(err)
		}
		const acl = "cluster_udn_sky_advertised-deny-ip4"
		snat := func() string {
			for _, r := range env.nb.Rows() {
				if nat, ok := r.Model.(*nbdb.NAT); ok && strings.HasPrefix(r.ID, "GR_cluster_udn_sky_node1 snat 10.10.") {
					return nat.Match
				}
			}
			return "none"
		}
		check := func(what, advertised, match string, denied bool) {
			t.Helper()
			env.waitUntil(what, func() bool {
				return env.setText("bulkhead_advertised_ip4") == advertised && snat() == match && env.has(acl) == denied
			})
		}
		check("not advertised", "", "", false)
		set("default")
		check("advertised", "10.10.0.0/16", "ip4.dst == {$bulkhead_nodes_ip4}", true)
		// An unusable NAD takes nothing away.
		var config string
		env.editNAD("sky", "sky", func(n *nadv1.NetworkAttachmentDefinition) { config, n.Spec.Config = n.Spec.Config, "{" })
		env.settle()
		check("with an unusable NAD", "10.10.0.0/16", "ip4.dst == {$bulkhead_nodes_ip4}", true)
		env.editNAD("sky", "sky", func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = config })
		env.settle()
		// In its own VRF it keeps its pods' addresses, and what is there may have those of networks in the default VRF.
		set("auto")
		check("advertised in its own VRF", "", "ip4.dst == {$bulkhead_nodes_ip4}", false)
		set("default")
		check("advertised again", "10.10.0.0/16", "ip4.dst == {$bulkhead_nodes_ip4}", true)
		set("")
		check("withdrawn", "", "", false)
	})
}

// A network without an overlay that BGP does not announce isolates nobody from its subnets, which may have the nodes'
// addresses: no route leads to its pods.
func TestZoneNotAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("sky", "sky", "cluster_udn_sky", 1, "10.10.0.0/16/24")
		env.editNAD("sky", "sky", func(n *nadv1.NetworkAttachmentDefinition) {
			n.Spec.Config = strings.Replace(n.Spec.Config, "{", `{"transport":"no-overlay","outboundSNAT":"disabled",`, 1)
		})
		env.run()
		env.waitUntil("ready", env.zone.Ready)
		for _, c := range []struct{ vrfs, want string }{{"", ""}, {"default", "10.10.0.0/16"}, {"", ""}} {
			env.editNAD("sky", "sky", func(n *nadv1.NetworkAttachmentDefinition) { n.Annotations[network.AnnotationAdvertisedVRFs] = c.vrfs })
			env.settle()
			if got := env.setText("bulkhead_advertised_ip4"); got != c.want || !env.has("cluster_udn_sky_advertised-deny-ip4") {
				t.Errorf("advertised in %q: subnets %q, want %q", c.vrfs, got, c.want)
			}
		}
	})
}

// Pods of an advertised network whose NAD was deleted by force stay isolated while they run.
func TestZoneAdvertisedDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.sharedNAD("red")
		env.editNAD("red", "net", func(n *nadv1.NetworkAttachmentDefinition) {
			n.Annotations[network.AnnotationAdvertisedVRFs] = "default"
		})
		env.pod("red", "a", nil)
		env.run()
		env.waitUntil("annotation", func() bool { return len(env.networks("red", "a")) == 2 })
		env.setRunning("red", "a")
		check := func(what, want string) {
			t.Helper()
			env.settle()
			if got := env.setText("bulkhead_advertised_ip4"); got != want {
				t.Errorf("%s: advertised subnets %q, want %q", what, got, want)
			}
		}
		check("advertised", "10.10.0.0/16")
		env.deleteNAD("red", "net")
		check("the NAD is gone", "10.10.0.0/16")
		env.deletePod("red", "a")
		check("the pod too", "")
	})
}

// Routes that BGP has learned are the uplink router's, except those to pods of an advertised
// network with an overlay; packets to a network without one that no route leads to are dropped.
func TestZoneImportedRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		// The second has the subnets of the first: its RouteAdvertisements is refused.
		for i, name := range []string{"sky", "late"} {
			env.nadOf(name, name, i+1, network.NetConf{Name: "cluster_udn_" + name, Topology: "layer3", Role: "primary", Subnets: "10.10.0.0/16/24", Transport: network.TransportNoOverlay, OutboundSNAT: "enabled"})
		}
		route := func(prefix string) ImportedRoute {
			return ImportedRoute{Prefix: netip.MustParsePrefix(prefix), NextHops: []netip.Addr{netip.MustParseAddr("172.18.0.2")}}
		}
		env.run()
		env.zone.SetImportedRoutes([]ImportedRoute{route("10.10.1.0/24"), route("10.244.1.0/24"), route("203.0.113.0/24")})
		id := func(prefix string) string { return "uplink__node1 dst-ip " + prefix + " 172.18.0.2" }
		check := func(what string, yes, no []string) {
			t.Helper()
			env.waitUntil(what, func() bool {
				for _, id := range yes {
					if !env.has(id) {
						return false
					}
				}
				for _, id := range no {
					if env.has(id) {
						return false
					}
				}
				return true
			})
		}
		const discard = "uplink__node1 discard 10.10.0.0/16"
		announce := func(name string) {
			env.editNAD(name, name, func(n *nadv1.NetworkAttachmentDefinition) {
				n.Annotations[network.AnnotationAdvertisedVRFs] = "default"
			})
		}
		// Within a third network's subnets they would hide its routes.
		check("not announced", []string{id("10.10.1.0/24")}, []string{discard})
		announce("sky")
		if n := testutil.ToFloat64(env.zone.metrics.learned); n != 3 {
			t.Errorf("%v routes are learned, want 3", n)
		}
		check("imported", []string{id("10.10.1.0/24"), id("203.0.113.0/24"), discard}, []string{id("10.244.1.0/24")})
		env.zone.SetImportedRoutes([]ImportedRoute{route("203.0.113.0/24")})
		check("withdrawn", []string{id("203.0.113.0/24"), discard}, []string{id("10.10.1.0/24")})
		remove := func(name string) {
			env.must(env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(name).Delete(context.Background(), name, metav1.DeleteOptions{}))
		}
		remove("sky")
		env.waitUntil("the first is gone", func() bool { return !env.has("GR_cluster_udn_sky_node1") })
		check("one is left, which is not announced", nil, []string{discard})
		announce("late")
		check("it is announced", []string{discard}, nil)
		remove("late")
		check("the network is gone", []string{id("203.0.113.0/24")}, []string{discard})
	})
}
