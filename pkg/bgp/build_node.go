// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// generate adds the FRRConfigurations of one RouteAdvertisements. A node without a session
// keeps what it has.
func (b *builder) generate(r *request) {
	if r.keepAll { // its bases may not be known
		b.st.Keep[Source{Advertisements: r.ra.Name}] = true
		b.addKept(r, b.in.Networks)
		return
	}
	anywhere := map[string]families{} // VRFs into which some node advertises
	for _, node := range b.in.Nodes {
		if node.ID > 0 && len(r.bases) > 0 {
			b.generateFor(r, node, anywhere)
		}
	}
	r.reportGaps()
	with, without := r.split(anywhere)
	for _, n := range with {
		b.advertised(r, n.Name, r.target())
	}
	b.addKept(r, without) // they stay where they were
}

// generateFor adds the FRRConfigurations of one RouteAdvertisements and node, and the VRFs in which the node
// has a session to anywhere.
func (b *builder) generateFor(r *request, node Node, anywhere map[string]families) {
	if b.unsuitable(r, node) != "" { // checkNodes has reported it
		for _, base := range r.bases {
			b.keepSelected(r, base, node)
		}
		return
	}
	var bases []base
	covered := map[string]families{} // by VRF in which the node has a session
	for _, base := range r.bases {
		if base.nodes(node) {
			bases = append(bases, base)
			for vrf, f := range base.sessions(node) {
				covered[vrf] = covered[vrf].or(f)
			}
		}
	}
	missing := r.vrfsWithout(covered)
	if len(missing) > 0 {
		r.invalidf("node %s: no selected FRRConfiguration has a router in VRF %s with a neighbor: add one to spec.bgp.routers, or change spec.frrConfigurationSelector", node.Name, strings.Join(missing, ", "))
	}
	r.addGaps(node, bases, covered)
	for _, base := range bases {
		g := generator{r: r, base: base.FRRConfiguration, node: node, bases: b.bases, nodeIDs: b.nodeIDs}
		c := g.configuration(b.in.Namespace)
		if g.filters > maxFilters {
			r.invalidf("node %s: the neighbors of FRRConfiguration %s and the networks without an overlay make %d filters of routes to receive, and one object holds %d: use fewer sessions of a node, with route reflectors outside the cluster, or fewer such networks", node.Name, base.Name, g.filters, maxFilters)
			b.keepSelected(r, base, node)
			continue
		}
		if c != nil {
			b.carryOver(c, missing)
			b.st.Configurations[c.Name] = c
		}
		maps.Copy(anywhere, base.vrfs)
	}
	if len(missing) == 0 {
		return
	}
	for _, base := range r.bases {
		if b.st.Configurations[nameOf(Source{r.ra.Name, base.Name, node.Name})] == nil {
			b.keepSelected(r, base, node)
		}
	}
}

// unsuitable returns why a node cannot advertise what r selects, "" if it can.
func (b *builder) unsuitable(r *request, n Node) string {
	if other := b.sameHostname[n.Name]; other != "" {
		return fmt.Sprintf("nodes %s and %s have the same value of the label %s, by which frr-k8s finds a node's FRRConfigurations: give each node its own", min(n.Name, other), max(n.Name, other), corev1.LabelHostname)
	}
	if r.target() != DefaultVRF && n.Mode == network.SharedGateway { // a new node's is not known at first
		return fmt.Sprintf("spec.targetVRF: node %s has gateway mode %s, in which pods' packets do not pass a VRF: set [ovs] gateway-mode = %s, or leave targetVRF empty", n.Name, n.Mode, network.LocalGateway)
	}
	return ""
}

// vrfOf returns the VRF into which r advertises a network, as routers of FRRConfigurations name it.
func (r *request) vrfOf(n Network) string {
	if r.target() == network.VRFAuto {
		return n.VRF()
	}
	return r.target()
}

// vrfsWithout returns the VRFs into which r advertises networks and in which the node has no
// session, sorted.
func (r *request) vrfsWithout(covered map[string]families) []string {
	var out []string
	for _, n := range r.networks {
		vrf := r.vrfOf(n)
		if _, ok := covered[vrf]; !ok {
			out = append(out, vrf)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// advertised adds a VRF of a network, into which r advertises it, to State.Networks.
func (b *builder) advertised(r *request, name, vrf string) {
	a := Advertised{name, vrf}
	if len(b.st.Advertisers[a]) == 0 {
		b.st.Networks[name] = append(b.st.Networks[name], vrf)
	}
	b.st.Advertisers[a] = append(b.st.Advertisers[a], r.ra.Name)
}

// generator builds the FRRConfiguration of one RouteAdvertisements, base and node.
type generator struct {
	r       *request
	base    *frrv1.FRRConfiguration
	node    Node
	bases   []*frrv1.FRRConfiguration // all, also of other nodes
	nodeIDs map[netip.Addr][]int      // of all nodes, by InternalIP
	filters int                       // of routes to receive, of all neighbors
	raw     []string                  // lines for what the API of frr-k8s does not have
}

// maxFilters filters of some 60 bytes each are below the limit of etcd for an object, 1.5 MiB.
const maxFilters = 20000

// configuration returns the object, nil if the base has no router for the networks.
func (g *generator) configuration(namespace string) *frrv1.FRRConfiguration {
	var spec frrv1.FRRConfigurationSpec
	profiles := map[string]bool{}
	var ids []int // of the networks
	for _, from := range g.base.Spec.BGP.Routers {
		networks := g.r.byVRF[cmp.Or(from.VRF, DefaultVRF)]
		if len(networks) == 0 {
			continue
		}
		router := g.router(from, networks)
		if len(router.Neighbors) == 0 {
			continue
		}
		for _, n := range router.Neighbors {
			profiles[n.BFDProfile] = true
		}
		for _, n := range networks {
			ids = append(ids, n.ID)
		}
		routers := []frrv1.Router{router}
		if g.r.isJoined() {
			routers = g.joined(router, networks[0]) // such a VRF has one network
		}
		spec.BGP.Routers = append(spec.BGP.Routers, routers...)
	}
	if len(spec.BGP.Routers) == 0 {
		return nil
	}
	// A neighbor's BFD profile must be in the neighbor's own object.
	for _, p := range g.base.Spec.BGP.BFDProfiles {
		if profiles[p.Name] {
			spec.BGP.BFDProfiles = append(spec.BGP.BFDProfiles, p)
		}
	}
	spec.NodeSelector = nodeSelector(g.node)
	if len(g.raw) > 0 {
		spec.Raw = frrv1.RawConfig{Priority: rawPriority, Config: strings.Join(g.raw, "\n") + "\n"}
	}
	source := Source{g.r.ra.Name, g.base.Name, g.node.Name}
	return &frrv1.FRRConfiguration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: nameOf(source),
			Labels:      map[string]string{LabelAdvertisements: labelValue(g.r.ra.Name)},
			Annotations: map[string]string{AnnotationSource: source.String(), AnnotationNetworks: formatIDs(ids)},
		},
		Spec: spec,
	}
}

// rawPriority places our lines before those of others, so that the others can override ours.
const rawPriority = 10

// router returns the base's router with the node's prefixes of the networks. Its neighbors keep the
// settings of the session, which frr-k8s requires to be equal in all objects.
func (g *generator) router(from frrv1.Router, networks []Network) frrv1.Router {
	out := frrv1.Router{ASN: from.ASN, ID: from.ID, VRF: from.VRF}
	if out.ID == "" && !g.hasIPv4(from.VRF, networks) {
		// FRR takes an IPv4 address of the VRF as router id, and starts no session without one.
		// Any number that is unique in the autonomous system will do (RFC 6286). The addresses
		// in an operator's VRF are not known. frr-k8s refuses to merge two ids of one VRF.
		out.ID = cmp.Or(g.routerID(from.VRF), netip.AddrFrom4([4]byte{0, 0, byte(g.node.ID >> 8), byte(g.node.ID)}).String())
	}
	var advertise []netip.Prefix
	var noOverlay []Network
	for _, n := range networks {
		hosts, err := n.HostSubnets(g.node.ID)
		if err != nil && !g.isReflector() { // which passes on the routes of others
			continue // the network reports the nodes for which its subnets do not suffice
		}
		advertise = append(advertise, hosts...)
		if n.Transport == network.TransportNoOverlay {
			noOverlay = append(noOverlay, n)
		}
	}
	receive := hostSubnetFilters(noOverlay)
	slices.SortFunc(advertise, netip.Prefix.Compare)
	for _, p := range advertise {
		out.Prefixes = append(out.Prefixes, p.String())
	}
	for _, n := range from.Neighbors {
		carries := familiesOf(n)
		if g.isSelf(n) || !carriesUnicast(n) || isManagedBase(g.base) && carries.and(nodeFamilies(g.node)) == (families{}) {
			continue
		}
		// All prefixes of this object's router, which are those above: listing them again for
		// each neighbor would make objects of neighbors × networks.
		n.ToAdvertise = frrv1.Advertise{Allowed: frrv1.AllowedOutPrefixes{Mode: frrv1.AllowAll}, NextHop: n.ToAdvertise.NextHop}
		n.ToReceive = frrv1.Receive{Allowed: frrv1.AllowedInPrefixes{Mode: frrv1.AllowRestricted}}
		filters := receive
		if isMeshBase(g.base) {
			filters = g.filtersOf(n, noOverlay)
		}
		for _, s := range filters {
			if is4 := !strings.Contains(s.Prefix, ":"); is4 && carries.v4 || !is4 && carries.v6 {
				n.ToReceive.Allowed.Prefixes = append(n.ToReceive.Allowed.Prefixes, s)
			}
		}
		g.filters += len(n.ToReceive.Allowed.Prefixes)
		if isManagedBase(g.base) {
			// Accept only packets from the nodes' own link (RFC 5082). Packets of pods to another
			// node have their node's address as source, too, but have passed a router.
			g.raw = append(g.raw, routerLine(from), " neighbor "+n.Address+" ttl-security hops 1", "exit")
		}
		if g.isReflector() {
			g.reflect(n, carries)
		}
		switch {
		case g.isClient(n):
			g.addRaw(from, n, "route-reflector-client", carries)
		case len(n.ToReceive.Allowed.Prefixes) > 0 && isExternal(from, n) && n.AllowAsIn == "":
			// Another node of the same autonomous system originated the route: between nodes
			// that have eBGP with the same routers, its path contains their own number. Before
			// it, there may be that of joined.
			setting := "allowas-in origin"
			if g.r.isJoined() || n.LocalASN != 0 { // FRR ignores "origin" where it looks for the latter
				setting = "allowas-in 1"
			}
			g.addRaw(from, n, setting, carries)
		}
		out.Neighbors = append(out.Neighbors, n)
	}
	if g.isReflector() {
		g.addReflected(receive)
	}
	return out
}

// routerID returns the router id that another FRRConfiguration gives the node in a VRF, "" if none does.
func (g *generator) routerID(vrf string) string {
	var id, name string
	for _, c := range g.bases {
		nodes, err := nodesOf(c)
		if err != nil || c.DeletionTimestamp != nil || !nodes(g.node) || name != "" && name < c.Name {
			continue
		}
		for _, r := range c.Spec.BGP.Routers {
			if r.ID != "" && cmp.Or(r.VRF, DefaultVRF) == cmp.Or(vrf, DefaultVRF) {
				id, name = r.ID, c.Name
			}
		}
	}
	return id
}

// hostSubnetFilters accept the routes to all nodes' subnets of the networks.
func hostSubnetFilters(networks []Network) (out []frrv1.PrefixSelector) {
	for _, n := range networks {
		for _, s := range n.Subnets {
			filter := frrv1.PrefixSelector{Prefix: s.CIDR.String()}
			if s.HostLen > s.CIDR.Bits() { // else the whole subnet is one node's
				length := uint32(s.HostLen) //nolint:gosec // 0..128
				filter.GE, filter.LE = length, length
			}
			out = append(out, filter)
		}
	}
	return out
}

// filtersOf accept the routes to the neighbor's own subnets of the networks: in a full mesh no node passes on the
// routes of others, and none can take another's packets.
func (g *generator) filtersOf(neighbor frrv1.Neighbor, networks []Network) (out []frrv1.PrefixSelector) {
	a, err := netip.ParseAddr(neighbor.Address)
	if err != nil {
		return nil
	}
	for _, n := range networks {
		for _, id := range g.nodeIDs[a.Unmap()] {
			hosts, err := n.HostSubnets(id)
			if err != nil {
				continue // it has no id yet, or no pods on the network
			}
			for _, h := range hosts {
				out = append(out, frrv1.PrefixSelector{Prefix: h.String()})
			}
		}
	}
	return out
}

// hasIPv4 reports whether the node has an IPv4 address in a VRF: in the default VRF, one of its own, and in
// another one that of its management port of a network; false if that is not known.
func (g *generator) hasIPv4(vrf string, networks []Network) bool {
	if g.r.isJoined() && cmp.Or(vrf, DefaultVRF) != DefaultVRF {
		return false
	}
	if cmp.Or(vrf, DefaultVRF) == DefaultVRF {
		return slices.ContainsFunc(slices.Concat(g.node.InternalIPs, g.node.Addresses), netip.Addr.Is4)
	}
	return slices.ContainsFunc(networks, func(n Network) bool {
		return slices.ContainsFunc(n.CIDRs(), func(p netip.Prefix) bool { return p.Addr().Is4() })
	})
}

// reflected is the name of the prefix lists of what a route reflector passes on.
const reflected = "bulkhead-reflected"

// reflect lets a route reflector send a neighbor what it has received from nodes: frr-k8s
// alone lets only the node's own prefixes leave. Its outgoing route map is named after the
// neighbor and has low sequence numbers.
func (g *generator) reflect(n frrv1.Neighbor, carries families) {
	for i, f := range []struct {
		name string
		on   bool
	}{{"ip", carries.v4}, {"ipv6", carries.v6}} {
		if f.on {
			g.raw = append(g.raw, fmt.Sprintf("route-map %s-out permit %d", n.Address, 65001+i), " match "+f.name+" address prefix-list "+reflected, "exit")
		}
	}
}

// addReflected adds the prefix lists of reflect. Other objects of the node may have lists of the
// same name: lines for the same prefix must be equal, and others have other numbers. A hash of
// the prefix is such a number, without knowing the other objects.
func (g *generator) addReflected(receive []frrv1.PrefixSelector) {
	for _, s := range receive {
		family, lengths := "ip", ""
		if strings.Contains(s.Prefix, ":") {
			family = "ipv6"
		}
		if s.GE > 0 {
			lengths = fmt.Sprintf(" ge %d le %d", s.GE, s.LE)
		}
		number := fnv.New32a()
		number.Write([]byte(s.Prefix))
		g.raw = append(g.raw, fmt.Sprintf("%s prefix-list %s seq %d permit %s%s", family, reflected, max(1, number.Sum32()), s.Prefix, lengths))
	}
}

// firstNodeASN plus the node's id is the private AS number (RFC 6996) of the node's routers in networks' VRFs
// without sessions. FRR passes no route to a VRF whose number is in the route's path. The routes of
// other nodes of one autonomous system contain their common number: each node needs its own.
const firstNodeASN = 4200000000

// joined splits the router of an operator's VRF into two routers. One is in the network's VRF and originates
// the pods' prefixes; the other is in the operator's VRF and has the sessions. Each imports the other's routes.
// If both originated a prefix, FRR would prefer its own path and not pass it on.
func (g *generator) joined(router frrv1.Router, n Network) []frrv1.Router {
	own := frrv1.Router{ASN: firstNodeASN + uint32(g.node.ID), ID: router.ID, VRF: n.VRF(), Prefixes: router.Prefixes, Imports: []frrv1.Import{{VRF: router.VRF}}} //nolint:gosec // ids are small
	router.Prefixes, router.Imports = nil, []frrv1.Import{{VRF: own.VRF}}
	return []frrv1.Router{router, own}
}

// isJoined reports whether r advertises into a VRF that is no network's.
func (r *request) isJoined() bool { return r.target() != DefaultVRF && r.target() != network.VRFAuto }

// isSelf reports whether the neighbor is the node itself: one base lists the nodes of a
// full mesh.
func (g *generator) isSelf(n frrv1.Neighbor) bool {
	a, err := netip.ParseAddr(n.Address)
	return err == nil && (slices.Contains(g.node.Addresses, a.Unmap()) || slices.Contains(g.node.InternalIPs, a.Unmap()))
}

// isExternal reports whether the neighbor is in another autonomous system.
func isExternal(r frrv1.Router, n frrv1.Neighbor) bool {
	return n.DynamicASN == frrv1.ExternalASNMode || n.DynamicASN == "" && n.ASN != r.ASN
}

// addRaw adds a setting of a neighbor's address families that the API of frr-k8s does not
// have.
func (g *generator) addRaw(r frrv1.Router, n frrv1.Neighbor, setting string, carries families) {
	g.raw = append(g.raw, routerLine(r))
	for _, f := range []struct {
		name string
		on   bool
	}{{"ipv4", carries.v4}, {"ipv6", carries.v6}} {
		if f.on {
			g.raw = append(g.raw, " address-family "+f.name+" unicast", "  neighbor "+cmp.Or(n.Interface, n.Address)+" "+setting, " exit-address-family")
		}
	}
	g.raw = append(g.raw, "exit")
}

// routerLine is the line of FRR's configuration that enters a router's section.
func routerLine(r frrv1.Router) string {
	if vrf := cmp.Or(r.VRF, DefaultVRF); vrf != DefaultVRF {
		return fmt.Sprintf("router bgp %d vrf %s", r.ASN, vrf)
	}
	return fmt.Sprintf("router bgp %d", r.ASN)
}
