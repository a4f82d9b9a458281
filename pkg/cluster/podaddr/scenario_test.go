// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"bulkhead/pkg/ipam"
	"bulkhead/pkg/network"
)

func asks(raw string) map[string]string {
	return map[string]string{network.AnnotationDefaultNetwork: `[{"name":"default","namespace":"bulkhead",` + raw + `}]`}
}

func selects(raw string) map[string]string { return map[string]string{network.AnnotationNetworks: raw} }

// changeNAD writes a NAD's config anew.
func (s *sim) changeNAD(n *nadv1.NetworkAttachmentDefinition, config string) {
	s.t.Helper()
	old := n.DeepCopy()
	n.Spec.Config = config
	s.must(s.api.Update(s.ctx, n))
	s.r.nadEvents().UpdateFunc(s.ctx, event.TypedUpdateEvent[*nadv1.NetworkAttachmentDefinition]{ObjectOld: old, ObjectNew: n}, nil)
	s.settle()
}

func (s *sim) removeNAD(n *nadv1.NetworkAttachmentDefinition) {
	s.t.Helper()
	s.must(s.api.Delete(s.ctx, n))
	s.r.nadEvents().DeleteFunc(s.ctx, event.TypedDeleteEvent[*nadv1.NetworkAttachmentDefinition]{Object: n}, nil)
	s.settle()
}

func (s *sim) wantIPs(namespace, name, key, want string) {
	s.t.Helper()
	if got := s.ips(namespace, name, key); got != want {
		s.t.Errorf("pod %s/%s has %q on %s, want %q", namespace, name, got, key, want)
	}
}

func (s *sim) wantFree() {
	s.t.Helper()
	for name, a := range s.r.book.allocators {
		if !a.Empty() {
			s.t.Errorf("network %s: held %v, MACs %v, %d tunnel ids", name, a.held, a.macs, a.tunnels.Len())
		}
	}
	if b := s.r.book; len(b.pods)+len(b.waits.pods)+len(b.waits.topics)+len(b.waits.turn)+len(s.r.told) > 0 {
		s.t.Errorf("something is remembered of pods that are gone: pods %v, waits %v, turns %v, told %v", b.pods, b.waits.topics, b.waits.turn, s.r.told)
	}
}

// An address or MAC that another holds is refused, and given when it leaves.
func TestDuplicates(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", primaryL2)
	a := s.pod("red", "a", asks(`"ips":["10.20.0.9"],"mac":"02:00:00:00:00:09"`))
	s.noEvent()
	b := s.pod("red", "b", asks(`"ips":["10.20.0.9/24"]`))
	s.event("10.20.0.9 is held by pod red/a", "delete its holder", network.AnnotationDefaultNetwork)
	c := s.pod("red", "c", asks(`"mac":"02-00-00-00-00-09"`))
	s.event("02:00:00:00:00:09 is held by pod red/a")
	s.wantIPs("red", "b", "red/net", "")
	s.wantIPs("red", "c", "red/net", "")
	s.queue = append(s.queue, Key{Namespace: "red", Name: "b"})
	s.settle()
	s.noEvent() // it was said
	s.remove(a)
	s.wantIPs("red", "b", "red/net", "10.20.0.9/24")
	if n, _ := s.entry("red", "c", "red/net"); n.MAC != "02:00:00:00:00:09" {
		t.Errorf("the MAC went nowhere: %+v", n)
	}
	s.remove(b)
	s.remove(c)
	s.wantFree()
}

// Pods that find no room get it in the order in which they came, one for each
// address that comes free.
func TestExhaustion(t *testing.T) {
	s := newSim(t)
	s.namespace("red", false)
	nad := s.nad("red", "phys", 7, "phys", `"topology":"localnet","physicalNetworkName":"p","subnets":"10.40.0.0/29","excludeSubnets":"10.40.0.4/30"`)
	var holding []*corev1.Pod
	for _, name := range []string{"a", "b", "c"} {
		holding = append(holding, s.pod("red", name, selects("phys")))
	}
	for _, name := range []string{"d", "e", "f"} {
		s.pod("red", name, selects("phys"))
		s.event("no address of 10.40.0.0/29 is free", "use one with larger subnets")
	}
	s.remove(&corev1.Pod{ObjectMeta: s.meta("red", "d", nil)}) // the first does not wait any more
	s.remove(holding[1])
	s.wantIPs("red", "e", "red/phys", "10.40.0.2/29")
	s.wantIPs("red", "f", "red/phys", "")
	s.noEvent()
	// What is excluded no more is room, too; who has an address that is
	// excluded now keeps it.
	s.changeNAD(nad, strings.Replace(nad.Spec.Config, "10.40.0.4/30", "10.40.0.1/32", 1))
	s.wantIPs("red", "f", "red/phys", "10.40.0.4/29")
	s.wantIPs("red", "a", "red/phys", "10.40.0.1/29")
	s.restart(s.r.lookup.Plan)
	s.settle()
	s.wantIPs("red", "a", "red/phys", "10.40.0.1/29")
	if s.target.writes > 0 {
		t.Errorf("%d writes after a restart", s.target.writes)
	}
}

// Who waits longest is first, and several who wait have what comes free at once.
func TestExhaustionOrder(t *testing.T) {
	s := newSim(t)
	s.namespace("red", false)
	const conf = `"topology":"layer2","subnets":"10.40.0.0/29","excludeSubnets":"10.40.0.3/32,10.40.0.4/30"`
	nad := s.nad("red", "net", 7, "net", conf)
	a, b := s.pod("red", "a", selects("net")), s.pod("red", "b", selects("net"))
	for _, name := range []string{"c", "d", "e", "f", "g"} {
		s.pod("red", name, selects("net"))
		s.event("is free")
	}
	s.remove(a)
	s.wantIPs("red", "c", "red/net", "10.40.0.1/29")
	// Who has its turn may have gone unnoticed.
	s.pod("red", "z", selects("net"))
	s.event("is free")
	for _, name := range []string{"d", "e"} {
		s.must(s.api.Delete(s.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: name}}))
	}
	s.remove(b)
	s.wantIPs("red", "f", "red/net", "10.40.0.2/29")
	s.wantIPs("red", "g", "red/net", "")
	s.changeNAD(nad, strings.Replace(nad.Spec.Config, "10.40.0.3/32,10.40.0.4/30", "10.40.0.3/32", 1))
	s.wantIPs("red", "g", "red/net", "10.40.0.4/29")
	s.wantIPs("red", "z", "red/net", "10.40.0.5/29")
	s.noEvent()
}

// An address that a pod waits for by name is the last that others get.
func TestAwaitedAddress(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", primaryL2)
	holder := s.pod("red", "holder", nil)
	s.pod("red", "waits", asks(`"ips":["10.20.0.3"]`))
	s.event("10.20.0.3 is held by pod red/holder")
	s.r.book.allocators["red_net"].pools = map[netip.Prefix]*ipam.Addresses{} // begins anew at the first
	s.must(s.api.Delete(s.ctx, holder))
	s.queue = append(s.queue, Key{Namespace: "red", Name: "holder"}, Key{Namespace: "red", Name: "quick"})
	p := &corev1.Pod{ObjectMeta: s.meta("red", "quick", nil), Spec: corev1.PodSpec{NodeName: "node"}}
	s.must(s.api.Create(s.ctx, p))
	s.settle()
	s.wantIPs("red", "quick", "red/net", "10.20.0.4/24")
	s.wantIPs("red", "waits", "red/net", "10.20.0.3/24")
}

// OVN's port keys can be used up, too.
func TestTunnelsUsedUp(t *testing.T) {
	s := newSim(t)
	s.namespace("red", false)
	s.nad("red", "net", 7, "net", noIPAML2)
	alloc := s.r.book.allocator("net")
	alloc.tunnels = ipam.NewIDs(10, 10, ipam.NextFit, time.Hour)
	a := s.pod("red", "a", selects("net"))
	b := s.pod("red", "b", selects("net"))
	s.event("as many pods as OVN has port keys")
	if len(alloc.macs) != 1 {
		t.Errorf("MACs %v", alloc.macs)
	}
	s.remove(a)
	s.wantIPs("red", "b", "red/net", "none")
	s.remove(b)
	s.wantFree()
}

// A network's description may go or break: who runs in it loses nothing, and
// nobody else gets it, not even after a restart.
func TestNADBreaks(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.namespace("blue", true)
	s.nad("blue", "net", 7, "shared", primaryL2)
	nad := s.nad("red", "net", 7, "shared", primaryL2)
	good := nad.Spec.Config
	p := s.pod("red", "a", nil)
	s.run("red", "a")
	for _, broken := range []string{strings.Replace(good, "10.20.0.0", "10.20.0", 1), "{"} {
		s.changeNAD(nad, broken)
		s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
		s.restart(s.r.lookup.Plan)
		s.settle()
		s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
		b := s.pod("blue", "b", asks(`"ips":["10.20.0.3"]`))
		s.event("10.20.0.3 is held by pod red/a")
		s.remove(b)
		s.changeNAD(nad, good)
	}
	s.removeNAD(nad)
	s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
	s.pod("red", "late", nil)
	s.noEvent() // the zone says what is missing
	s.wantIPs("red", "late", "red/net", "")
	s.restart(s.r.lookup.Plan)
	s.settle()
	nad = s.nad("red", "net", 7, "shared", primaryL2)
	s.settle()
	s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
	s.wantIPs("red", "late", "red/net", "10.20.0.4/24")
	if s.target.writes != 1 {
		t.Errorf("%d writes, want one for the pod that waited", s.target.writes)
	}
	s.remove(p)
	s.removeNAD(nad)
}

// A network that nobody describes and nobody uses is forgotten.
func TestNetworkForgotten(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	nad := s.nad("red", "net", 7, "red_net", primaryL2)
	p := s.pod("red", "a", nil)
	s.removeNAD(nad)
	if s.r.book.allocators["red_net"] == nil {
		t.Error("a network was forgotten while a pod used it")
	}
	s.remove(p)
	s.wantFree()
	if len(s.r.book.allocators)+len(s.r.book.nads)+len(s.r.book.described) > 0 {
		t.Errorf("remembered: %v %v", s.r.book.allocators, s.r.book.nads)
	}
}

// Entries that a pod's creator wrote decide nothing, and entries of others stay.
func TestForeignEntries(t *testing.T) {
	s := newSim(t)
	s.namespace("red", false)
	s.namespace("blue", false)
	s.nad("red", "net", 7, "red_net", secondaryL2)
	s.nad("blue", "net", 8, "blue_net", secondaryL2)
	s.nad("blue", "l3", 9, "blue_l3", `"topology":"layer3","subnets":"10.50.0.0/16"`)
	forged := `{"ip_addresses":["10.30.0.200/24"],"mac_address":"0a:58:0a:1e:00:c8","tunnel_id":5,"role":"secondary"}`
	zone := `{"ip_addresses":["10.244.0.9/24"],"mac_address":"0a:58:0a:f4:00:09","more":{"a":1}}`
	annotations := selects("net")
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
	// Somebody changes the entry of a pod that has one: it is put right.
	p.Annotations[network.AnnotationPodNetworks] = strings.ReplaceAll(p.Annotations[network.AnnotationPodNetworks], "10.30.0.1/24", "10.30.0.7/24")
	s.must(s.api.Update(s.ctx, p))
	s.queue = append(s.queue, key)
	s.settle()
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

	s.pod("red", "p", selects(`more@net1, more`))
	s.wantIPs("red", "p", "red/net", "10.20.0.3/24")
	s.wantIPs("red", "p", "red/more", "10.30.0.1/24")
	s.wantIPs("red", "p", "red/more/1", "10.30.0.2/24")
	s.noEvent()
	s.pod("blue", "p", selects(`red/plain,l3,macvlan`))
	s.wantIPs("blue", "p", "red/plain", "10.30.0.1/24") // an administrator's, for all
	s.noEvent()
	s.pod("blue", "q", selects(`red/more`))
	s.event("NetworkAttachmentDefinition red/more is of another namespace")
	s.pod("red", "r", selects(`net`))
	s.event("red/net is a primary network", "remove it from annotation")
	s.wantIPs("red", "r", "red/net", "10.20.0.4/24")
	s.pod("blue", "s", selects(`later`))
	s.event("NetworkAttachmentDefinition blue/later", "does not exist: create it")
	s.nad("blue", "later", 11, "later", secondaryL2)
	s.settle()
	s.wantIPs("blue", "s", "blue/later", "10.30.0.1/24")
	s.pod("blue", "t", selects(`[{"name":`))
	s.event("annotation k8s.v1.cni.cncf.io/networks: it is not a JSON list", "write [{")
	s.pod("blue", "u", selects(`[{"name":"later","ips":["x"]},{"name":"red/plain"}]`))
	s.event("names")
	s.pod("blue", "v", selects(`[{"name":"later","ips":["x"]},{"name":"plain","namespace":"red"}]`))
	s.event("element 1 (blue/later): ips:")
	s.wantIPs("blue", "v", "blue/later", "")
	s.wantIPs("blue", "v", "red/plain", "10.30.0.2/24")
	s.pod("red", "w", asks(`"mac":"33:33:00:00:00:01"`))
	s.event("annotation v1.multus-cni.io/default-network: mac: 33:33:00:00:00:01 is no single interface's address")
	host := &corev1.Pod{ObjectMeta: s.meta("red", "host", nil), Spec: corev1.PodSpec{NodeName: "n", HostNetwork: true}}
	waits := &corev1.Pod{ObjectMeta: s.meta("red", "unscheduled", nil)}
	for _, p := range []*corev1.Pod{host, waits} {
		s.must(s.api.Create(s.ctx, p))
		s.queue = append(s.queue, Key{Namespace: "red", Name: p.Name})
		s.settle()
		s.wantIPs("red", p.Name, "red/net", "")
	}
	s.noEvent()
}

// Another pod of the name is another pod.
func TestSameName(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", primaryL2)
	p := s.pod("red", "a", nil)
	s.must(s.api.Delete(s.ctx, p))
	s.pod("red", "a", nil) // its deletion was not seen
	s.wantIPs("red", "a", "red/net", "10.20.0.4/24")
	if a := s.r.book.allocators["red_net"]; len(a.held) != 1 || len(a.macs) != 1 || a.tunnels.Len() != 1 {
		t.Errorf("held %v, MACs %v, %d tunnel ids", a.held, a.macs, a.tunnels.Len())
	}
}

// What was restored is not free because the cache does not show it yet.
func TestCacheBehind(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	claim := s.claim("red", "vm", "red_net")
	p := s.pod("red", "a", asks(`"ipam-claim-reference":"vm"`))
	s.restart(s.r.lookup.Plan)
	s.r.cache = without{s.api, []string{p.Name, claim.Name}}
	s.settle()
	a := s.r.book.allocators["red_net"]
	if a == nil || len(a.held) != 1 || len(a.macs) != 1 {
		t.Fatalf("held %+v", a)
	}
	s.r.cache = s.api
	s.remove(p)
	s.remove(claim)
	s.wantFree()
}
