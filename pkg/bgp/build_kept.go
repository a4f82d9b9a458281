// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"

	"bulkhead/pkg/network"
)

// After a mistake in a RouteAdvertisements or a base, networks stay advertised where the generated FRRConfigurations
// have them. Those objects tell which networks these are: the selectors may be what is wrong.

// bySession returns the networks of r for which some node has a session, and those that stay where they
// were.
func (b *builder) bySession(r *request) (with, without []Network) {
	if r.keepAll {
		return nil, b.in.Networks
	}
	anywhere := map[string]families{}
	for _, base := range r.bases {
		if slices.ContainsFunc(b.in.Nodes, func(n Node) bool { return n.ID > 0 && b.unsuitable(r, n) == "" && base.nodes(n) }) {
			maps.Copy(anywhere, base.vrfs)
		}
	}
	return r.split(anywhere)
}

// split returns the networks of r whose VRF is among vrfs, and the others, which stay where they were. If r selects no
// base, both lists are empty: what was generated is withdrawn.
func (r *request) split(vrfs map[string]families) (with, without []Network) {
	if len(r.bases) == 0 {
		return nil, nil
	}
	for _, n := range r.networks {
		if _, ok := vrfs[r.vrfOf(n)]; ok {
			with = append(with, n)
		} else {
			without = append(without, n)
		}
	}
	return with, without
}

// addKept adds to State.Networks where FRRConfigurations of r advertise the networks. In each VRF,
// refuseOverlaps has chosen among them and those that others advertise.
func (b *builder) addKept(r *request, networks []Network) {
	for _, k := range b.kept(r, networks) {
		if b.mayBeIn(k) && (k.vrf == network.VRFAuto || b.owns[k.vrf][k.Name]) {
			b.advertised(r, k.Name, k.vrf)
		}
	}
}

// placed is a network in a VRF, which is named as in State.Networks.
type placed struct {
	Network
	vrf string
}

// kept returns where generated FRRConfigurations of r advertise the networks, without what cutsOffNodes refuses.
func (b *builder) kept(r *request, networks []Network) []placed {
	if len(networks) == 0 {
		return nil
	}
	return slices.DeleteFunc(placedIn(b.generated[r.ra.Name], b.in.Nodes, networks), b.cutsOffNodes)
}

// placedIn returns where generated FRRConfigurations advertise the networks. An object must have a
// network's id and its prefix: an id may become another network's, and networks may have the same prefixes.
func placedIn(objects []*frrv1.FRRConfiguration, nodes []Node, networks []Network) []placed {
	byID, nodeIDs := map[int]Network{}, map[string]int{}
	for _, n := range networks {
		if n.ID > 0 || n.CUDN == "" {
			byID[n.ID] = n
		}
	}
	for _, n := range nodes {
		nodeIDs[n.Name] = n.ID
	}
	var out []placed
	found := map[Advertised]bool{}
	for _, c := range objects {
		var recorded []Network
		for _, id := range parseIDs(c.Annotations[AnnotationNetworks]) {
			if n, ok := byID[id]; ok {
				recorded = append(recorded, n)
			}
		}
		source, _ := SourceOf(c)
		for _, p := range placedBy(c, nodeIDs[source.Node], recorded) {
			if key := (Advertised{p.Name, p.vrf}); !found[key] {
				found[key] = true
				out = append(out, p)
			}
		}
	}
	return out
}

// carryOver adds to c, which replaces an object, the object's routers in vrfs. In these VRFs the node no longer has a
// session, because the base has lost its router there, or the router's neighbors.
func (b *builder) carryOver(c *frrv1.FRRConfiguration, vrfs []string) {
	source, _ := SourceOf(c)
	objects := b.generated[source.Advertisements]
	at := slices.IndexFunc(objects, func(o *frrv1.FRRConfiguration) bool { return o.Name == c.Name })
	if at < 0 || len(vrfs) == 0 {
		return
	}
	have := objects[at]
	used, known := map[string]bool{}, map[string]bool{} // BFD profiles
	for _, r := range have.Spec.BGP.Routers {
		if !slices.Contains(vrfs, r.VRF) {
			continue
		}
		c.Spec.BGP.Routers = append(c.Spec.BGP.Routers, *r.DeepCopy())
		if lines := linesOf(have.Spec.Raw.Config, r); lines != "" {
			c.Spec.Raw = frrv1.RawConfig{Priority: rawPriority, Config: c.Spec.Raw.Config + lines}
		}
		for _, n := range r.Neighbors {
			used[n.BFDProfile] = true
		}
	}
	for _, p := range c.Spec.BGP.BFDProfiles {
		known[p.Name] = true
	}
	for _, p := range have.Spec.BGP.BFDProfiles {
		if used[p.Name] && !known[p.Name] {
			c.Spec.BGP.BFDProfiles = append(c.Spec.BGP.BFDProfiles, p)
		}
	}
	ids, recorded := parseIDs(c.Annotations[AnnotationNetworks]), parseIDs(have.Annotations[AnnotationNetworks])
	for _, n := range b.in.Networks {
		if slices.Contains(vrfs, n.VRF()) && slices.Contains(recorded, n.ID) {
			ids = append(ids, n.ID)
		}
	}
	c.Annotations[AnnotationNetworks] = formatIDs(ids)
}

// keepSelected keeps the object of r, a base and a node as it is, except for networks that r no longer selects.
func (b *builder) keepSelected(r *request, base base, node Node) {
	source := Source{r.ra.Name, base.Name, node.Name}
	objects := b.generated[r.ra.Name]
	at := slices.IndexFunc(objects, func(o *frrv1.FRRConfiguration) bool { return o.Name == nameOf(source) })
	if at < 0 {
		return
	}
	have := objects[at]
	selected := map[int]Network{}
	for _, n := range r.networks {
		selected[n.ID] = n
	}
	var ids []int
	var networks []Network
	recorded := parseIDs(have.Annotations[AnnotationNetworks])
	for _, id := range recorded {
		if n, ok := selected[id]; ok {
			ids, networks = append(ids, id), append(networks, n)
		}
	}
	if len(ids) == len(recorded) {
		b.st.Keep[source] = true
		return
	}
	spec := have.Spec.DeepCopy()
	spec.BGP.Routers = nil
	for _, router := range have.Spec.BGP.Routers {
		within := slices.DeleteFunc(slices.Clone(networks), func(n Network) bool {
			return cmp.Or(router.VRF, DefaultVRF) != r.vrfOf(n) && router.VRF != n.VRF()
		})
		if len(within) == 0 {
			spec.Raw.Config = strings.ReplaceAll(spec.Raw.Config, linesOf(spec.Raw.Config, router), "")
			continue
		}
		spec.BGP.Routers = append(spec.BGP.Routers, onlyNetworks(router, within, node.ID))
	}
	if len(spec.BGP.Routers) == 0 {
		return // all of it is withdrawn
	}
	c := &frrv1.FRRConfiguration{Spec: *spec}
	c.Namespace, c.Name, c.Labels, c.Annotations = have.Namespace, have.Name, maps.Clone(have.Labels), maps.Clone(have.Annotations)
	c.Annotations[AnnotationNetworks] = formatIDs(ids)
	b.st.Configurations[c.Name] = c
}

// onlyNetworks returns a router without the prefixes of other networks than these.
func onlyNetworks(router frrv1.Router, networks []Network, nodeID int) frrv1.Router {
	out := *router.DeepCopy()
	own := map[string]bool{}
	for _, n := range networks {
		hosts, _ := n.HostSubnets(nodeID) // without any, it announces none
		for _, h := range hosts {
			own[h.String()] = true
		}
	}
	isOthers := func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err != nil || !slices.ContainsFunc(networks, func(n Network) bool {
			return slices.ContainsFunc(n.CIDRs(), func(c netip.Prefix) bool { return c.Bits() <= p.Bits() && c.Contains(p.Addr()) })
		})
	}
	out.Prefixes = slices.DeleteFunc(out.Prefixes, func(p string) bool { return !own[p] })
	for i := range out.Neighbors {
		allowed := &out.Neighbors[i].ToReceive.Allowed
		allowed.Prefixes = slices.DeleteFunc(allowed.Prefixes, func(s frrv1.PrefixSelector) bool { return isOthers(s.Prefix) })
	}
	return out
}

// linesOf returns the lines that generator.raw has for a router.
func linesOf(raw string, r frrv1.Router) string {
	var out strings.Builder
	within := false
	for line := range strings.Lines(raw) {
		text := strings.TrimSuffix(line, "\n")
		within = within || text == routerLine(r)
		if within {
			out.WriteString(line)
		}
		within = within && text != "exit"
	}
	return out.String()
}

// placedBy returns where c, the generated FRRConfiguration of a node, advertises the networks. A router
// without neighbors passes routes from one VRF to another, and advertises nothing.
func placedBy(c *frrv1.FRRConfiguration, nodeID int, networks []Network) []placed {
	prefixes := map[[2]string]bool{}   // with the router's VRF
	sessions := map[string]bool{}      // VRFs
	importing := map[string][]string{} // VRFs with sessions, by the VRF from which they have routes
	for _, router := range c.Spec.BGP.Routers {
		vrf := cmp.Or(router.VRF, DefaultVRF)
		for _, p := range router.Prefixes {
			prefixes[[2]string{vrf, p}] = true
		}
		if len(router.Neighbors) == 0 {
			continue
		}
		sessions[vrf] = true
		for _, i := range router.Imports {
			importing[i.VRF] = append(importing[i.VRF], vrf)
		}
	}
	var out []placed
	for _, n := range networks {
		hosts, err := n.HostSubnets(nodeID)
		if err != nil || len(hosts) == 0 {
			continue // the node has no addresses on the network
		}
		prefix, own := hosts[0].String(), n.VRF()
		if sessions[DefaultVRF] && prefixes[[2]string{DefaultVRF, prefix}] {
			out = append(out, placed{n, DefaultVRF})
		}
		if !prefixes[[2]string{own, prefix}] {
			continue
		}
		if sessions[own] {
			out = append(out, placed{n, network.VRFAuto})
		}
		for _, vrf := range importing[own] {
			out = append(out, placed{n, vrf})
		}
	}
	return out
}

// formatIDs returns ids as AnnotationNetworks has them.
func formatIDs(ids []int) string {
	slices.Sort(ids)
	var text []string
	for _, id := range slices.Compact(ids) {
		text = append(text, strconv.Itoa(id))
	}
	return strings.Join(text, ",")
}

// parseIDs returns the ids in AnnotationNetworks. Entries that are not numbers are skipped: formatIDs did not write them.
func parseIDs(text string) []int {
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		if id, err := strconv.Atoi(part); err == nil {
			out = append(out, id)
		}
	}
	return out
}
