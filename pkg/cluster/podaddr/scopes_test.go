// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
)

// claimWith creates a claim whose author has written addresses into its status.
func (s *sim) claimWith(namespace, name, networkName string, ips ...string) *ipamclaimv1.IPAMClaim {
	s.t.Helper()
	c := &ipamclaimv1.IPAMClaim{ObjectMeta: s.meta(namespace, name, nil), Spec: ipamclaimv1.IPAMClaimSpec{Network: networkName, Interface: "ovn-udn1"}}
	s.must(s.api.Create(s.ctx, c))
	c.Status.IPs = ips
	s.must(s.api.Status().Update(s.ctx, c))
	s.notifyClaim(c)
	return c
}

// wantCondition checks a claim's condition: its reason, and a part of its message.
func (s *sim) wantCondition(namespace, name, reason, message string) {
	s.t.Helper()
	st := s.status(namespace, name)
	if len(st.Conditions) != 1 || st.Conditions[0].Reason != reason || !strings.Contains(st.Conditions[0].Message, message) {
		s.t.Errorf("claim %s/%s has the conditions %+v, want %s with %q", namespace, name, st.Conditions, reason, message)
	}
}

// A claim holds one address of an IP family, however many its status lists.
func TestClaimOfManyAddresses(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	s.nad("red", "net", 7, "red_net", claimL2)
	s.claimWith("red", "two", "red_net", "10.20.0.4/24", "10.20.0.5/24")
	many := make([]string, 300)
	for i := range many {
		many[i] = fmt.Sprintf("10.20.%d.%d/30", i/50, 1+i%50*4)
	}
	s.claimWith("red", "many", "red_net", many...)
	for _, name := range []string{"two", "many"} {
		s.wantCondition("red", name, ReasonConflict, "more than one address of an IP family")
	}
	s.wantNothingHeld()
	s.claimWith("red", "one", "red_net", "10.20.0.4/24")
	s.wantCondition("red", "one", ReasonAllocated, "")
}

// A claim holds no addresses of another namespace's network, whatever its status says: neither free
// ones nor those of a younger pod. Hand-written secondary networks are for all namespaces.
func TestClaimOfAnotherNamespace(t *testing.T) {
	s := newSim(t)
	for _, ns := range []string{"red", "blue", "hand"} {
		s.namespace(ns, true)
	}
	s.nad("red", "net", 7, "red_net", claimL2)
	s.nad("hand", "net", 8, "hand", claimL2)
	s.nad("hand", "shared", 9, "shared", `"topology":"layer2","subnets":"10.30.0.0/24","allowPersistentIPs":true`)
	s.claimWith("blue", "first", "red_net", "10.20.0.3/24", "10.20.0.4/24")
	s.claimWith("blue", "hand", "hand", "10.20.0.3/24")
	s.claimWith("blue", "shared", "shared", "10.30.0.1/24")
	s.pod("red", "a", nil)
	check := func() {
		t.Helper()
		s.wantIPs("red", "a", "red/net", "10.20.0.3/24")
		for _, name := range []string{"first", "hand"} {
			s.wantCondition("blue", name, ReasonConflict, "namespace blue has no NetworkAttachmentDefinition of network ")
		}
		s.wantCondition("blue", "shared", ReasonAllocated, "")
		s.wantNoEvent()
	}
	check()
	s.markRunning("red", "a")
	s.restart(s.r.lookup.Plan)
	s.drain()
	check()
	if writes := s.target.writes; writes > 0 {
		t.Errorf("%d writes after a restart", writes)
	}
	s.pod("red", "b", nil)
	s.wantIPs("red", "b", "red/net", "10.20.0.4/24")
	s.pod("hand", "a", secondaryRequest("shared"))
	s.wantIPs("hand", "a", "hand/net", "10.20.0.3/24")
	s.wantIPs("hand", "a", "hand/shared", "10.30.0.2/24")
	s.restart(s.r.lookup.Plan)
	s.drain()
	check()
	for _, c := range s.claims() {
		s.remove(&c)
	}
	for _, p := range s.pods() {
		s.remove(&p)
	}
	s.wantNothingHeld()
	if sc := s.r.tracker.scopes; len(sc.waiting) > 0 {
		t.Errorf("deleted claims still wait: %v", sc.waiting)
	}
}

// A claim that is older than its namespace's NAD gets its addresses when the NAD appears, before any
// pod gets them.
func TestClaimBeforeNAD(t *testing.T) {
	s := newSim(t)
	s.namespace("red", true)
	nad := s.nad("red", "net", 7, "cluster_udn_net", claimL2)
	claim := s.claim("red", "vm", "cluster_udn_net")
	request := primaryRequest(`"ipam-claim-reference":"vm"`)
	off := s.pod("red", "off", request)
	s.wantIPs("red", "off", "red/net", "10.20.0.3/24")
	s.remove(off) // the virtual machine is off
	s.removeNAD(nad)
	s.restart(s.r.lookup.Plan)
	s.drain()
	s.wantCondition("red", "vm", ReasonConflict, "namespace red has no NetworkAttachmentDefinition of network cluster_udn_net: extend the network to the namespace")
	if st := s.status("red", "vm"); !slices.Equal(st.IPs, []string{"10.20.0.3/24"}) {
		t.Errorf("the claim lost its addresses: %v", st.IPs)
	}
	s.pod("red", "other", primaryRequest(`"ips":["10.20.0.3"]`))
	s.pod("red", "on", request)
	s.nad("red", "net", 7, "cluster_udn_net", claimL2)
	s.drain()
	s.wantIPs("red", "on", "red/net", "10.20.0.3/24")
	s.wantIPs("red", "other", "red/net", "")
	s.wantEvent("10.20.0.3 is held by IPAMClaim red/vm")
	s.wantCondition("red", "vm", ReasonAllocated, "")

	// A configuration that cannot be read is that of the network that the cluster controller recorded.
	nad = s.nad("red", "more", 8, "more", claimL2)
	s.changeNAD(nad, "{")
	s.claimWith("red", "more", "more", "10.20.0.9/24")
	s.wantCondition("red", "more", ReasonAllocated, "")
	s.remove(claim)
}
