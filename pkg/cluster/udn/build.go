// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"maps"
	"strconv"
	"strings"

	"bulkhead/pkg/network"
)

// Build says what an owner's finalizer and NADs should be next, given what
// there is, and every reason why that is not what was asked for.
//
// have matters because NADs end in two steps: deleted, which keeps new pods
// off, and, once no pod uses them, released. A network whose request turns
// out to be impossible keeps the NADs it has: pods live on them.
func Build(in Inputs, have State) (State, []Problem) {
	b := builder{in: in, have: have, want: State{Owner: in.Owner, NADs: map[string]NAD{}}}
	gone := in.Request == nil || in.Request.Deleting
	selected := map[string]bool{}
	if !gone {
		for _, ns := range in.Namespaces {
			selected[ns.Name] = b.namespace(ns)
		}
		if in.Invalid != "" {
			b.problem("", in.Invalid)
		}
	}
	for _, ns := range sortedKeys(have.NADs) {
		if nad := have.NADs[ns]; !selected[ns] {
			keep := !gone && in.Invalid != "" && nad.OwnerUID == in.Request.UID && nad.Phase == Present
			if keep {
				b.want.NADs[ns] = nad
			} else {
				b.remove(nad, gone)
			}
		}
	}
	// The finalizer is there before the first NAD and goes after the last.
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

// namespace decides about one namespace that the owner selects; false leaves a
// NAD that is there to be removed.
func (b *builder) namespace(ns Namespace) bool {
	nad, exists := b.have.NADs[ns.Name]
	switch {
	case !b.in.Request.admits(ns):
		b.problem(ns.Name, "invalid primary network state: the namespace lacks the label "+network.LabelPrimaryUDN+
			", which can be given only when a namespace is created: create the namespace anew with the label")
		return false
	case ns.Foreign != "":
		b.problem(ns.Name, ns.Foreign+": rename or delete one of them")
		return true
	case exists && nad.OwnerUID != "" && nad.OwnerUID != b.in.Request.UID:
		b.problem(ns.Name, "the NetworkAttachmentDefinition of a former "+b.in.Owner.Kind()+" of this name is still there")
		return false
	case exists && nad.Phase == Terminating:
		b.problem(ns.Name, "NetworkAttachmentDefinition "+nad.Key()+" was deleted; it is created anew once no pod uses it")
		return false
	case b.in.Invalid != "" && !exists:
		// One reason is enough, and this one does not change with what other
		// networks do.
		return true
	case ns.Primary != "":
		b.problem(ns.Name, "primary network already exist in namespace "+ns.Name+": "+ns.Primary+": a namespace has one primary network, remove the other")
		if !exists {
			return true // nothing is there and nothing is added
		}
	case ns.Older != nil:
		b.problem(ns.Name, ns.Older.Error())
		if !exists {
			return true // no pod gets a network before that is mended
		}
	case !exists && ns.Full:
		b.problem(ns.Name, "the namespace has as many networks as it may have: delete one, or raise max-networks-per-namespace")
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

// render is the NAD of one namespace.
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
	return nad
}

// remove is the next step of a NAD that is not wanted any more.
func (b *builder) remove(nad NAD, gone bool) {
	users := b.in.Users[nad.Namespace]
	if len(users) > 0 && nad.Phase == Present && !gone && b.in.Invalid == "" && b.in.ID != 0 && nad.OwnerUID == b.in.Request.UID {
		// Nodes change a network when all its NADs say so: this one, too.
		nad.Config = b.render(nad.Namespace).Config
	}
	if len(users) > 0 {
		b.problem(nad.Namespace, "failed to delete NetworkAttachmentDefinition ["+nad.Key()+"]: network in use by the following pods: "+
			list(users)+": it is deleted once they are")
	}
	switch {
	case !nad.Finalizer && len(users) == 0:
		// Nothing holds it: deleting it is all.
	case !nad.Finalizer && nad.Phase == Present:
		// Somebody took the finalizer off: without it, deletion would not wait.
		nad.Finalizer = true
		b.want.NADs[nad.Namespace] = nad
	case nad.Phase == Present && (gone || len(users) == 0):
		// A namespace that merely lost the network keeps it while pods use
		// it: nothing is lost when the label comes back.
		nad.Phase = Terminating
		b.want.NADs[nad.Namespace] = nad
	case len(users) > 0:
		b.want.NADs[nad.Namespace] = nad
	}
}
