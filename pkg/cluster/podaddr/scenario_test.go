// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/ipam"
	"bulkhead/pkg/network"
)

// primaryRequest returns annotations with settings for the primary network.
func primaryRequest(raw string) map[string]string {
	return map[string]string{network.AnnotationDefaultNetwork: `[{"name":"default","namespace":"bulkhead",` + raw + `}]`}
}

// secondaryRequest returns annotations that request networks.
func secondaryRequest(raw string) map[string]string {
	return map[string]string{network.AnnotationNetworks: raw}
}

// changeNAD replaces a NAD's config.
func (s *sim) changeNAD(n *nadv1.NetworkAttachmentDefinition, config string) {
	s.t.Helper()
	old := n.DeepCopy()
	n.Spec.Config = config
	s.must(s.api.Update(s.ctx, n))
	s.r.nadEvents().UpdateFunc(s.ctx, event.TypedUpdateEvent[*nadv1.NetworkAttachmentDefinition]{ObjectOld: old, ObjectNew: n}, nil)
	s.drain()
}

func (s *sim) removeNAD(n *nadv1.NetworkAttachmentDefinition) {
	s.t.Helper()
	s.must(s.api.Delete(s.ctx, n))
	s.r.nadEvents().DeleteFunc(s.ctx, event.TypedDeleteEvent[*nadv1.NetworkAttachmentDefinition]{Object: n}, nil)
	s.drain()
}

// startDeletion deletes a NAD whose finalizer keeps it.
func (s *sim) startDeletion(n *nadv1.NetworkAttachmentDefinition) {
	s.t.Helper()
	n.Finalizers = []string{network.FinalizerUDN}
	s.must(s.api.Update(s.ctx, n))
	old := n.DeepCopy()
	s.must(s.api.Delete(s.ctx, n))
	s.must(s.api.Get(s.ctx, client.ObjectKeyFromObject(n), n))
	s.r.nadEvents().UpdateFunc(s.ctx, event.TypedUpdateEvent[*nadv1.NetworkAttachmentDefinition]{ObjectOld: old, ObjectNew: n}, nil)
	s.drain()
}

func (s *sim) wantIPs(namespace, name, key, want string) {
	s.t.Helper()
	if got := s.ips(namespace, name, key); got != want {
		s.t.Errorf("pod %s/%s has %q on %s, want %q", namespace, name, got, key, want)
	}
}

func (s *sim) wantNothingHeld() {
	s.t.Helper()
	for name, a := range s.r.tracker.allocators {
		if !a.Empty() {
			s.t.Errorf("network %s: held %v, MACs %v, %d tunnel ids", name, a.held, a.macs, a.tunnels.Len())
		}
	}
	if tr := s.r.tracker; len(tr.pods)+len(tr.waiting.byTopic)+len(tr.waiting.byPod)+len(tr.waiting.notified)+s.r.reported.Len() > 0 {
		s.t.Errorf("deleted pods are still tracked: pods %v, waiting %v, notified %v, reported %v", tr.pods, tr.waiting.byPod, tr.waiting.notified, s.r.reported)
	}
}

// A request for a taken address or MAC is refused, and fulfilled when its holder
// is deleted.
func TestConflicts(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", primaryL2)
	a := s.pod("red", "a", primaryRequest(`"ips":["10.20.0.9"],"mac":"02:00:00:00:00:09"`))
	s.wantNoEvent()
	b := s.pod("red", "b", primaryRequest(`"ips":["10.20.0.9/24"]`))
	s.wantEvent("10.20.0.9 is held by pod red/a", "delete its holder", network.AnnotationDefaultNetwork)
	c := s.pod("red", "c", primaryRequest(`"mac":"02-00-00-00-00-09"`))
	s.wantEvent("02:00:00:00:00:09 is held by pod red/a")
	s.wantIPs("red", "b", "red/net", "")
	s.wantIPs("red", "c", "red/net", "")
	s.queue = append(s.queue, Key{Namespace: "red", Name: "b"})
	s.drain()
	s.wantNoEvent() // the same event is not repeated
	s.remove(a)
	s.wantIPs("red", "b", "red/net", "10.20.0.9/24")
	if n, _ := s.entry("red", "c", "red/net"); n.MAC != "02:00:00:00:00:09" {
		t.Errorf("the released MAC was not assigned: %+v", n)
	}
	s.remove(b)
	s.remove(c)
	s.wantNothingHeld()
}

// When a subnet is exhausted, pods get released addresses in the order in which
// they started to wait.
func TestExhaustion(t *testing.T) {
	s := newSim(t)
	s.namespace("red", false)
	nad := s.nad("red", "phys", 7, "phys", `"topology":"localnet","physicalNetworkName":"p","subnets":"10.40.0.0/29","excludeSubnets":"10.40.0.4/30"`)
	var holders []*corev1.Pod
	for _, name := range []string{"a", "b", "c"} {
		holders = append(holders, s.pod("red", name, secondaryRequest("phys")))
	}
	for _, name := range []string{"d", "e", "f"} {
		s.pod("red", name, secondaryRequest("phys"))
		s.wantEvent("no address of 10.40.0.0/29 is free", "use a network with larger subnets")
	}
	s.remove(&corev1.Pod{ObjectMeta: s.meta("red", "d", nil)}) // the first waiting pod is deleted
	s.remove(holders[1])
	s.wantIPs("red", "e", "red/phys", "10.40.0.2/29")
	s.wantIPs("red", "f", "red/phys", "")
	s.wantNoEvent()
	// Addresses that are no longer excluded become free. A pod keeps an address
	// that is excluded now.
	s.changeNAD(nad, strings.Replace(nad.Spec.Config, "10.40.0.4/30", "10.40.0.1/32", 1))
	s.wantIPs("red", "f", "red/phys", "10.40.0.4/29")
	s.wantIPs("red", "a", "red/phys", "10.40.0.1/29")
	s.restart(s.r.lookup.Plan)
	s.drain()
	s.wantIPs("red", "a", "red/phys", "10.40.0.1/29")
	if s.target.writes > 0 {
		t.Errorf("%d writes after a restart", s.target.writes)
	}
}

// The pod that has waited longest is first, and several pods get addresses that
// become free at once.
func TestExhaustionOrder(t *testing.T) {
	s := newSim(t)
	s.namespace("red", false)
	const conf = `"topology":"layer2","subnets":"10.40.0.0/29","excludeSubnets":"10.40.0.3/32,10.40.0.4/30"`
	nad := s.nad("red", "net", 7, "net", conf)
	a, b := s.pod("red", "a", secondaryRequest("net")), s.pod("red", "b", secondaryRequest("net"))
	for _, name := range []string{"c", "d", "e", "f", "g"} {
		s.pod("red", name, secondaryRequest("net"))
		s.wantEvent("is free")
	}
	s.remove(a)
	s.wantIPs("red", "c", "red/net", "10.40.0.1/29")
	// A notified pod may have been deleted, and its event may be late.
	s.pod("red", "z", secondaryRequest("net"))
	s.wantEvent("is free")
	for _, name := range []string{"d", "e"} {
		s.must(s.api.Delete(s.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: name}}))
	}
	s.remove(b)
	s.wantIPs("red", "f", "red/net", "10.40.0.2/29")
	s.wantIPs("red", "g", "red/net", "")
	s.changeNAD(nad, strings.Replace(nad.Spec.Config, "10.40.0.3/32,10.40.0.4/30", "10.40.0.3/32", 1))
	s.wantIPs("red", "g", "red/net", "10.40.0.4/29")
	s.wantIPs("red", "z", "red/net", "10.40.0.5/29")
	s.wantNoEvent()
}

// An address that a pod has requested and waits for is allocated to others last.
func TestRequestedAddress(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", primaryL2)
	holder := s.pod("red", "holder", nil)
	s.pod("red", "waiter", primaryRequest(`"ips":["10.20.0.3"]`))
	s.wantEvent("10.20.0.3 is held by pod red/holder")
	s.r.tracker.allocators["red_net"].pools = map[netip.Prefix]*ipam.Addresses{} // allocation restarts at the first address
	s.must(s.api.Delete(s.ctx, holder))
	s.queue = append(s.queue, Key{Namespace: "red", Name: "holder"}, Key{Namespace: "red", Name: "quick"})
	p := &corev1.Pod{ObjectMeta: s.meta("red", "quick", nil), Spec: corev1.PodSpec{NodeName: "node"}}
	s.must(s.api.Create(s.ctx, p))
	s.drain()
	s.wantIPs("red", "quick", "red/net", "10.20.0.4/24")
	s.wantIPs("red", "waiter", "red/net", "10.20.0.3/24")
}

// Tunnel ids can be exhausted.
func TestTunnelIDsExhausted(t *testing.T) {
	s := newSim(t)
	s.namespace("red", false)
	s.nad("red", "net", 7, "net", noIPAML2)
	alloc := s.r.tracker.allocator("net")
	alloc.tunnels = ipam.NewIDs(10, 10, ipam.NextFit, time.Hour)
	a := s.pod("red", "a", secondaryRequest("net"))
	b := s.pod("red", "b", secondaryRequest("net"))
	s.wantEvent("as many pods as OVN has port keys")
	if len(alloc.macs) != 1 {
		t.Errorf("MACs %v", alloc.macs)
	}
	s.remove(a)
	s.wantIPs("red", "b", "red/net", "none")
	s.remove(b)
	s.wantNothingHeld()
}

// A tunnel id that one leader has released is not the first that the next one allocates, however
// many leaders have raised the mark.
func TestTunnelIDsAfterManyLeaders(t *testing.T) {
	s := newSim(t)
	s.must(s.marks.Raise(s.ctx, idlease.AllPorts, 40000, 0))
	s.namespace("red", false)
	s.nad("red", "net", 7, "net", secondaryL2)
	seen := map[int]string{}
	for _, name := range []string{"a", "b", "c"} {
		s.restart(s.r.lookup.Plan)
		p := s.pod("red", name, secondaryRequest("net"))
		n, _ := s.entry("red", name, "red/net")
		if other := seen[n.TunnelID]; other != "" || n.TunnelID == 0 {
			t.Errorf("pod %s has the tunnel id %d of pod %q", name, n.TunnelID, other)
		}
		seen[n.TunnelID] = name
		s.remove(p)
	}
}

// A leader may end before it writes that a network is deleted. The next one drops the network's mark of tunnel ids, unless a
// pod may still be on the network.
func TestMarksOfDeletedNetworks(t *testing.T) {
	s := newSim(t)
	kinds := []string{idlease.Networks, idlease.AllPorts, idlease.Ports("net"), idlease.Ports("gone")}
	wantMarks := func(when string, want ...string) {
		t.Helper()
		for _, kind := range kinds {
			if got, err := s.marks.Get(s.ctx, kind); err != nil || got > 0 != slices.Contains(want, kind) {
				t.Errorf("%s: mark of %s is %d (%v), want those of %q", when, kind, got, err, want)
			}
		}
	}
	for _, kind := range kinds {
		s.must(s.marks.Raise(s.ctx, kind, 2000, 0))
	}
	s.namespace("red", false)
	nad := s.nad("red", "net", 7, "net", secondaryL2)
	p := s.pod("red", "a", secondaryRequest("net"))
	s.markRunning("red", "a")
	s.restart(s.r.lookup.Plan)
	wantMarks("with a NAD", kinds[:3]...)
	s.remove(nad) // by force: the pod's annotation names the NAD only
	s.restart(s.r.lookup.Plan)
	wantMarks("with a pod", kinds[:3]...)
	s.remove(p)
	s.restart(s.r.lookup.Plan)
	wantMarks("without a pod", kinds[:2]...)
}

// When a NAD is deleted or becomes unusable, running pods keep their addresses,
// and no other pod gets them, not even after a restart.
func TestNADUnusable(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.namespace("blue", true)
	s.nad("blue", "net", 7, "shared", primaryL2)
	nad := s.nad("red", "net", 7, "shared", primaryL2)
	config := nad.Spec.Config
	p := s.pod("red", "a", nil)
	s.markRunning("red", "a")
	for _, unusable := range []string{strings.Replace(config, "10.20.0.0", "10.20.0", 1), "{"} {
		s.changeNAD(nad, unusable)
		s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
		s.restart(s.r.lookup.Plan)
		s.drain()
		s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
		b := s.pod("blue", "b", primaryRequest(`"ips":["10.20.0.3"]`))
		s.wantEvent("10.20.0.3 is held by pod red/a")
		s.remove(b)
		s.changeNAD(nad, config)
	}
	s.removeNAD(nad)
	s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
	s.pod("red", "late", nil)
	s.wantNoEvent() // the zone reports it
	s.wantIPs("red", "late", "red/net", "")
	s.restart(s.r.lookup.Plan)
	s.drain()
	nad = s.nad("red", "net", 7, "shared", primaryL2)
	s.drain()
	s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
	s.wantIPs("red", "late", "red/net", "10.20.0.4/24")
	if s.target.writes != 1 {
		t.Errorf("%d writes, want one for the pod that waited", s.target.writes)
	}
	s.remove(p)
	s.removeNAD(nad)
}

// TestNADDeletedByForce: a running pod whose NAD was deleted by force keeps its address from the pods of the network's
// other namespaces, also after the leader has changed, whether the NAD returns or the pod ends first.
func TestNADDeletedByForce(t *testing.T) {
	for _, name := range []string{"shared", network.CUDNName("net")} {
		for _, returns := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, returns %t", name, returns), func(t *testing.T) {
				s := newSim(t)
				s.namespace("red", true)
				s.namespace("blue", true)
				s.nad("blue", "net", 7, name, primaryL2)
				nad := s.nad("red", "net", 7, name, primaryL2)
				p := s.pod("red", "a", nil)
				s.markRunning("red", "a")
				s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
				s.removeNAD(nad)
				s.restart(s.r.lookup.Plan)
				s.pod("blue", "b", nil)
				s.wantIPs("blue", "b", "blue/net", "10.20.0.4/24")
				s.pod("blue", "c", primaryRequest(`"ips":["10.20.0.3"]`))
				s.wantEvent("10.20.0.3 is held by pod red/a")
				s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
				if returns {
					s.nad("red", "net", 7, name, primaryL2)
					s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
					s.wantIPs("blue", "c", "blue/net", "")
				}
				s.remove(p)
				s.wantIPs("blue", "c", "blue/net", "10.20.0.3/24")
			})
		}
	}
}

// A network without NADs and pods is removed.
func TestNetworkRemoved(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	nad := s.nad("red", "net", 7, "red_net", primaryL2)
	p := s.pod("red", "a", nil)
	s.removeNAD(nad)
	if s.r.tracker.allocators["red_net"] == nil {
		t.Error("a network was removed while a pod used it")
	}
	s.remove(p)
	s.wantNothingHeld()
	if len(s.r.tracker.allocators)+len(s.r.tracker.nads)+len(s.r.tracker.nadCount) > 0 {
		t.Errorf("still tracked: %v %v", s.r.tracker.allocators, s.r.tracker.nads)
	}
}

// Entries that a pod's author wrote are ignored, and entries of other writers
// stay unchanged.
func TestForeignEntries(t *testing.T) {
	s := newSim(t)
	s.namespace("red", false)
	s.namespace("blue", false)
	s.nad("red", "net", 7, "red_net", secondaryL2)
	s.nad("blue", "net", 8, "blue_net", secondaryL2)
	s.nad("blue", "l3", 9, "blue_l3", `"topology":"layer3","subnets":"10.50.0.0/16"`)
	forged := `{"ip_addresses":["10.30.0.200/24"],"mac_address":"0a:58:0a:1e:00:c8","tunnel_id":5,"role":"secondary"}`
	zone := `{"ip_addresses":["10.244.0.9/24"],"mac_address":"0a:58:0a:f4:00:09","more":{"a":1}}`
	annotations := secondaryRequest("net")
	annotations[network.AnnotationPodNetworks] = fmt.Sprintf(`{"default":%s,"blue/l3":%s,"unknown/net":%s,"red/net":%s,"blue/net":%s}`, zone, zone, zone, forged, forged)
	s.pod("blue", "a", annotations)
	s.wantIPs("blue", "a", "blue/net", "10.30.0.1/24")
	s.wantIPs("blue", "a", "red/net", "")
	p := &corev1.Pod{ObjectMeta: s.meta("blue", "a", nil)}
	key := Key{Namespace: "blue", Name: "a"}
	s.must(s.api.Get(s.ctx, key.name(), p))
	var raw map[string]json.RawMessage
	s.must(json.Unmarshal([]byte(p.Annotations[network.AnnotationPodNetworks]), &raw))
	for _, k := range []string{"default", "blue/l3", "unknown/net"} {
		if string(raw[k]) != zone {
			t.Errorf("%s became %s", k, raw[k])
		}
	}
	// A changed entry is restored.
	p.Annotations[network.AnnotationPodNetworks] = strings.ReplaceAll(p.Annotations[network.AnnotationPodNetworks], "10.30.0.1/24", "10.30.0.7/24")
	s.must(s.api.Update(s.ctx, p))
	s.queue = append(s.queue, key)
	s.drain()
	s.wantIPs("blue", "a", "blue/net", "10.30.0.1/24")
}

func TestSelected(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.namespace("blue", false)
	s.nad("red", "net", 7, "red_net", primaryL2)
	s.nad("red", "more", 8, "red_more", secondaryL2)
	s.nad("red", "plain", 9, "plain", secondaryL2)
	s.nad("blue", "l3", 10, "blue_l3", `"topology":"layer3","subnets":"10.50.0.0/16"`)
	macvlan := &nadv1.NetworkAttachmentDefinition{ObjectMeta: s.meta("blue", "macvlan", nil)}
	macvlan.Spec.Config = `{"type":"macvlan","name":"x"}`
	s.must(s.api.Create(s.ctx, macvlan))

	s.pod("red", "p", secondaryRequest(`more@net1, more`))
	s.wantIPs("red", "p", "red/net", "10.20.0.3/24")
	s.wantIPs("red", "p", "red/more", "10.30.0.1/24")
	s.wantIPs("red", "p", "red/more/1", "10.30.0.2/24")
	s.wantNoEvent()
	s.pod("blue", "p", secondaryRequest(`red/plain,l3,macvlan`))
	s.wantIPs("blue", "p", "red/plain", "10.30.0.1/24") // hand-written NADs are usable in all namespaces
	s.wantNoEvent()
	s.pod("blue", "q", secondaryRequest(`red/more`))
	s.wantEvent("NetworkAttachmentDefinition red/more belongs to another namespace's network")
	s.pod("red", "r", secondaryRequest(`net`))
	s.wantEvent("red/net is a primary network", "remove it from annotation")
	s.wantIPs("red", "r", "red/net", "10.20.0.4/24")
	s.pod("blue", "s", secondaryRequest(`later`))
	s.wantEvent("NetworkAttachmentDefinition blue/later", "does not exist: create it")
	s.nad("blue", "later", 11, "later", secondaryL2)
	s.drain()
	s.wantIPs("blue", "s", "blue/later", "10.30.0.1/24")
	s.pod("blue", "t", secondaryRequest(`[{"name":`))
	s.wantEvent("annotation k8s.v1.cni.cncf.io/networks: it is not a JSON list", "write [{")
	s.pod("blue", "u", secondaryRequest(`[{"name":"later","ips":["x"]},{"name":"red/plain"}]`))
	s.wantEvent("names")
	s.pod("blue", "v", secondaryRequest(`[{"name":"later","ips":["x"]},{"name":"plain","namespace":"red"}]`))
	s.wantEvent("element 1 (blue/later): ips:")
	s.wantIPs("blue", "v", "blue/later", "")
	s.wantIPs("blue", "v", "red/plain", "10.30.0.2/24")
	s.pod("red", "w", primaryRequest(`"mac":"33:33:00:00:00:01"`))
	s.wantEvent("annotation v1.multus-cni.io/default-network: mac: 33:33:00:00:00:01 is not a usable unicast address")
	host := &corev1.Pod{ObjectMeta: s.meta("red", "host", nil), Spec: corev1.PodSpec{NodeName: "n", HostNetwork: true}}
	unscheduled := &corev1.Pod{ObjectMeta: s.meta("red", "unscheduled", nil)}
	for _, p := range []*corev1.Pod{host, unscheduled} {
		s.must(s.api.Create(s.ctx, p))
		s.queue = append(s.queue, Key{Namespace: "red", Name: p.Name})
		s.drain()
		s.wantIPs("red", p.Name, "red/net", "")
	}
	s.wantNoEvent()
}

// A recreated pod gets new addresses, and those of the deleted pod are released.
func TestPodRecreated(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", primaryL2)
	p := s.pod("red", "a", nil)
	s.must(s.api.Delete(s.ctx, p))
	s.pod("red", "a", nil) // without an event for the deletion
	s.wantIPs("red", "a", "red/net", "10.20.0.4/24")
	if a := s.r.tracker.allocators["red_net"]; len(a.held) != 1 || len(a.macs) != 1 || a.tunnels.Len() != 1 {
		t.Errorf("held %v, MACs %v, %d tunnel ids", a.held, a.macs, a.tunnels.Len())
	}
}

// A restored address is not released while the cache lacks its holder.
func TestCacheStale(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	claim := s.claim("red", "vm", "red_net")
	p := s.pod("red", "a", primaryRequest(`"ipam-claim-reference":"vm"`))
	s.restart(s.r.lookup.Plan)
	s.r.cache = cacheWithout{s.api, []string{p.Name, claim.Name}}
	s.drain()
	a := s.r.tracker.allocators["red_net"]
	if a == nil || len(a.held) != 1 || len(a.macs) != 1 {
		t.Fatalf("held %+v", a)
	}
	s.r.cache = s.api
	s.remove(p)
	s.remove(claim)
	s.wantNothingHeld()
}
