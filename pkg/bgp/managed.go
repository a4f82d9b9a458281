// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
)

// Fabric is the configuration of the managed fabric.
type Fabric struct {
	// Topology is config.FullMesh, in which every node has a session with every other
	// node; config.RouteReflectors, in which a few nodes pass on the routes of the others
	// (RFC 4456); or "": there is no managed fabric.
	Topology string
	ASN      uint32
	// Namespace is that of frr-k8s.
	Namespace string
	// Default reports whether the fabric carries the cluster default network.
	Default bool
}

const (
	// LabelReflector is set by administrators on the nodes that are to be route reflectors.
	LabelReflector = "k8s.ovn.org/bgp-route-reflector"
	// annotationReflectors are the addresses of the route reflectors, comma-separated, on
	// the bases of that topology.
	annotationReflectors = "k8s.ovn.org/bgp-route-reflectors"
	// annotationRole is which nodes a base of that topology is for.
	annotationRole = "k8s.ovn.org/bgp-fabric-role"
	roleReflector  = "reflector"
	roleClient     = "client"

	minReflectors = 2
)

// ManagedState are the objects of the managed fabric.
type ManagedState struct {
	Bases          map[string]*frrv1.FRRConfiguration // by name
	Advertisements map[string]*udnv1.RouteAdvertisements
	// Labelled are the ClusterUserDefinedNetworks that have LabelFabric.
	Labelled map[string]bool
}

// BuildManaged returns the objects of the managed fabric for the nodes and the names of
// the ClusterUserDefinedNetworks whose routing is managed. have are the actual bases: nodes
// that are route reflectors remain so while they exist, because a change resets sessions.
func BuildManaged(f Fabric, cudns []string, nodes []Node, have map[string]*frrv1.FRRConfiguration) ManagedState {
	st := ManagedState{
		Bases: map[string]*frrv1.FRRConfiguration{}, Advertisements: map[string]*udnv1.RouteAdvertisements{}, Labelled: map[string]bool{},
	}
	if f.Topology == "" {
		return st
	}
	for _, name := range cudns {
		st.Labelled[name] = true
	}
	if f.Default {
		st.addAdvertisements("default", udnv1.NetworkSelector{NetworkSelectionType: udnv1.DefaultNetwork})
	}
	if len(cudns) > 0 {
		st.addAdvertisements("cudns", udnv1.NetworkSelector{
			NetworkSelectionType: udnv1.ClusterUserDefinedNetworks,
			ClusterUserDefinedNetworkSelector: &udnv1.ClusterUserDefinedNetworkSelector{
				NetworkSelector: metav1.LabelSelector{MatchLabels: map[string]string{LabelFabric: LabelFabricValue}},
			},
		})
	}
	if f.Topology == config.FullMesh {
		st.addBase(f, "", nodes, nil)
		return st
	}
	reflectors := chooseReflectors(nodes, have)
	st.addBase(f, roleClient, reflectors, reflectors)
	st.addBase(f, roleReflector, nodes, reflectors)
	return st
}

// managedName returns the name of an object of the managed fabric. what is what the object
// is for.
func managedName(what string) string {
	sum := sha256.Sum256([]byte(what))
	return managedPrefix + hex.EncodeToString(sum[:])[:managedDigits]
}

func fabricLabels() map[string]string { return map[string]string{LabelFabric: LabelFabricValue} }

func (st ManagedState) addAdvertisements(what string, networks udnv1.NetworkSelector) {
	name := managedName("advertisements/" + what)
	st.Advertisements[name] = &udnv1.RouteAdvertisements{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: fabricLabels()},
		Spec: udnv1.RouteAdvertisementsSpec{
			Advertisements: []udnv1.AdvertisementType{udnv1.PodNetwork}, NetworkSelectors: []udnv1.NetworkSelector{networks},
			FRRConfigurationSelector: metav1.LabelSelector{MatchLabels: fabricLabels()},
		},
	}
}

// addBase adds a base whose neighbors are nodes. It selects no node itself: on a node that
// is one of the neighbors frr-k8s would configure a session of the node with itself.
func (st ManagedState) addBase(f Fabric, role string, neighbors, reflectors []Node) {
	name := managedName("fabric/" + cmp.Or(role, config.FullMesh))
	c := &frrv1.FRRConfiguration{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name, Labels: fabricLabels()},
		Spec: frrv1.FRRConfigurationSpec{
			NodeSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: metav1.LabelSelectorOpDoesNotExist},
			}},
			BGP: frrv1.BGPConfig{Routers: []frrv1.Router{{ASN: f.ASN}}},
		},
	}
	if role != "" {
		var addresses []string
		for _, a := range internalIPs(reflectors) {
			addresses = append(addresses, a.String())
		}
		c.Annotations = map[string]string{annotationRole: role, annotationReflectors: strings.Join(addresses, ",")}
	}
	for _, a := range sessionAddresses(neighbors) {
		c.Spec.BGP.Routers[0].Neighbors = append(c.Spec.BGP.Routers[0].Neighbors, frrv1.Neighbor{
			ASN: f.ASN, Address: a.String(),
			// Routes stay on the node and on its neighbors while its bgpd restarts (RFC 4724).
			EnableGracefulRestart: true,
			ToAdvertise:           frrv1.Advertise{Allowed: frrv1.AllowedOutPrefixes{Mode: frrv1.AllowRestricted}},
			ToReceive:             frrv1.Receive{Allowed: frrv1.AllowedInPrefixes{Mode: frrv1.AllowRestricted}},
		})
	}
	st.Bases[name] = c
}

// sessionAddresses returns the addresses of the nodes' sessions, sorted: the first InternalIP of each family.
func sessionAddresses(nodes []Node) []netip.Addr {
	var out []netip.Addr
	for _, n := range nodes {
		for _, is4 := range []bool{true, false} {
			if i := slices.IndexFunc(n.InternalIPs, func(a netip.Addr) bool { return a.Is4() == is4 }); i >= 0 {
				out = append(out, n.InternalIPs[i])
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// internalIPs returns the InternalIPs of nodes, sorted.
func internalIPs(nodes []Node) []netip.Addr {
	var out []netip.Addr
	for _, n := range nodes {
		out = append(out, n.InternalIPs...)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// chooseReflectors returns the nodes that are route reflectors: those with LabelReflector,
// then those that are now, then those with the lowest ids, until there are two.
func chooseReflectors(nodes []Node, have map[string]*frrv1.FRRConfiguration) []Node {
	current := map[netip.Addr]bool{}
	for _, c := range have {
		for _, a := range reflectorsOf(c) {
			current[a] = true
		}
	}
	rank := func(n Node) int {
		_, labelled := n.Labels[LabelReflector]
		switch {
		case labelled:
			return 0
		case slices.ContainsFunc(n.InternalIPs, func(a netip.Addr) bool { return current[a] }):
			return 1
		}
		return 2
	}
	sorted := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return n.ID == 0 || len(n.InternalIPs) == 0 })
	slices.SortFunc(sorted, func(x, y Node) int { return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.ID, y.ID)) })
	for i, n := range sorted {
		if i >= minReflectors && rank(n) > 0 {
			return sorted[:i]
		}
	}
	return sorted
}

// reflectorsOf returns the addresses of the route reflectors that a base names.
func reflectorsOf(c *frrv1.FRRConfiguration) []netip.Addr {
	var out []netip.Addr
	for _, text := range strings.Split(c.Annotations[annotationReflectors], ",") {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
}

func isReflector(c *frrv1.FRRConfiguration, n Node) bool {
	return slices.ContainsFunc(reflectorsOf(c), func(a netip.Addr) bool { return slices.Contains(n.InternalIPs, a) })
}

// hasFabricRole reports whether a base of the managed fabric is for the node.
func hasFabricRole(c *frrv1.FRRConfiguration, n Node) bool {
	switch c.Annotations[annotationRole] {
	case roleClient:
		return !isReflector(c, n)
	case roleReflector:
		return isReflector(c, n)
	}
	return true
}

// isClient reports whether the neighbor is a client of this node, a route reflector.
func (g *generator) isClient(n frrv1.Neighbor) bool {
	a, err := netip.ParseAddr(n.Address)
	return g.isReflector() && err == nil && !slices.Contains(reflectorsOf(g.base), a)
}

// isReflector reports whether the base is that of the route reflectors.
func (g *generator) isReflector() bool {
	return isManagedBase(g.base) && g.base.Annotations[annotationRole] == roleReflector
}

// isManaged reports whether a RouteAdvertisements is the managed fabric's, by its name.
func isManaged(ra *udnv1.RouteAdvertisements) bool {
	return isDerived(ra.Name, managedPrefix, managedDigits)
}
