// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"cmp"
	"maps"
	"slices"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// scopes decides whose IPAMClaims may hold addresses of a network: those of the namespaces whose
// pods may have an interface by one of its NADs. Otherwise a claim in any namespace, whose status
// its author may write, could take the addresses of another tenant's network. It is not safe for
// concurrent use.
type scopes struct {
	ofNAD   map[string]scope // by NAD key
	nads    map[scope]int    // number of NADs
	waiting map[scope]map[types.UID]uint64
	seq     uint64 // of the claims that wait, in the order of their arrival
}

// scope is a network, and the namespace that one of its NADs admits: "" for every namespace.
type scope struct{ network, namespace string }

func newScopes() *scopes {
	return &scopes{ofNAD: map[string]scope{}, nads: map[scope]int{}, waiting: map[scope]map[types.UID]uint64{}}
}

// scopeOf returns whom a NAD admits, the zero scope for nobody. An unusable NAD admits its namespace
// to the network that the cluster controller has recorded: a typing mistake must not cost the claims of
// stopped virtual machines their addresses.
func scopeOf(n *nadv1.NetworkAttachmentDefinition, plan network.Plan) scope {
	nad, ours := kube.ParseNAD(n, plan)
	switch {
	case !ours || kube.Released(n) || n.Annotations[network.AnnotationNetworkID] == "":
		return scope{}
	case nad.Err == nil && nad.Admits(""):
		return scope{nad.Network.Name, ""}
	}
	return scope{cmp.Or(n.Annotations[network.AnnotationNetworkName], nad.Network.Name), n.Namespace}
}

// set records whom a NAD admits, and returns the claims that waited for it, longest wait first.
func (s *scopes) set(nadKey string, now scope) []types.UID {
	if old := s.ofNAD[nadKey]; old == now {
		return nil
	} else if old != (scope{}) {
		delete(s.ofNAD, nadKey)
		if s.nads[old]--; s.nads[old] == 0 {
			delete(s.nads, old)
		}
	}
	if now == (scope{}) {
		return nil
	}
	s.ofNAD[nadKey] = now
	s.nads[now]++
	waiting := s.waiting[now]
	return slices.SortedFunc(maps.Keys(waiting), func(a, b types.UID) int { return cmp.Compare(waiting[a], waiting[b]) })
}

// both are the scopes that admit a claim.
func (c Claim) both() [2]scope {
	return [2]scope{{c.Network, c.Holder.Namespace}, {c.Network, ""}}
}

// admits reports whether a claim may hold addresses of its network. If not, the claim waits for a
// NAD that admits it.
func (s *scopes) admits(c Claim) bool {
	for _, sc := range c.both() {
		if s.nads[sc] > 0 {
			return true
		}
	}
	s.seq++
	for _, sc := range c.both() {
		if s.waiting[sc] == nil {
			s.waiting[sc] = map[types.UID]uint64{}
		}
		s.waiting[sc][c.Holder.UID] = s.seq
	}
	return false
}

// forget ends the wait of a claim.
func (s *scopes) forget(c Claim) {
	for _, sc := range c.both() {
		if delete(s.waiting[sc], c.Holder.UID); len(s.waiting[sc]) == 0 {
			delete(s.waiting, sc)
		}
	}
}
