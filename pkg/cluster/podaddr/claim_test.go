// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
)

// A claim keeps its addresses from pod to pod, serves two while a virtual
// machine migrates, and gives them back when it is deleted and nobody has them.
func TestClaim(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	with := asks(`"ipam-claim-reference":"vm"`)
	one := s.pod("red", "one", with)
	s.event("IPAMClaim vm, which annotation v1.multus-cni.io/default-network names, does not exist", "spec.network red_net")
	claim := s.claim("red", "vm", "red_net")
	s.wantIPs("red", "one", "red/net", "10.20.0.3/24")
	st := s.status("red", "vm")
	if !slices.Equal(st.IPs, []string{"10.20.0.3/24"}) || st.OwnerPod == nil || st.OwnerPod.Name != "one" || len(st.Conditions) != 1 || st.Conditions[0].Reason != ReasonAllocated {
		t.Errorf("status %+v", st)
	}
	s.run("red", "one")
	two := s.pod("red", "two", with)
	s.wantIPs("red", "two", "red/net", "10.20.0.3/24")
	x, _ := s.entry("red", "one", "red/net")
	y, _ := s.entry("red", "two", "red/net")
	if x.MAC != y.MAC || x.TunnelID == y.TunnelID {
		t.Errorf("source %+v, target %+v", x, y)
	}
	if st = s.status("red", "vm"); st.OwnerPod.Name != "two" {
		t.Errorf("owner %s while it migrates", st.OwnerPod.Name)
	}
	s.restart(s.r.lookup.Plan)
	s.settle()
	if s.target.writes > 0 {
		t.Errorf("%d writes after a restart", s.target.writes)
	}
	s.remove(one)
	s.remove(two)
	if st = s.status("red", "vm"); !slices.Equal(st.IPs, []string{"10.20.0.3/24"}) || st.OwnerPod != nil {
		t.Errorf("status without a pod %+v", st)
	}
	other := s.pod("red", "other", asks(`"ips":["10.20.0.3"]`))
	s.event("10.20.0.3 is held by IPAMClaim red/vm")
	s.restart(s.r.lookup.Plan)
	s.settle()
	s.event("10.20.0.3 is held by IPAMClaim red/vm")
	three := s.pod("red", "three", with)
	s.wantIPs("red", "three", "red/net", "10.20.0.3/24")
	s.remove(claim)
	s.wantIPs("red", "other", "red/net", "")
	s.remove(three)
	s.wantIPs("red", "other", "red/net", "10.20.0.3/24")
	s.remove(other)
	s.wantFree()
	if len(s.r.book.claims) > 0 {
		t.Error("a claim that is gone is remembered")
	}
}

// A claim of the same name is another claim: it gets other addresses while a
// pod runs with the former's.
func TestClaimAgain(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	s.remove(s.claim("red", "unused", "red_net"))
	claim := s.claim("red", "vm", "red_net")
	with := asks(`"ipam-claim-reference":"vm"`)
	old := s.pod("red", "old", with)
	s.run("red", "old")
	s.remove(claim)
	claim = s.claim("red", "vm", "red_net")
	s.pod("red", "new", with)
	s.wantIPs("red", "old", "red/net", "10.20.0.3/24")
	s.wantIPs("red", "new", "red/net", "10.20.0.4/24")
	s.restart(s.r.lookup.Plan)
	s.settle()
	s.wantIPs("red", "old", "red/net", "10.20.0.3/24")
	s.wantIPs("red", "new", "red/net", "10.20.0.4/24")
	s.remove(old)
	if _, held := s.r.book.allocators["red_net"].held[prefixes("10.20.0.3/24")[0].Addr()]; held {
		t.Error("the former claim's address is held")
	}
	s.remove(claim)
}

// A claim that is made one of another network holds nothing of the first.
func TestClaimMoves(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	s.nad("red", "more", 8, "red_more", `"topology":"layer2","subnets":"10.20.0.0/28","allowPersistentIPs":true`)
	s.claim("red", "vm", "red_net")
	p := s.pod("red", "p", asks(`"ipam-claim-reference":"vm"`))
	s.remove(p)
	claim := &ipamclaimv1.IPAMClaim{}
	s.must(s.api.Get(s.ctx, Key{Namespace: "red", Name: "vm"}.name(), claim))
	claim.Spec.Network = "red_more"
	s.must(s.api.Update(s.ctx, claim))
	s.claimSeen(claim)
	if st := s.status("red", "vm"); len(st.IPs)+len(st.Conditions) > 0 || !s.r.book.allocators["red_net"].Empty() {
		t.Errorf("status %+v", st)
	}
	claim.Status.IPs = []string{"10.20.0.3/24"} // as a cache that is behind would say
	if c := s.r.book.claim(claim); len(c.IPs) > 0 {
		t.Errorf("the claim has %v back", c.IPs)
	}
	s.pod("red", "q", selects(`[{"name":"more","ipam-claim-reference":"vm"}]`))
	s.wantIPs("red", "q", "red/more", "10.20.0.1/28")
	if st := s.status("red", "vm"); !slices.Equal(st.IPs, []string{"10.20.0.1/28"}) {
		t.Errorf("status %+v", st)
	}
	// With a pod it stays what it is.
	s.must(s.api.Get(s.ctx, Key{Namespace: "red", Name: "vm"}.name(), claim))
	claim.Spec.Network = "red_net"
	s.must(s.api.Update(s.ctx, claim))
	s.claimSeen(claim)
	s.pod("red", "r", asks(`"ipam-claim-reference":"vm"`))
	s.event("IPAMClaim vm is for network red_more")
}

// A claim may be deleted at the very moment in which its first pod is served.
func TestClaimVanishes(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	claim := s.claim("red", "vm", "red_net")
	s.r.target = vanishing{s.target, func() { s.must(s.api.Delete(s.ctx, claim)) }}
	p := &corev1.Pod{ObjectMeta: s.meta("red", "p", asks(`"ipam-claim-reference":"vm"`)), Spec: corev1.PodSpec{NodeName: "node"}}
	s.must(s.api.Create(s.ctx, p))
	if _, err := s.r.Reconcile(s.ctx, Key{Namespace: "red", Name: "p"}); !errors.Is(err, errClaimGone) {
		t.Fatalf("got %v", err)
	}
	s.r.target = s.target
	s.queue = append(s.queue, Key{Namespace: "red", Name: "p"}) // the caller tries again
	s.claimSeen(claim)
	s.event("does not exist")
	s.wantIPs("red", "p", "red/net", "")
	if !s.r.book.allocators["red_net"].Empty() || len(s.r.book.claims) > 0 {
		t.Errorf("held %v, claims %v", s.r.book.allocators["red_net"].held, s.r.book.claims)
	}
	s.claim("red", "vm", "red_net")
	s.wantIPs("red", "p", "red/net", "10.20.0.4/24")
}

// What a pod has not got yet is not given before everybody has back what was
// theirs, however old the pod is.
func TestRestoreGivesNothingNew(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", primaryL2)
	s.nad("red", "phys", 8, "red_phys", noIPAM)
	for name, entries := range map[string]string{
		"a-older":   `{"red/phys":{"ip_addresses":null,"mac_address":"02:00:00:00:00:01","role":"secondary"}}`,
		"b-younger": `{"red/net":{"ip_addresses":["10.20.0.3/24"],"mac_address":"0a:58:0a:14:00:03","tunnel_id":10,"gateway_ips":["10.20.0.1"],"role":"primary"}}`,
	} {
		annotations := map[string]string{network.AnnotationPodNetworks: entries}
		if name == "a-older" {
			annotations[network.AnnotationNetworks] = "phys"
		}
		p := &corev1.Pod{ObjectMeta: s.meta("red", name, annotations), Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		if name == "a-older" {
			p.CreationTimestamp.Time = p.CreationTimestamp.Add(-time.Hour)
		}
		s.must(s.api.Create(s.ctx, p))
	}
	s.restart(s.r.lookup.Plan)
	s.settle()
	s.wantIPs("red", "b-younger", "red/net", "10.20.0.3/24")
	s.wantIPs("red", "a-older", "red/net", "10.20.0.4/24")
	s.noEvent()
}

// Two pods of a claim that was deleted go on sharing its addresses, also after
// a restart.
func TestClaimGoneWhileMigrating(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	claim := s.claim("red", "vm", "red_net")
	with := asks(`"ipam-claim-reference":"vm"`)
	pods := []*corev1.Pod{s.pod("red", "source", with), s.pod("red", "target", with)}
	s.run("red", "source")
	s.remove(claim)
	s.restart(s.r.lookup.Plan)
	s.settle()
	if s.target.writes > 0 {
		t.Errorf("%d writes after a restart", s.target.writes)
	}
	s.noEvent()
	s.pod("red", "other", nil)
	x, _ := s.entry("red", "target", "red/net")
	if y, _ := s.entry("red", "other", "red/net"); join(x.IPs) != "10.20.0.3/24" || join(y.IPs) != "10.20.0.4/24" || x.TunnelID == y.TunnelID {
		t.Errorf("target %+v, other %+v", x, y)
	}
	for _, p := range pods {
		s.remove(p)
	}
	if len(s.r.book.claims) > 0 || len(s.r.book.allocators["red_net"].held) != 1 {
		t.Errorf("claims %v, held %v", s.r.book.claims, s.r.book.allocators["red_net"].held)
	}
}

// Addresses that cannot be given back leave nothing behind, not even if two
// attachments say that they are theirs.
func TestFormerClaimInVain(t *testing.T) {
	s := newSim(t)
	s.namespace("red", false)
	s.nad("red", "net", 7, "red_net", `"topology":"layer2","subnets":"10.20.0.0/24","allowPersistentIPs":true`)
	holder := s.pod("red", "holder", selects(`[{"name":"net","ips":["10.20.0.9"]}]`))
	entry := `{"ip_addresses":["10.20.0.9/24"],"mac_address":"0a:58:0a:14:00:09","tunnel_id":12,"role":"secondary"}`
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning} {
		annotations := selects(`[{"name":"net","ipam-claim-reference":"vm"},{"name":"net","ipam-claim-reference":"vm"}]`)
		annotations[network.AnnotationPodNetworks] = `{"red/net":` + entry + `,"red/net/1":` + entry + `}`
		p := &corev1.Pod{ObjectMeta: s.meta("red", "p-"+strings.ToLower(string(phase)), annotations), Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: phase}}
		s.must(s.api.Create(s.ctx, p))
		s.restart(s.r.lookup.Plan)
		s.settle()
		s.event("red/net")
		if len(s.r.book.claims) > 0 || len(s.r.book.allocators["red_net"].held) != 1 {
			t.Errorf("%s: claims %v, held %v", phase, s.r.book.claims, s.r.book.allocators["red_net"].held)
		}
		s.remove(p)
	}
	s.remove(holder)
	s.wantFree()
}

// A cache that is behind may show a claim that is gone in place of the one of
// its name that was restored.
func TestClaimCacheBehind(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	gone := s.claim("red", "vm", "red_net")
	s.remove(gone)
	s.claim("red", "vm", "red_net")
	p := s.pod("red", "a", asks(`"ipam-claim-reference":"vm"`))
	s.remove(p)
	s.restart(s.r.lookup.Plan)
	s.r.cache = shows{s.api, gone}
	s.settle()
	if a := s.r.book.allocators["red_net"]; a == nil || len(a.held) != 1 {
		t.Errorf("held %+v", a)
	}
}

// Of claims and pods that say they have one address, the older has it.
func TestOlderHolds(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	entry := `{"red/net":{"ip_addresses":["10.20.0.9/24"],"mac_address":"0a:58:0a:14:00:09","tunnel_id":12,"role":"primary"}}`
	running := func(name string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: s.meta("red", name, map[string]string{network.AnnotationPodNetworks: entry}),
			Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		s.must(s.api.Create(s.ctx, p))
		return p
	}
	older := running("older")
	claim := s.claim("red", "vm", "red_net")
	claim.Status.IPs = []string{"10.20.0.9/24"}
	s.must(s.api.Status().Update(s.ctx, claim))
	running("younger")
	s.restart(s.r.lookup.Plan)
	s.settle()
	s.event("the pod runs with addresses that it cannot have: 10.20.0.9 is held by pod red/older", "recreate the pod")
	s.wantIPs("red", "younger", "red/net", "10.20.0.9/24") // what it runs with cannot be changed
	st := s.status("red", "vm")
	if len(st.Conditions) != 1 || st.Conditions[0].Reason != ReasonConflict || !slices.Equal(st.IPs, []string{"10.20.0.9/24"}) {
		t.Errorf("status %+v", st)
	}
	s.pod("red", "uses", asks(`"ipam-claim-reference":"vm"`))
	s.event("IPAMClaim red/vm: 10.20.0.9 is held by pod red/older")
	s.remove(older)
	h := s.r.book.allocators["red_net"].held[prefixes("10.20.0.9/24")[0].Addr()]
	if h.Name != "younger" && !h.Claim {
		t.Errorf("who waited did not get it: %+v", h)
	}
}
