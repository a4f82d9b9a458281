// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"net/netip"
	"slices"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
)

// The condition type of IPAMClaims and its reasons.
const (
	ConditionAllocated = "IPsAllocated"
	ReasonAllocated    = "SuccessfulAllocation"
	ReasonConflict     = "IPAddressConflict"
)

// Status is the status of an IPAMClaim.
type Status struct {
	UID      types.UID
	IPs      []string
	OwnerPod string
	Reason   string // of the condition; "" for no condition
	Message  string
}

// Equal reports whether s and o are equal.
func (s Status) Equal(o Status) bool {
	return s.UID == o.UID && slices.Equal(s.IPs, o.IPs) && s.OwnerPod == o.OwnerPod && s.Reason == o.Reason && s.Message == o.Message
}

// Status returns the desired status of c.
func (c Claim) Status() Status {
	s := Status{UID: c.Holder.UID, OwnerPod: c.Owner, IPs: []string{}}
	for _, ip := range c.IPs {
		s.IPs = append(s.IPs, ip.String())
	}
	switch {
	case c.Refused != "":
		s.IPs, s.Reason, s.Message = c.Reported, ReasonConflict, c.Refused
	case len(c.IPs) > 0:
		s.Reason, s.Message = ReasonAllocated, "the addresses are kept until the claim is deleted"
	}
	return s
}

// StatusOf returns the actual status of an IPAMClaim.
func StatusOf(obj *ipamclaimv1.IPAMClaim) Status {
	s := Status{UID: obj.UID, IPs: obj.Status.IPs}
	if obj.Status.OwnerPod != nil {
		s.OwnerPod = obj.Status.OwnerPod.Name
	}
	if c := meta.FindStatusCondition(obj.Status.Conditions, ConditionAllocated); c != nil {
		s.Reason, s.Message = c.Reason, c.Message
	}
	return s
}

// condition returns the condition of s, nil for none.
func (s Status) condition(now metav1.Time) *metav1.Condition {
	if s.Reason == "" {
		return nil
	}
	c := &metav1.Condition{Type: ConditionAllocated, Status: metav1.ConditionTrue, Reason: s.Reason, Message: s.Message, LastTransitionTime: now}
	if s.Reason != ReasonAllocated {
		c.Status = metav1.ConditionFalse
	}
	return c
}

// claimOf returns an IPAMClaim without the addresses that it holds.
func claimOf(obj *ipamclaimv1.IPAMClaim) Claim {
	return Claim{
		Holder:  Holder{Claim: true, Namespace: obj.Namespace, Name: obj.Name, UID: obj.UID},
		Network: obj.Spec.Network, Reported: obj.Status.IPs, Deleting: obj.DeletionTimestamp != nil,
	}
}

// parseIPs parses the addresses of a claim's status. malformed is one that cannot
// be parsed.
func parseIPs(reported []string) (ips []netip.Prefix, malformed string) {
	for _, raw := range reported {
		ip, err := netip.ParsePrefix(raw)
		if err != nil || ip.Addr().Is4In6() {
			return nil, raw
		}
		ips = append(ips, ip)
	}
	return ips, ""
}

func (c Claim) key() string { return network.NADKey(c.Holder.Namespace, c.Holder.Name) }
