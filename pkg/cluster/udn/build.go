// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"maps"
	"strconv"
	"strings"

	"bulkhead/pkg/network"
)

// Build returns the next desired state of an owner's finalizer and NADs, and the
// problems that keep it from what the owner requests.
//
// The result depends on the actual state, because a NAD is removed in two steps: it
// is deleted, so that new pods cannot use it, and released once no pod uses it. A
// network whose request became invalid keeps its NADs, because pods use them.
func Build(in Inputs, have State) (State, []Problem) {
	b := builder{in: in, have: have, want: State{Owner: in.Owner, NADs: map[string]NAD{}}}
	ownerDeleted := in.Request == nil || in.Request.Deleting
	selected := map[string]bool{}
	if !ownerDeleted {
		for _, ns := range in.Namespaces {
			selected[ns.Name] = b.namespace(ns)
		}
		if in.Invalid != "" {
			b.problem("", in.Invalid)
		}
	}
	for _, ns := range sortedKeys(have.NADs) {
		if nad := have.NADs[ns]; !selected[ns] {
			keep := !ownerDeleted && in.Invalid != "" && nad.OwnerUID == in.Request.UID && nad.Phase == Present
			if keep {
				b.want.NADs[ns] = nad
			} else {
				b.remove(nad, ownerDeleted)
			}
		}
	}
	b.advertise()
	// The owner has the finalizer from before its first NAD until after its last.
	b.want.Finalizer = in.Request != nil && len(b.want.NADs) > 0
	return b.want, b.problems
}

type builder struct {
	in       Inputs
	have     State
	want     State
	problems []Problem
}

func (b *builder) problem(namespace, text string) {
	b.problems = append(b.problems, Problem{namespace, text})
}

// namespace adds the desired NAD of one namespace that the owner selects. If it
// returns false, an existing NAD is to be removed.
func (b *builder) namespace(ns Namespace) bool {
	nad, exists := b.have.NADs[ns.Name]
	switch {
	case !b.in.Request.admits(ns):
		b.problem(ns.Name, "invalid primary network state: the namespace lacks the label "+network.LabelPrimaryUDN+
			", which can be set only when a namespace is created: recreate the namespace with the label")
		return false
	case ns.Foreign != "":
		b.problem(ns.Name, ns.Foreign+": rename or delete one of them")
		return true
	case exists && nad.Phase == Terminating && !nad.Finalizer && len(b.in.Users[ns.Name]) == 0 && len(nad.OtherFinalizers) > 0:
		b.problem(ns.Name, "NetworkAttachmentDefinition "+nad.Key()+" was deleted, and cannot be recreated before these finalizers of other programs are removed: "+strings.Join(nad.OtherFinalizers, ", "))
		return false
	case exists && nad.OwnerUID != "" && nad.OwnerUID != b.in.Request.UID:
		b.problem(ns.Name, "the NetworkAttachmentDefinition of a deleted "+b.in.Owner.Kind()+" of this name still exists; it is deleted once no pod uses it")
		return false
	case exists && nad.Phase == Terminating:
		b.problem(ns.Name, "NetworkAttachmentDefinition "+nad.Key()+" was deleted; it is recreated once no pod uses it")
		return false
	case b.in.Invalid != "" && !exists:
		// One problem is enough, and Invalid does not depend on other networks.
		return true
	case ns.Primary != "":
		b.problem(ns.Name, "primary network already exist in namespace "+ns.Name+": "+ns.Primary+": a namespace has one primary network, remove the other")
		if !exists {
			return true
		}
	case ns.WithoutPrimary != nil:
		b.problem(ns.Name, ns.WithoutPrimary.Error())
		if !exists {
			return true
		}
	case !exists && ns.Full:
		b.problem(ns.Name, "the namespace has the maximum number of networks: delete one, or raise max-networks-per-namespace")
		return true
	}
	if b.in.Invalid != "" || b.in.ID == 0 {
		if exists {
			b.want.NADs[ns.Name] = nad
		}
		return true
	}
	b.want.NADs[ns.Name] = b.render(ns.Name)
	return true
}

// render returns the NAD of one namespace.
func (b *builder) render(namespace string) NAD {
	r, conf := b.in.Request, b.in.Conf
	conf.NetAttachDefName = network.NADKey(namespace, r.Name)
	nad := NAD{
		Namespace: namespace, Name: r.Name, Config: conf.Render(), OwnerUID: r.UID, Finalizer: true,
		Labels: map[string]string{}, Annotations: map[string]string{},
	}
	maps.Copy(nad.Labels, r.Labels)
	nad.Labels[network.LabelUDN] = ""
	for k, v := range r.Annotations {
		if !strings.HasPrefix(k, "k8s.ovn.org/") && !strings.HasPrefix(k, "kubectl.kubernetes.io/") {
			nad.Annotations[k] = v
		}
	}
	nad.Annotations[network.AnnotationNetworkID] = strconv.Itoa(b.in.ID)
	nad.Annotations[network.AnnotationNetworkName] = conf.Name
	if vrfs, exists := b.have.NADs[namespace].Annotations[network.AnnotationAdvertisedVRFs]; exists {
		nad.Annotations[network.AnnotationAdvertisedVRFs] = vrfs
	}
	return nad
}

// advertise writes into which VRFs the network is advertised, also while it is being deleted or its request
// is invalid: its pods would send their own addresses to where no route leads back.
func (b *builder) advertise() {
	if b.in.VRFs == nil {
		return
	}
	for ns, nad := range b.want.NADs {
		_, exists := nad.Annotations[network.AnnotationAdvertisedVRFs]
		formerOwner := b.in.Request != nil && nad.OwnerUID != b.in.Request.UID
		if formerOwner || !exists && *b.in.VRFs == "" {
			continue
		}
		nad.Annotations = maps.Clone(nad.Annotations)
		if nad.Annotations == nil {
			nad.Annotations = map[string]string{}
		}
		nad.Annotations[network.AnnotationAdvertisedVRFs] = *b.in.VRFs
		b.want.NADs[ns] = nad
	}
}

// remove adds the next step of removing a NAD.
func (b *builder) remove(nad NAD, ownerDeleted bool) {
	users := b.in.Users[nad.Namespace]
	repairable := nad.Phase == Present || nad.Finalizer // a deleted object accepts no new finalizer
	if len(users) > 0 && repairable && !ownerDeleted && b.in.Invalid == "" && b.in.ID != 0 && nad.OwnerUID == b.in.Request.UID {
		// Nodes apply a changed configuration only when all NADs of the network
		// have it, so this one is updated too.
		nad.Config = b.render(nad.Namespace).Config
	}
	if len(users) > 0 {
		b.problem(nad.Namespace, "failed to delete NetworkAttachmentDefinition ["+nad.Key()+"]: network in use by the following pods: "+
			list(users)+": it is deleted once those pods are")
	}
	switch {
	case !nad.Finalizer && len(users) == 0:
		// Nothing blocks its deletion: one step removes it.
	case !nad.Finalizer && nad.Phase == Present:
		// Somebody removed the finalizer: without it, deletion would not wait.
		nad.Finalizer = true
		b.want.NADs[nad.Namespace] = nad
	case nad.Phase == Present && (ownerDeleted || len(users) == 0):
		// A namespace that is only deselected keeps the NAD while pods use it, so
		// that they keep their network if the label is set again.
		nad.Phase = Terminating
		b.want.NADs[nad.Namespace] = nad
	case len(users) > 0:
		b.want.NADs[nad.Namespace] = nad
	}
}
