// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// BuildStatus returns the owner's status: see Conditions.
func BuildStatus(in Inputs, want State, problems []Problem, failed []*Failure) Status {
	s := Status{Conditions: Conditions(in, want, problems, failed)}
	if in.Request != nil && in.Request.Cluster() {
		s.ActiveNamespaces = created(want, failed)
	}
	return s
}

// Conditions returns the conditions of the owner's status: want and problems are
// the results of Build, failed the operations that failed. An owner whose deletion
// has no problem gets none, until other programs' finalizers alone keep it.
func Conditions(in Inputs, want State, problems []Problem, failed []*Failure) []metav1.Condition {
	r := in.Request
	if r == nil {
		return nil
	}
	text := explain(problems, failed)
	if r.Deleting {
		switch {
		case len(text) == 0 && in.Removed:
			return []metav1.Condition{r.condition(udnv1.ConditionNetworkCreated, metav1.ConditionFalse, udnv1.ReasonNADDeleted,
				"the network is deleted: the object exists until other programs have removed their finalizers")}
		case len(text) == 0:
			return nil
		}
		return []metav1.Condition{r.condition(udnv1.ConditionNetworkCreated, metav1.ConditionFalse, r.syncError(), network.Shorten(strings.Join(text, "; "), messageLimit))}
	}
	var out []metav1.Condition
	switch {
	case len(text) > 0:
		msg := network.Shorten(strings.Join(text, "; "), messageLimit)
		if r.Cluster() {
			msg += "; NetworkAttachmentDefinition has been created in following namespaces: " + list(created(want, failed))
		}
		out = append(out, r.condition(udnv1.ConditionNetworkCreated, metav1.ConditionFalse, r.syncError(), msg))
	default:
		msg := "NetworkAttachmentDefinition has been created"
		if r.Cluster() {
			msg += " in following namespaces: " + list(created(want, failed))
		}
		out = append(out, r.condition(udnv1.ConditionNetworkCreated, metav1.ConditionTrue, udnv1.ReasonNADCreated, msg))
	}
	switch {
	case in.ID == 0: // no network, so nothing to allocate
	case len(in.WithoutSubnet.First) > 0 || len(in.Failing.Nodes) > 0:
		var reasons []string
		if len(in.WithoutSubnet.First) > 0 {
			reasons = append(reasons, "the subnets have no host subnet for nodes "+in.WithoutSubnet.String()+": append a CIDR to subnets, or remove nodes")
		}
		if len(in.Failing.Nodes) > 0 {
			reasons = append(reasons, "Network allocation failed for at least one node: "+in.Failing.String())
		}
		out = append(out, r.condition(udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionFalse, udnv1.ReasonAllocationFailed,
			network.Shorten(strings.Join(reasons, "; "), messageLimit)))
	default:
		out = append(out, r.condition(udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionTrue, udnv1.ReasonAllocationSucceeded,
			"Network allocation succeeded for all synced nodes."))
	}
	if r.Cluster() {
		out = append(out, r.transportAccepted(in))
	}
	return out
}

// transportAccepted follows the no-overlay proposal, "API changes".
func (r *Request) transportAccepted(in Inputs) metav1.Condition {
	by := in.Advertised
	const kind = udnv1.ConditionTransportAccepted
	if r.Transport != udnv1.TransportOptionNoOverlay {
		return r.condition(kind, metav1.ConditionTrue, udnv1.ReasonGeneveTransportAccepted, "Geneve transport has been configured.")
	}
	if in.NoFabric {
		return r.condition(kind, metav1.ConditionFalse, udnv1.ReasonNoOverlayManagedRoutingNotConfigured,
			"routing Managed needs the managed BGP fabric, which is not configured: set [bgp-managed] topology, or create the network with routing Unmanaged.")
	}
	if len(by) == 0 {
		return r.condition(kind, metav1.ConditionFalse, udnv1.ReasonNoOverlayRouteAdvertisementsIsMissing,
			"No RouteAdvertisements CR is advertising the pod networks.")
	}
	with := func(status metav1.ConditionStatus) int {
		return slices.IndexFunc(by, func(ra Advertisement) bool { return ra.Accepted == status })
	}
	if with(metav1.ConditionTrue) >= 0 {
		return r.condition(kind, metav1.ConditionTrue, udnv1.ReasonNoOverlayTransportAccepted, "Transport has been configured as 'no-overlay'.")
	}
	if i := with(metav1.ConditionUnknown); i >= 0 {
		return r.condition(kind, metav1.ConditionUnknown, udnv1.ReasonNoOverlayRouteAdvertisementsPending,
			"RouteAdvertisements CR "+by[i].Name+" advertises the pod subnets, and it is not known yet whether it is accepted.")
	}
	return r.condition(kind, metav1.ConditionFalse, udnv1.ReasonNoOverlayRouteAdvertisementsNotAccepted,
		"RouteAdvertisements CR "+by[0].Name+" advertises the pod subnets, but its status is not accepted.")
}

func (r *Request) condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: r.Generation}
}

func (r *Request) syncError() string {
	if r.Cluster() {
		return udnv1.ReasonNADSyncError
	}
	return udnv1.ReasonSyncError
}

func explain(problems []Problem, failed []*Failure) []string {
	var out []string
	for _, p := range problems {
		out = append(out, p.String())
	}
	for _, f := range failed {
		out = append(out, f.Error())
	}
	return out
}

func created(want State, failed []*Failure) []string {
	var out []string
	for _, ns := range sortedKeys(want.NADs) {
		broken := slices.ContainsFunc(failed, func(f *Failure) bool { return f.Op.NAD.Namespace == ns && f.Op.Kind == CreateNAD })
		if want.NADs[ns].Phase == Present && !broken {
			out = append(out, ns)
		}
	}
	return out
}

// messageLimit is below the API's limit for a condition's message, because the list
// of namespaces may follow.
const messageLimit = 10000

// DiffStatus returns the write of the status, if one is needed. A condition whose
// status is unchanged keeps its transition time; Apply sets the time of the others.
func DiffStatus(o Owner, want, have Status) []Op {
	if len(want.Conditions) == 0 {
		return nil
	}
	op := Op{Kind: SetStatus, Owner: o, Status: Status{ActiveNamespaces: want.ActiveNamespaces}}
	changed := !slices.Equal(want.ActiveNamespaces, have.ActiveNamespaces)
	for _, w := range want.Conditions {
		h := meta.FindStatusCondition(have.Conditions, w.Type)
		if h != nil && h.Status == w.Status {
			w.LastTransitionTime = h.LastTransitionTime
		}
		op.Status.Conditions = append(op.Status.Conditions, w)
		if h == nil || !equality.Semantic.DeepEqual(*h, w) {
			changed = true
			if w.Status == metav1.ConditionFalse && (h == nil || h.Message != w.Message) {
				op.Warn = append(op.Warn, w)
			}
		}
	}
	for _, h := range have.Conditions { // a stale condition of ours
		if slices.Contains(ourConditions, h.Type) && meta.FindStatusCondition(want.Conditions, h.Type) == nil {
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return []Op{op}
}

var ourConditions = []string{udnv1.ConditionNetworkCreated, udnv1.ConditionNetworkAllocationSucceeded, udnv1.ConditionTransportAccepted}
