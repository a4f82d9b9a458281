// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// generate adds the FRRConfigurations of one RouteAdvertisements. A node without a session
// for one of the VRFs keeps what it has.
func (b *builder) generate(r *request) {
	for _, node := range b.in.Nodes {
		if node.ID == 0 {
			continue
		}
		lacking := map[string]bool{}
		for _, n := range r.networks {
			lacking[r.vrfOf(n)] = true
		}
		var configs []*frrv1.FRRConfiguration
		for _, base := range r.bases {
			if !base.nodes(node) {
				continue
			}
			g := generator{r: r, base: base.FRRConfiguration, node: node, covered: map[string]bool{}}
			if c := g.configuration(b.in.Namespace); c != nil {
				configs = append(configs, c)
			}
			maps.DeleteFunc(lacking, func(vrf string, _ bool) bool { return g.covered[vrf] })
		}
		b.checkNode(r, node, lacking)
		if r.keepAll || len(lacking) > 0 && len(r.bases) > 0 {
			for _, base := range r.bases {
				b.st.Keep[Source{r.ra.Name, base.Name, node.Name}] = true
			}
			if r.keepAll {
				continue
			}
		}
		for _, c := range configs {
			b.st.Configurations[c.Name] = c
		}
	}
	if r.keepAll { // its bases may not be known
		b.st.Keep[Source{Advertisements: r.ra.Name}] = true
	}
}

// addKept adds to State.Networks what the FRRConfigurations advertise that an invalid
// RouteAdvertisements keeps.
func (b *builder) addKept(r *request) {
	for i := range b.in.Configurations {
		c := &b.in.Configurations[i]
		source, ok := SourceOf(c)
		at := slices.IndexFunc(b.in.Nodes, func(n Node) bool { return n.Name == source.Node })
		if !ok || source.Advertisements != r.ra.Name || at < 0 || b.in.Nodes[at].ID == 0 {
			continue
		}
		for _, router := range c.Spec.BGP.Routers {
			for _, n := range b.in.Networks {
				hosts, err := n.HostSubnets(b.in.Nodes[at].ID)
				if err == nil && len(hosts) > 0 && slices.Contains(router.Prefixes, hosts[0].String()) {
					b.advertised(n.Name, vrfName(router.VRF))
				}
			}
		}
	}
}

// advertised adds a VRF of a network to State.Networks.
func (b *builder) advertised(name, vrf string) {
	if !slices.Contains(b.st.Networks[name], vrf) {
		b.st.Networks[name] = append(b.st.Networks[name], vrf)
	}
}

// checkNode adds the reasons for which the node does not advertise everything.
func (b *builder) checkNode(r *request, node Node, lacking map[string]bool) {
	if len(r.bases) == 0 || r.keepAll {
		return
	}
	for _, n := range r.networks {
		switch vrf := r.vrfOf(n); {
		case lacking[vrf]:
			r.invalidf("node %s: no selected FRRConfiguration has a router in VRF %s with a neighbor: add one to spec.bgp.routers, or change spec.frrConfigurationSelector", node.Name, vrf)
		case vrf != DefaultVRF && node.Mode == network.SharedGateway:
			r.invalidf("node %s: advertising into VRF %s needs the kernel to route: set gateway-mode = local, or leave spec.targetVRF empty", node.Name, vrf)
		}
	}
}

// generator builds the FRRConfiguration of one RouteAdvertisements, base and node.
type generator struct {
	r       *request
	base    *frrv1.FRRConfiguration
	node    Node
	covered map[string]bool // VRFs of which the base has a router with a neighbour
	raw     []string        // lines for what the API of frr-k8s does not have
}

// configuration returns the object, nil if the base has no router for the networks.
func (g *generator) configuration(namespace string) *frrv1.FRRConfiguration {
	byVRF := map[string][]Network{}
	for _, n := range g.r.networks {
		byVRF[g.r.vrfOf(n)] = append(byVRF[g.r.vrfOf(n)], n)
	}
	var spec frrv1.FRRConfigurationSpec
	profiles := map[string]bool{}
	for _, from := range g.base.Spec.BGP.Routers {
		vrf := vrfName(from.VRF)
		networks, wanted := byVRF[vrf]
		if !wanted {
			continue
		}
		router := g.router(from, networks)
		if len(router.Neighbors) == 0 {
			continue
		}
		for _, n := range router.Neighbors {
			profiles[n.BFDProfile] = true
		}
		spec.BGP.Routers = append(spec.BGP.Routers, router)
		spec.BGP.Routers = append(spec.BGP.Routers, g.leaks(&spec.BGP.Routers[len(spec.BGP.Routers)-1], vrf, networks)...)
	}
	if len(spec.BGP.Routers) == 0 {
		return nil
	}
	// A neighbour's BFD profile must be in the neighbour's own object.
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
			Annotations: map[string]string{AnnotationSource: source.String()},
		},
		Spec: spec,
	}
}

// rawPriority places our lines before those of others, which may overrule them.
const rawPriority = 10

// router returns the base's router with the node's prefixes. Its neighbours keep the
// settings of the session, which frr-k8s requires to be equal in all objects.
func (g *generator) router(from frrv1.Router, networks []Network) frrv1.Router {
	out := frrv1.Router{ASN: from.ASN, ID: from.ID, VRF: from.VRF}
	var advertise []netip.Prefix
	var receive []frrv1.PrefixSelector
	for _, n := range networks {
		hosts, err := n.HostSubnets(g.node.ID)
		if err != nil {
			continue // the network reports the nodes for which its subnets do not suffice
		}
		advertise = append(advertise, hosts...)
		if n.Transport == network.TransportNoOverlay {
			for _, s := range n.Subnets {
				length := uint32(s.HostLen) //nolint:gosec // 0..128
				receive = append(receive, frrv1.PrefixSelector{Prefix: s.CIDR.String(), GE: length, LE: length})
			}
		}
	}
	slices.SortFunc(advertise, comparePrefixes)
	for _, p := range advertise {
		out.Prefixes = append(out.Prefixes, p.String())
	}
	for _, n := range from.Neighbors {
		// A router whose only neighbour is the node itself is a fabric of one node.
		g.covered[vrfName(from.VRF)] = true
		if g.isSelf(n) {
			continue
		}
		v4, v6 := familiesOf(n)
		// All prefixes of this object's router, which are those above: listing them again for
		// each neighbour would make objects of neighbours × networks.
		n.ToAdvertise = frrv1.Advertise{Allowed: frrv1.AllowedOutPrefixes{Mode: frrv1.AllowAll}, NextHop: n.ToAdvertise.NextHop}
		n.ToReceive = frrv1.Receive{Allowed: frrv1.AllowedInPrefixes{Mode: frrv1.AllowRestricted}}
		for _, s := range receive {
			if is4 := !strings.Contains(s.Prefix, ":"); is4 && v4 || !is4 && v6 {
				n.ToReceive.Allowed.Prefixes = append(n.ToReceive.Allowed.Prefixes, s)
			}
		}
		if isManagedBase(g.base) {
			// The nodes share a link. Packets of pods, whose source is the node's address too
			// when they reach another node, have passed a router: RFC 5082.
			g.raw = append(g.raw, routerLine(from), " neighbor "+n.Address+" ttl-security hops 1", "exit")
		}
		switch {
		case g.isClient(n):
			g.addRaw(from, n, "route-reflector-client", v4, v6)
		case len(n.ToReceive.Allowed.Prefixes) > 0 && isExternal(from, n):
			// Another node of the same autonomous system originated the route: between nodes
			// that have eBGP with the same routers, its path contains their own number.
			g.addRaw(from, n, "allowas-in origin", v4, v6)
		}
		out.Neighbors = append(out.Neighbors, n)
	}
	return out
}

// vrfName returns FRR's name of a router's VRF.
func vrfName(vrf string) string { return cmp.Or(vrf, DefaultVRF) }

// isSelf reports whether the neighbour is the node itself: one base lists the nodes of a
// full mesh.
func (g *generator) isSelf(n frrv1.Neighbor) bool {
	a, err := netip.ParseAddr(n.Address)
	return err == nil && (slices.Contains(g.node.Addresses, a.Unmap()) || slices.Contains(g.node.InternalIPs, a.Unmap()))
}

// familiesOf returns the IP families that a session carries.
func familiesOf(n frrv1.Neighbor) (v4, v6 bool) {
	if n.Interface != "" || n.DualStackAddressFamily {
		return true, true
	}
	a, err := netip.ParseAddr(n.Address)
	return err == nil && a.Unmap().Is4(), err == nil && !a.Unmap().Is4()
}

// isExternal reports whether the neighbour is in another autonomous system.
func isExternal(r frrv1.Router, n frrv1.Neighbor) bool {
	return n.DynamicASN == frrv1.ExternalASNMode || n.DynamicASN == "" && n.ASN != r.ASN
}

// addRaw adds a setting of a neighbour's address families that the API of frr-k8s does not
// have.
func (g *generator) addRaw(r frrv1.Router, n frrv1.Neighbor, setting string, v4, v6 bool) {
	g.raw = append(g.raw, routerLine(r))
	for _, f := range []struct {
		name string
		on   bool
	}{{"ipv4", v4}, {"ipv6", v6}} {
		if f.on {
			g.raw = append(g.raw, " address-family "+f.name+" unicast", "  neighbor "+cmp.Or(n.Interface, n.Address)+" "+setting, " exit-address-family")
		}
	}
	g.raw = append(g.raw, "exit")
}

// routerLine is the line of FRR's configuration that enters a router's section.
func routerLine(r frrv1.Router) string {
	if r.VRF == "" {
		return fmt.Sprintf("router bgp %d", r.ASN)
	}
	return fmt.Sprintf("router bgp %d vrf %s", r.ASN, r.VRF)
}

// leaks connects the target VRF with the VRFs of networks that are advertised into it, both
// ways: where the kernel routes the networks, what the target learns must be in their
// tables, and packets that arrive there must find their pods. In shared gateway mode OVN
// routes, and the tables stay apart.
func (g *generator) leaks(target *frrv1.Router, vrf string, networks []Network) []frrv1.Router {
	if g.node.Mode != network.LocalGateway {
		return nil
	}
	var out []frrv1.Router
	for _, n := range networks {
		if n.CUDN == "" || n.VRF() == vrf {
			continue
		}
		target.Imports = append(target.Imports, frrv1.Import{VRF: n.VRF()})
		out = append(out, frrv1.Router{ASN: target.ASN, ID: target.ID, VRF: n.VRF(), Imports: []frrv1.Import{{VRF: vrf}}})
	}
	return out
}
