// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// Build returns the generated FRRConfigurations and the status of each
// RouteAdvertisements. It looks at all of them together, because networks with overlapping
// subnets must not be advertised into one VRF, whichever RouteAdvertisements select them.
func Build(in Inputs) State {
	b := builder{in: in, st: State{
		Configurations: map[string]*frrv1.FRRConfiguration{}, Keep: map[Source]bool{},
		Accepted: map[string]metav1.Condition{}, Networks: map[string][]string{},
	}}
	requests := b.requests()
	b.refuseOverlaps(requests)
	for _, r := range requests {
		if r.keepAll {
			b.addKept(r)
		}
		b.generate(r)
		b.st.Accepted[r.ra.Name] = r.condition()
	}
	for _, vrfs := range b.st.Networks {
		slices.Sort(vrfs)
	}
	return b.st
}

type builder struct {
	in Inputs
	st State
}

// request is one RouteAdvertisements with what it selects.
type request struct {
	ra       *udnv1.RouteAdvertisements
	networks []Network // sorted by name
	bases    []base
	// Reasons for which not everything is advertised. With an invalid specification or
	// base, what was generated before stays: a mistake must not cut off pods.
	invalid, pending []string
	keepAll          bool
}

// base is a selected FRRConfiguration and the nodes for which it is meant.
type base struct {
	*frrv1.FRRConfiguration
	nodes func(Node) bool
}

func (r *request) invalidf(format string, a ...any) {
	r.invalid = append(r.invalid, fmt.Sprintf(format, a...))
}
func (r *request) pendingf(format string, a ...any) {
	r.pending = append(r.pending, fmt.Sprintf(format, a...))
}

// requests resolves what each RouteAdvertisements selects.
func (b *builder) requests() []*request {
	ras := slices.Clone(b.in.Advertisements)
	slices.SortFunc(ras, func(x, y udnv1.RouteAdvertisements) int { return cmp.Compare(x.Name, y.Name) })
	var out []*request
	for i := range ras {
		r := &request{ra: &ras[i]}
		if ras[i].DeletionTimestamp != nil {
			continue
		}
		if slices.Contains(r.ra.Spec.Advertisements, udnv1.EgressIP) {
			r.invalidf("spec.advertisements: EgressIP is not supported: remove it")
			r.keepAll = true
		}
		b.selectNetworks(r)
		b.selectBases(r)
		b.checkTarget(r)
		if len(b.in.Nodes) == 0 {
			r.pendingf("no node has an id yet")
		}
		out = append(out, r)
	}
	return out
}

// selectNetworks adds the networks that r selects.
func (b *builder) selectNetworks(r *request) {
	var absent []string
	for _, s := range r.ra.Spec.NetworkSelectors {
		selector := labels.Nothing()
		if c := s.ClusterUserDefinedNetworkSelector; s.NetworkSelectionType == udnv1.ClusterUserDefinedNetworks && c != nil {
			var err error
			if selector, err = metav1.LabelSelectorAsSelector(&c.NetworkSelector); err != nil {
				r.invalidf("spec.networkSelectors: networkSelector: %v", err)
				r.keepAll = true
				continue
			}
		}
		for _, n := range b.in.Networks {
			switch {
			case n.IsDefault() && n.CUDN == "":
				if s.NetworkSelectionType == udnv1.DefaultNetwork {
					r.networks = append(r.networks, n)
				}
			case !selector.Matches(labels.Set(n.Labels)):
			case n.Role != network.RolePrimary || n.Topology == network.Localnet:
				r.invalidf("ClusterUserDefinedNetwork %s is a secondary network, which has no way out of the cluster: change its labels or spec.networkSelectors so that only primary networks are selected", n.CUDN)
				r.keepAll = true
			case n.ID == 0:
				absent = append(absent, n.CUDN)
			default:
				r.networks = append(r.networks, n)
			}
		}
	}
	slices.SortFunc(r.networks, func(x, y Network) int { return cmp.Compare(x.Name, y.Name) })
	switch {
	case len(r.networks) > 0 || r.keepAll:
	case len(absent) > 0:
		r.pendingf("the selected ClusterUserDefinedNetworks %v have no NetworkAttachmentDefinition yet: see their condition NetworkCreated", absent)
	default:
		r.pendingf("spec.networkSelectors selects no network: check the labels of the ClusterUserDefinedNetworks")
	}
}

// selectBases adds the FRRConfigurations that r selects.
func (b *builder) selectBases(r *request) {
	selector, err := metav1.LabelSelectorAsSelector(&r.ra.Spec.FRRConfigurationSelector)
	if err != nil {
		r.invalidf("spec.frrConfigurationSelector: %v", err)
		r.keepAll = true
		return
	}
	for i := range b.in.Configurations {
		c := &b.in.Configurations[i]
		if c.DeletionTimestamp != nil || IsGenerated(c) || !selector.Matches(labels.Set(c.Labels)) {
			continue
		}
		byLabels, err := metav1.LabelSelectorAsSelector(&c.Spec.NodeSelector)
		if err != nil {
			r.invalidf("FRRConfiguration %s: spec.nodeSelector: %v", c.Name, err)
			r.keepAll = true
			continue
		}
		nodes := func(n Node) bool { return byLabels.Matches(labels.Set(n.Labels)) }
		if isManagedBase(c) {
			nodes = func(n Node) bool { return hasFabricRole(c, n) }
		}
		r.bases = append(r.bases, base{c, nodes})
	}
	slices.SortFunc(r.bases, func(x, y base) int { return cmp.Compare(x.Name, y.Name) })
	if len(r.bases) == 0 && !r.keepAll {
		r.pendingf("spec.frrConfigurationSelector selects no FRRConfiguration in namespace %s: create one with the peers of the nodes, or change the selector", b.in.Namespace)
	}
}

// checkTarget refuses a target VRF that would join a tenant's network with others: routes
// of one would be leaked into the VRF of the other.
func (b *builder) checkTarget(r *request) {
	target := targetVRF(r.ra)
	if target == DefaultVRF || target == AutoVRF {
		return
	}
	for _, n := range b.in.Networks {
		if n.CUDN == "" || n.ID == 0 || n.Role != network.RolePrimary || n.VRF() != target && n.FallbackVRF() != target {
			continue
		}
		if others := slices.DeleteFunc(names(r.networks), func(name string) bool { return name == n.Name }); len(others) > 0 {
			r.invalidf("spec.targetVRF: %s is the VRF of network %s, and networks %v would be advertised into it: use auto, which advertises each network into its own VRF, or a VRF that no network has", target, n.Name, others)
			r.keepAll = true
		}
	}
}

// targetVRF is the target with FRR's name for the default VRF.
func targetVRF(ra *udnv1.RouteAdvertisements) string { return cmp.Or(ra.Spec.TargetVRF, DefaultVRF) }

// vrfOf returns the VRF into which r advertises a network.
func (r *request) vrfOf(n Network) string {
	if target := targetVRF(r.ra); target != AutoVRF {
		return target
	}
	if n.CUDN == "" {
		return DefaultVRF
	}
	return n.VRF()
}

// refuseOverlaps removes networks whose subnets overlap those of an older network that is
// advertised into the same VRF.
func (b *builder) refuseOverlaps(requests []*request) {
	type claim struct {
		Network
		vrf string
	}
	var claims []claim
	for _, r := range requests {
		if r.keepAll || len(r.bases) == 0 {
			continue
		}
		for _, n := range r.networks {
			claims = append(claims, claim{n, r.vrfOf(n)})
		}
	}
	slices.SortStableFunc(claims, func(x, y claim) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Name, y.Name), cmp.Compare(x.vrf, y.vrf))
	})
	claims = slices.CompactFunc(claims, func(x, y claim) bool { return x.Name == y.Name && x.vrf == y.vrf })
	accepted := map[string]*prefixOwners{} // by VRF
	refused := map[[2]string]string{}      // the reason, by network and VRF
	for _, c := range claims {
		owners := accepted[c.vrf]
		if owners == nil {
			owners = &prefixOwners{}
			accepted[c.vrf] = owners
		}
		if older, subnet, ok := owners.overlapping(c.CIDRs()); ok {
			refused[[2]string{c.Name, c.vrf}] = fmt.Sprintf("network %s is not advertised into VRF %s: its subnet %s overlaps network %s, which is older and is advertised there: use spec.targetVRF auto, or other subnets", c.Name, c.vrf, subnet, older)
			continue
		}
		owners.add(c.Name, c.CIDRs())
		b.advertised(c.Name, c.vrf)
	}
	for _, r := range requests {
		r.networks = slices.DeleteFunc(r.networks, func(n Network) bool {
			reason, is := refused[[2]string{n.Name, r.vrfOf(n)}]
			if is {
				r.invalid = append(r.invalid, reason)
			}
			return is
		})
	}
}

// prefixOwners are disjoint prefixes, sorted, with their networks.
type prefixOwners struct {
	prefixes []netip.Prefix
	owners   []string
}

// overlapping returns a network that has a prefix which overlaps one of list.
func (o *prefixOwners) overlapping(list []netip.Prefix) (owner string, of netip.Prefix, ok bool) {
	for _, p := range list {
		// The prefixes are disjoint: only the neighbours of p's position can overlap it.
		i, _ := slices.BinarySearchFunc(o.prefixes, p, comparePrefixes)
		for _, at := range []int{i - 1, i} {
			if at >= 0 && at < len(o.prefixes) && o.prefixes[at].Overlaps(p) {
				return o.owners[at], p, true
			}
		}
	}
	return "", netip.Prefix{}, false
}

func (o *prefixOwners) add(owner string, list []netip.Prefix) {
	for _, p := range list {
		i, _ := slices.BinarySearchFunc(o.prefixes, p, comparePrefixes)
		o.prefixes, o.owners = slices.Insert(o.prefixes, i, p), slices.Insert(o.owners, i, owner)
	}
}

func comparePrefixes(x, y netip.Prefix) int {
	return cmp.Or(x.Masked().Addr().Compare(y.Masked().Addr()), cmp.Compare(x.Bits(), y.Bits()))
}

// condition returns the condition Accepted of the RouteAdvertisements.
func (r *request) condition() metav1.Condition {
	c := metav1.Condition{Type: udnv1.ConditionAccepted, ObservedGeneration: r.ra.Generation}
	switch {
	case len(r.invalid) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, udnv1.ReasonConfigurationError, join(r.invalid)
	case len(r.pending) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, udnv1.ReasonConfigurationPending, join(r.pending)
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, udnv1.ReasonAccepted,
			fmt.Sprintf("Networks advertised: %d, with the sessions of FRRConfigurations: %d.", len(r.networks), len(r.bases))
	}
	return c
}

// messageLimit is below the API's limit for a condition's message.
const messageLimit = 10000

// join returns the distinct reasons as one message.
func join(reasons []string) string {
	text := strings.Join(slices.Compact(reasons), "; ")
	if len(text) > messageLimit {
		text = strings.ToValidUTF8(text[:messageLimit], "") + " …"
	}
	return text
}

func names(networks []Network) []string {
	var out []string
	for _, n := range networks {
		out = append(out, n.Name)
	}
	return out
}

// IsGenerated reports whether c was generated from another FRRConfiguration.
func IsGenerated(c *frrv1.FRRConfiguration) bool {
	_, marked := c.Annotations[AnnotationSource]
	return marked || strings.HasPrefix(c.Name, generatedPrefix)
}

// isManagedBase reports whether c is a base of the managed fabric.
func isManagedBase(c *frrv1.FRRConfiguration) bool {
	return c.Labels[LabelFabric] == LabelFabricValue && strings.HasPrefix(c.Name, managedPrefix)
}

// SourceOf returns what c was generated from.
func SourceOf(c *frrv1.FRRConfiguration) (Source, bool) {
	parts := strings.Split(c.Annotations[AnnotationSource], "/")
	if len(parts) != 3 || !strings.HasPrefix(c.Name, generatedPrefix) {
		return Source{}, false
	}
	return Source{parts[0], parts[1], parts[2]}, true
}

// nameOf returns the name of a generated FRRConfiguration. It is derived, so that
// creating it twice fails.
func nameOf(s Source) string {
	sum := sha256.Sum256([]byte(s.String()))
	return generatedPrefix + hex.EncodeToString(sum[:10])
}

// labelValue returns name as the value of a label, which is at most 63 characters.
func labelValue(name string) string {
	if len(name) <= 63 {
		return name
	}
	return strings.TrimRight(name[:63], "-.")
}

// nodeSelector selects one node.
func nodeSelector(n Node) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: cmp.Or(n.Labels[corev1.LabelHostname], n.Name)}}
}
