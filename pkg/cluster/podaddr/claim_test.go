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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// A claim keeps its addresses across pods, serves two pods during a live
// migration, and releases the addresses when it is deleted and no pod uses it.
func TestClaim(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	request := primaryRequest(`"ipam-claim-reference":"vm"`)
	one := s.pod("red", "one", request)
	s.wantEvent("IPAMClaim vm, which annotation v1.multus-cni.io/default-network names, does not exist", "spec.network red_net")
	claim := s.claim("red", "vm", "red_net")
	s.wantIPs("red", "one", "red/net", "10.20.0.3/24")
	st := s.status("red", "vm")
	if !slices.Equal(st.IPs, []string{"10.20.0.3/24"}) || st.OwnerPod == nil || st.OwnerPod.Name != "one" || len(st.Conditions) != 1 || st.Conditions[0].Reason != ReasonAllocated {
		t.Errorf("status %+v", st)
	}
	s.markRunning("red", "one")
	two := s.pod("red", "two", request)
	s.wantIPs("red", "two", "red/net", "10.20.0.3/24")
	x, _ := s.entry("red", "one", "red/net")
	y, _ := s.entry("red", "two", "red/net")
	if x.MAC != y.MAC || x.TunnelID == y.TunnelID {
		t.Errorf("source %+v, target %+v", x, y)
	}
	if st = s.status("red", "vm"); st.OwnerPod.Name != "two" {
		t.Errorf("owner %s during the migration", st.OwnerPod.Name)
	}
	s.restart(s.r.lookup.Plan)
	s.drain()
	if s.target.writes > 0 {
		t.Errorf("%d writes after a restart", s.target.writes)
	}
	s.remove(one)
	s.remove(two)
	if st = s.status("red", "vm"); !slices.Equal(st.IPs, []string{"10.20.0.3/24"}) || st.OwnerPod != nil {
		t.Errorf("status without a pod %+v", st)
	}
	other := s.pod("red", "other", primaryRequest(`"ips":["10.20.0.3"]`))
	s.wantEvent("10.20.0.3 is held by IPAMClaim red/vm")
	s.restart(s.r.lookup.Plan)
	s.drain()
	s.wantEvent("10.20.0.3 is held by IPAMClaim red/vm")
	three := s.pod("red", "three", request)
	s.wantIPs("red", "three", "red/net", "10.20.0.3/24")
	s.remove(claim)
	s.wantIPs("red", "other", "red/net", "")
	s.remove(three)
	s.wantIPs("red", "other", "red/net", "10.20.0.3/24")
	s.remove(other)
	s.wantNothingHeld()
	if len(s.r.tracker.claims) > 0 {
		t.Error("a deleted claim is still tracked")
	}
}

// A recreated claim gets other addresses while a pod runs with those of the
// deleted one.
func TestClaimRecreated(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	s.remove(s.claim("red", "unused", "red_net"))
	claim := s.claim("red", "vm", "red_net")
	request := primaryRequest(`"ipam-claim-reference":"vm"`)
	old := s.pod("red", "old", request)
	s.markRunning("red", "old")
	s.remove(claim)
	claim = s.claim("red", "vm", "red_net")
	s.pod("red", "new", request)
	s.wantIPs("red", "old", "red/net", "10.20.0.3/24")
	s.wantIPs("red", "new", "red/net", "10.20.0.4/24")
	s.restart(s.r.lookup.Plan)
	s.drain()
	s.wantIPs("red", "old", "red/net", "10.20.0.3/24")
	s.wantIPs("red", "new", "red/net", "10.20.0.4/24")
	s.remove(old)
	if _, held := s.r.tracker.allocators["red_net"].held[prefixes("10.20.0.3/24")[0].Addr()]; held {
		t.Error("the deleted claim's address is held")
	}
	s.remove(claim)
}

// A claim whose spec.network changes releases its addresses if no pod uses it.
func TestClaimNetworkChanges(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	s.nad("red", "more", 8, "red_more", `"topology":"layer2","subnets":"10.20.0.0/28","allowPersistentIPs":true`)
	s.claim("red", "vm", "red_net")
	p := s.pod("red", "p", primaryRequest(`"ipam-claim-reference":"vm"`))
	s.remove(p)
	claim := &ipamclaimv1.IPAMClaim{}
	s.must(s.api.Get(s.ctx, Key{Namespace: "red", Name: "vm"}.name(), claim))
	claim.Spec.Network = "red_more"
	s.must(s.api.Update(s.ctx, claim))
	s.notifyClaim(claim)
	if st := s.status("red", "vm"); len(st.IPs)+len(st.Conditions) > 0 || !s.r.tracker.allocators["red_net"].Empty() {
		t.Errorf("status %+v", st)
	}
	claim.Status.IPs = []string{"10.20.0.3/24"} // as in a stale cache
	if c := s.r.tracker.syncClaim(claim); len(c.IPs) > 0 {
		t.Errorf("the claim holds %v again", c.IPs)
	}
	s.pod("red", "q", secondaryRequest(`[{"name":"more","ipam-claim-reference":"vm"}]`))
	s.wantIPs("red", "q", "red/more", "10.20.0.1/28")
	if st := s.status("red", "vm"); !slices.Equal(st.IPs, []string{"10.20.0.1/28"}) {
		t.Errorf("status %+v", st)
	}
	// While a pod uses the claim, the change has no effect.
	s.must(s.api.Get(s.ctx, Key{Namespace: "red", Name: "vm"}.name(), claim))
	claim.Spec.Network = "red_net"
	s.must(s.api.Update(s.ctx, claim))
	s.notifyClaim(claim)
	s.pod("red", "r", primaryRequest(`"ipam-claim-reference":"vm"`))
	s.wantEvent("IPAMClaim vm is for network red_more")
}

// A claim is deleted while its first pod is reconciled.
func TestClaimDeletedMeanwhile(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	claim := s.claim("red", "vm", "red_net")
	s.r.target = hookTarget{s.target, func() { s.must(s.api.Delete(s.ctx, claim)) }}
	p := &corev1.Pod{ObjectMeta: s.meta("red", "p", primaryRequest(`"ipam-claim-reference":"vm"`)), Spec: corev1.PodSpec{NodeName: "node"}}
	s.must(s.api.Create(s.ctx, p))
	if _, err := s.r.Reconcile(s.ctx, Key{Namespace: "red", Name: "p"}); !errors.Is(err, errClaimGone) {
		t.Fatalf("got %v", err)
	}
	s.r.target = s.target
	s.queue = append(s.queue, Key{Namespace: "red", Name: "p"}) // the caller retries
	s.notifyClaim(claim)
	s.wantEvent("does not exist")
	s.wantIPs("red", "p", "red/net", "")
	if !s.r.tracker.allocators["red_net"].Empty() || len(s.r.tracker.claims) > 0 {
		t.Errorf("held %v, claims %v", s.r.tracker.allocators["red_net"].held, s.r.tracker.claims)
	}
	s.claim("red", "vm", "red_net")
	s.wantIPs("red", "p", "red/net", "10.20.0.4/24")
}

// Restore restores the addresses of all pods before any new allocation, even for
// an older pod.
func TestRestoreAllocatesNothingNew(t *testing.T) {
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
	s.drain()
	s.wantIPs("red", "b-younger", "red/net", "10.20.0.3/24")
	s.wantIPs("red", "a-older", "red/net", "10.20.0.4/24")
	s.wantNoEvent()
}

// An entry of another namespace's network, which a node may have written into the annotation of its
// pod, is not restored, and takes no address from the network's own pods.
func TestRestoreForeignEntry(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.namespace("blue", false)
	s.nad("red", "net", 7, "red_net", primaryL2)
	entries := `{"red/net":{"ip_addresses":["10.20.0.3/24"],"mac_address":"0a:58:0a:14:00:03","tunnel_id":10,"gateway_ips":["10.20.0.1"],"role":"primary"}}`
	s.must(s.api.Create(s.ctx, &corev1.Pod{ObjectMeta: s.meta("blue", "claimant", map[string]string{network.AnnotationPodNetworks: entries}),
		Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}))
	s.restart(s.r.lookup.Plan)
	s.drain()
	if a := s.r.tracker.allocators["red_net"]; a != nil && len(a.held) > 0 {
		t.Errorf("held %+v", a.held)
	}
	s.pod("red", "own", nil)
	s.wantIPs("red", "own", "red/net", "10.20.0.3/24")
}

// A new leader may have started before the CRD of IPAMClaims was installed: it restores the claims'
// addresses before it allocates any.
func TestRestoreDiscoversClaims(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	s.claim("red", "vm", "red_net")
	vm := s.pod("red", "source", primaryRequest(`"ipam-claim-reference":"vm"`))
	s.wantIPs("red", "source", "red/net", "10.20.0.3/24")
	s.must(s.api.Delete(s.ctx, vm)) // the virtual machine is off
	s.lateClaims = true
	s.restart(s.r.lookup.Plan)
	s.drain()
	s.pod("red", "other", nil)
	s.wantIPs("red", "other", "red/net", "10.20.0.4/24")
	s.pod("red", "target", primaryRequest(`"ipam-claim-reference":"vm"`))
	s.wantIPs("red", "target", "red/net", "10.20.0.3/24")
}

// Two pods of a deleted claim keep sharing its addresses, also after a restart.
func TestClaimDeletedDuringMigration(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	claim := s.claim("red", "vm", "red_net")
	request := primaryRequest(`"ipam-claim-reference":"vm"`)
	pods := []*corev1.Pod{s.pod("red", "source", request), s.pod("red", "target", request)}
	s.markRunning("red", "source")
	s.remove(claim)
	s.restart(s.r.lookup.Plan)
	s.drain()
	if s.target.writes > 0 {
		t.Errorf("%d writes after a restart", s.target.writes)
	}
	s.wantNoEvent()
	s.pod("red", "other", nil)
	x, _ := s.entry("red", "target", "red/net")
	if y, _ := s.entry("red", "other", "red/net"); join(x.IPs) != "10.20.0.3/24" || join(y.IPs) != "10.20.0.4/24" || x.TunnelID == y.TunnelID {
		t.Errorf("target %+v, other %+v", x, y)
	}
	for _, p := range pods {
		s.remove(p)
	}
	if len(s.r.tracker.claims) > 0 || len(s.r.tracker.allocators["red_net"].held) != 1 {
		t.Errorf("claims %v, held %v", s.r.tracker.claims, s.r.tracker.allocators["red_net"].held)
	}
}

// TestClaimDeleting: a running pod keeps its claim, which another program's finalizer keeps, when the leader changes.
func TestClaimDeleting(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	claim := s.claim("red", "vm", "red_net")
	request := primaryRequest(`"ipam-claim-reference":"vm"`)
	s.pod("red", "source", request)
	s.markRunning("red", "source")
	s.must(s.api.Get(s.ctx, client.ObjectKeyFromObject(claim), claim))
	claim.Finalizers = []string{"example.com/vm"}
	s.must(s.api.Update(s.ctx, claim))
	s.must(s.api.Delete(s.ctx, claim))
	s.restart(s.r.lookup.Plan)
	s.drain()
	s.wantNoEvent()
	c := s.r.tracker.claims[claim.UID]
	if c == nil || c.Owner != "source" || len(s.r.tracker.allocators["red_net"].macs) != 1 {
		t.Errorf("claim %+v, MAC addresses %v", c, s.r.tracker.allocators["red_net"].macs)
	}
	s.pod("red", "new", request)
	s.wantEvent("does not exist")
}

// TestEventAgain: a pod whose problem lasts gets its event again before Kubernetes deletes the first one.
func TestEventAgain(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	s.pod("red", "a", primaryRequest(`"ipam-claim-reference":"vm"`))
	s.wantEvent("does not exist")
	key := Key{Namespace: "red", Name: "a"}
	for _, again := range []bool{false, true, false} {
		result, err := s.r.Reconcile(s.ctx, key)
		s.must(err)
		if result.RequeueAfter != kube.EventRepeat {
			t.Errorf("reconciled again after %s", result.RequeueAfter)
		}
		if again {
			s.wantEvent("does not exist")
		} else {
			s.wantNoEvent()
			s.clock = s.clock.Add(kube.EventRepeat)
		}
	}
}

// TestClaimMAC: a second pod of a claim that requests another MAC address waits until the first has ended.
func TestClaimMAC(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	s.claim("red", "vm", "red_net")
	first := s.pod("red", "first", primaryRequest(`"ipam-claim-reference":"vm","mac":"02:00:00:00:00:01"`))
	s.wantIPs("red", "first", "red/net", "10.20.0.3/24")
	same := s.pod("red", "same", primaryRequest(`"ipam-claim-reference":"vm","mac":"02:00:00:00:00:01"`))
	s.wantIPs("red", "same", "red/net", "10.20.0.3/24")
	s.pod("red", "edited", primaryRequest(`"ipam-claim-reference":"vm","mac":"02:00:00:00:00:02"`))
	s.wantEvent("02:00:00:00:00:01 is held by")
	s.wantIPs("red", "edited", "red/net", "")
	s.remove(first)
	s.wantIPs("red", "edited", "red/net", "")
	s.remove(same)
	s.wantIPs("red", "edited", "red/net", "10.20.0.3/24")
}

// Previous addresses that another pod holds are not restored, and leave no
// claim behind, even if two attachments have them.
func TestFormerClaimConflict(t *testing.T) {
	s := newSim(t)
	s.namespace("red", false)
	s.nad("red", "net", 7, "red_net", `"topology":"layer2","subnets":"10.20.0.0/24","allowPersistentIPs":true`)
	holder := s.pod("red", "holder", secondaryRequest(`[{"name":"net","ips":["10.20.0.9"]}]`))
	entry := `{"ip_addresses":["10.20.0.9/24"],"mac_address":"0a:58:0a:14:00:09","tunnel_id":12,"role":"secondary"}`
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning} {
		annotations := secondaryRequest(`[{"name":"net","ipam-claim-reference":"vm"},{"name":"net","ipam-claim-reference":"vm"}]`)
		annotations[network.AnnotationPodNetworks] = `{"red/net":` + entry + `,"red/net/1":` + entry + `}`
		p := &corev1.Pod{ObjectMeta: s.meta("red", "p-"+strings.ToLower(string(phase)), annotations), Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: phase}}
		s.must(s.api.Create(s.ctx, p))
		s.restart(s.r.lookup.Plan)
		s.drain()
		s.wantEvent("red/net")
		if len(s.r.tracker.claims) > 0 || len(s.r.tracker.allocators["red_net"].held) != 1 {
			t.Errorf("%s: claims %v, held %v", phase, s.r.tracker.claims, s.r.tracker.allocators["red_net"].held)
		}
		s.remove(p)
	}
	s.remove(holder)
	s.wantNothingHeld()
}

// A stale cache may have a deleted claim instead of the recreated one that was
// restored.
func TestClaimCacheStale(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	deleted := s.claim("red", "vm", "red_net")
	s.remove(deleted)
	s.claim("red", "vm", "red_net")
	p := s.pod("red", "a", primaryRequest(`"ipam-claim-reference":"vm"`))
	s.remove(p)
	s.restart(s.r.lookup.Plan)
	s.r.cache = cacheShowing{s.api, deleted}
	s.drain()
	if a := s.r.tracker.allocators["red_net"]; a == nil || len(a.held) != 1 {
		t.Errorf("held %+v", a)
	}
}

// If claims and pods have the same address, the oldest one holds it.
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
	s.drain()
	s.wantEvent("the running pod has addresses that it must not have: 10.20.0.9 is held by pod red/older", "recreate the pod")
	s.wantIPs("red", "younger", "red/net", "10.20.0.9/24") // a running pod's addresses cannot change
	st := s.status("red", "vm")
	if len(st.Conditions) != 1 || st.Conditions[0].Reason != ReasonConflict || !slices.Equal(st.IPs, []string{"10.20.0.9/24"}) {
		t.Errorf("status %+v", st)
	}
	s.pod("red", "uses", primaryRequest(`"ipam-claim-reference":"vm"`))
	s.wantEvent("IPAMClaim red/vm: 10.20.0.9 is held by pod red/older")
	s.remove(older)
	h := s.r.tracker.allocators["red_net"].held[prefixes("10.20.0.9/24")[0].Addr()]
	if h.Name != "younger" && !h.Claim {
		t.Errorf("the address was not assigned to a waiting holder: %+v", h)
	}
}

// A claim whose address another holds gets it once that one is gone, although no pod names the claim: not a pod that comes
// then.
func TestClaimWaitsForAddress(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	s.pod("red", "holder", primaryRequest(`"ips":["10.20.0.9"]`))
	s.drain()
	s.wantIPs("red", "holder", "red/net", "10.20.0.9/24")
	claim := s.claim("red", "vm", "red_net")
	claim.Status.IPs = []string{"10.20.0.9/24"} // restored from a backup
	s.must(s.api.Status().Update(s.ctx, claim))
	s.restart(s.r.lookup.Plan)
	s.drain()
	if st := s.status("red", "vm"); len(st.Conditions) != 1 || st.Conditions[0].Reason != ReasonConflict {
		t.Fatalf("status %+v", st)
	}
	holder := &corev1.Pod{}
	s.must(s.api.Get(s.ctx, client.ObjectKey{Namespace: "red", Name: "holder"}, holder))
	s.remove(holder)
	s.drain()
	if st := s.status("red", "vm"); len(st.Conditions) != 1 || st.Conditions[0].Status != metav1.ConditionTrue {
		t.Errorf("after its holder is gone: status %+v", st)
	}
	s.pod("red", "late", primaryRequest(`"ips":["10.20.0.9"]`))
	s.drain()
	s.wantEvent("10.20.0.9 is held by IPAMClaim red/vm")
	if n := len(s.r.tracker.taken); n != 0 {
		t.Errorf("%d addresses are waited for", n)
	}
}

// A pod's reconcile has read a claim before its deletion, and goes on after the deletion was
// reconciled: the addresses are free once the pod is reconciled again.
func TestClaimReadBeforeDeletion(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	claim := s.claimWith("red", "vm", "red_net", "10.20.0.9/24")
	s.remove(claim)
	s.drain()
	s.wantNothingHeld()
	s.r.mu.Lock()
	s.r.tracker.syncClaim(claim)
	s.r.mu.Unlock()
	p := s.pod("red", "one", map[string]string{network.AnnotationPrimaryClaim: "vm"})
	s.wantEvent("IPAMClaim vm, which annotation k8s.ovn.org/primary-udn-ipamclaim names, does not exist")
	s.remove(p)
	s.drain()
	s.wantNothingHeld()
}

// Other nodes' zones need pods that share addresses, also on Localnet networks.
func TestClaimLabel(t *testing.T) {
	s := newSim(t)
	s.namespace("red", false)
	s.nad("red", "phys", 7, "red_phys", `"topology":"localnet","physicalNetworkName":"p","subnets":"10.40.0.0/24","allowPersistentIPs":true`)
	s.claim("red", "vm", "red_phys")
	s.pod("red", "one", map[string]string{network.AnnotationNetworks: `[{"name":"phys","ipam-claim-reference":"vm"}]`})
	s.pod("red", "two", map[string]string{network.AnnotationNetworks: "phys"})
	s.wantIPs("red", "one", "red/phys", "10.40.0.1/24")
	s.wantIPs("red", "two", "red/phys", "10.40.0.2/24")
	for _, p := range s.pods() {
		if _, labelled := p.Labels[network.LabelLayer2Pod]; labelled != (p.Name == "one") {
			t.Errorf("pod %s: labelled %t", p.Name, labelled)
		}
	}
	// Somebody removes the label of a running pod.
	s.markRunning("red", "one")
	one := &corev1.Pod{}
	key := types.NamespacedName{Namespace: "red", Name: "one"}
	s.must(s.api.Get(s.ctx, key, one))
	before := one.DeepCopy()
	one.Labels = map[string]string{"team": "red"}
	s.must(s.api.Update(s.ctx, one))
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[Key]())
	defer q.ShutDown()
	podEvents().UpdateFunc(s.ctx, event.TypedUpdateEvent[*corev1.Pod]{ObjectOld: before, ObjectNew: one}, q)
	if q.Len() != 1 {
		t.Fatalf("%d keys are enqueued", q.Len())
	}
	k, _ := q.Get()
	s.queue = append(s.queue, k)
	s.drain()
	s.must(s.api.Get(s.ctx, key, one))
	if _, labelled := one.Labels[network.LabelLayer2Pod]; !labelled || one.Labels["team"] != "red" {
		t.Errorf("somebody has removed the label, and the pod has %v", one.Labels)
	}
}

// The deprecated annotation names a claim, too, and is named in messages.
func TestDeprecatedClaim(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	s.pod("red", "one", map[string]string{network.AnnotationPrimaryClaim: "vm"})
	s.wantEvent("IPAMClaim vm, which annotation k8s.ovn.org/primary-udn-ipamclaim names, does not exist")
	s.claim("red", "vm", "red_net")
	s.wantIPs("red", "one", "red/net", "10.20.0.3/24")
	s.markRunning("red", "one")
	s.pod("red", "two", map[string]string{network.AnnotationPrimaryClaim: "vm"})
	s.wantIPs("red", "two", "red/net", "10.20.0.3/24")
	s.namespace("blue", true)
	s.nad("blue", "net", 8, "blue_net", `"topology":"layer2","role":"primary","subnets":"10.20.0.0/24"`)
	s.pod("blue", "one", map[string]string{network.AnnotationPrimaryClaim: "vm"})
	s.wantEvent("annotation k8s.ovn.org/primary-udn-ipamclaim names IPAMClaim vm: set ipam.lifecycle Persistent in the network, or remove the annotation")
}
