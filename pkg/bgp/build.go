// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"regexp"
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
// RouteAdvertisements. It builds all of them together, because networks with overlapping
// subnets must not be advertised into one VRF, whichever RouteAdvertisements select them.
func Build(in Inputs) State {
	b := builder{in: in, owns: map[string]map[string]bool{}, nodeIDs: map[netip.Addr][]int{}, decided: map[string]decision{}, st: State{
		Configurations: map[string]*frrv1.FRRConfiguration{}, Keep: map[Source]bool{},
		Accepted: map[string]metav1.Condition{}, Networks: map[string][]string{}, Advertisers: map[Advertised][]string{},
	}}
	b.bases, b.generated = splitConfigurations(in.Configurations)
	for _, n := range in.Nodes {
		for _, a := range n.InternalIPs {
			b.nodeIDs[a] = append(b.nodeIDs[a], n.ID)
		}
	}
	b.sameHostname = sameHostnames(in.Nodes)
	b.reserved = reservedBy(in.Nodes)
	requests := b.requests()
	b.refuseNodes(requests)
	b.refuseBoth(requests)
	b.refuseOverlaps(requests)
	for _, r := range requests {
		r.byVRF = map[string][]Network{}
		for _, n := range r.networks {
			r.byVRF[r.vrfOf(n)] = append(r.byVRF[r.vrfOf(n)], n)
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
	in           Inputs
	st           State
	nodeIDs      map[netip.Addr][]int                 // by InternalIP; a node may claim that of another
	sameHostname map[string]string                    // node → another that frr-k8s takes for the same
	reserved     []reserved                           // sorted by address
	bases        []*frrv1.FRRConfiguration            // those that are not generated
	generated    map[string][]*frrv1.FRRConfiguration // the others, by RouteAdvertisements
	decided      map[string]decision                  // what refuseBoth has chosen, by network
	owns         map[string]map[string]bool           // the networks that refuseOverlaps has chosen, by VRF and name
}

// request is one RouteAdvertisements with what it selects.
type request struct {
	ra       *udnv1.RouteAdvertisements
	networks []Network            // sorted by name
	byVRF    map[string][]Network // networks by vrfOf
	bases    []base
	// Reasons for which not everything is advertised. With an invalid specification or
	// base, what was generated before stays: a mistake must not cut off pods.
	invalid, pending []string
	warnings         []string         // added to the message of an accepted RouteAdvertisements
	gaps             map[gap][]string // the nodes that have each
	keepAll          bool
}

// base is a selected FRRConfiguration and the nodes for which it is meant.
type base struct {
	*frrv1.FRRConfiguration
	nodes func(Node) bool
	// vrfs has the VRFs in which these nodes have sessions, and the IP families whose routes the sessions
	// carry. A router whose only neighbor is the node itself counts: that is a fabric of one node.
	vrfs map[string]families
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
		r := &request{ra: &ras[i], gaps: map[gap][]string{}}
		if ras[i].DeletionTimestamp != nil {
			continue
		}
		if slices.Contains(r.ra.Spec.Advertisements, udnv1.EgressIP) {
			r.invalidf("spec.advertisements: EgressIP is not supported: remove it")
			r.keepAll = true
		}
		b.selectNetworks(r)
		b.selectBases(r)
		b.checkSupported(r)
		b.checkNodes(r)
		if !slices.ContainsFunc(b.in.Nodes, func(n Node) bool { return n.ID > 0 }) {
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
		if c := s.CUDNs(); c != nil {
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
				switch {
				case s.NetworkSelectionType != udnv1.DefaultNetwork:
				case n.Transport != network.TransportNoOverlay:
					r.invalidf("the cluster default network has an overlay, with which it is not advertised: select ClusterUserDefinedNetworks only, or install with [default] transport = no-overlay")
					r.keepAll = true
				default:
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
	for _, c := range b.bases {
		if c.DeletionTimestamp != nil || !selector.Matches(labels.Set(c.Labels)) {
			continue
		}
		nodes, err := nodesOf(c)
		if err != nil {
			r.invalidf("FRRConfiguration %s: spec.nodeSelector: %v", c.Name, err)
			r.keepAll = true
			continue
		}
		vrfs := map[string]families{}
		for _, router := range c.Spec.BGP.Routers {
			for _, n := range router.Neighbors {
				if carriesUnicast(n) {
					vrf := cmp.Or(router.VRF, DefaultVRF)
					vrfs[vrf] = vrfs[vrf].or(familiesOf(n))
				}
			}
		}
		r.bases = append(r.bases, base{c, nodes, vrfs})
	}
	slices.SortFunc(r.bases, func(x, y base) int { return cmp.Compare(x.Name, y.Name) })
	if len(r.bases) == 0 && !r.keepAll {
		r.pendingf("spec.frrConfigurationSelector selects no FRRConfiguration in namespace %s: create one with the peers of the nodes, or change the selector", b.in.Namespace)
	}
}

// nodesOf returns a function that reports whether an FRRConfiguration that is not generated is meant for a node.
func nodesOf(c *frrv1.FRRConfiguration) (func(Node) bool, error) {
	if isManagedBase(c) {
		return func(n Node) bool { return hasFabricRole(c, n) }, nil
	}
	byLabels, err := metav1.LabelSelectorAsSelector(&c.Spec.NodeSelector)
	if err != nil {
		return nil, err
	}
	return func(n Node) bool { return byLabels.Matches(labels.Set(n.Labels)) }, nil
}

// vrfName is what a VRF device may be called here: its name becomes a part of FRR's configuration.
var vrfName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)

// checkSupported refuses what nodes do not carry.
func (b *builder) checkSupported(r *request) {
	target := r.target()
	if target == DefaultVRF {
		return
	}
	invalidf := func(format string, a ...any) {
		r.invalidf("spec.targetVRF: "+format, a...)
		r.keepAll = true
	}
	if !vrfName.MatchString(target) {
		invalidf("%q is not the name of a VRF: use letters, digits, and \"_\", \".\", \"-\" after the first", target)
	}
	if network.IsFallbackVRF(target) {
		invalidf("%s is the name of a network's VRF, which the selected networks would reach: name a VRF of your own, or set it to %s to advertise each network in its own", target, network.VRFAuto)
	}
	for _, n := range b.in.Networks {
		if !n.IsDefault() && target != network.VRFAuto && n.ID > 0 && target == n.VRF() && !network.IsFallbackVRF(target) {
			invalidf("%s is the VRF of network %s, which the selected networks would reach: name a VRF of your own, or set it to %s to advertise each network in its own", target, n.Name, network.VRFAuto)
		}
	}
	for _, c := range b.bases {
		for _, router := range c.Spec.BGP.Routers {
			if r.isJoined() && slices.ContainsFunc(r.networks, func(n Network) bool { return n.VRF() == router.VRF }) {
				invalidf("FRRConfiguration %s has a router in VRF %s, where Bulkhead must create the router that exchanges routes with VRF %s: remove it, or set targetVRF to %s", c.Name, router.VRF, target, network.VRFAuto)
			}
		}
	}
	for _, n := range r.networks {
		if n.IsDefault() {
			invalidf("the cluster default network is advertised in the nodes' default VRF alone: select it in another RouteAdvertisements, without targetVRF")
		}
	}
}

// mostNodes is how many unsuitable nodes a condition explains.
const mostNodes = 3

// checkNodes reports the nodes that cannot advertise. The others do.
func (b *builder) checkNodes(r *request) {
	var reasons []string
	for _, n := range b.in.Nodes {
		if reason := b.unsuitable(r, n); reason != "" && !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	if more := len(reasons) - mostNodes; more > 0 {
		reasons = append(reasons[:mostNodes], fmt.Sprintf("and %d more nodes", more))
	}
	r.invalid = append(r.invalid, reasons...)
}

// target returns where r advertises: DefaultVRF, network.VRFAuto, or the name of a VRF.
func (r *request) target() string { return cmp.Or(r.ra.Spec.TargetVRF, DefaultVRF) }

// condition returns the condition Accepted of the RouteAdvertisements.
func (r *request) condition() metav1.Condition {
	c := metav1.Condition{Type: udnv1.ConditionAccepted, ObservedGeneration: r.ra.Generation}
	switch {
	case len(r.invalid) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, udnv1.ReasonConfigurationError, join(r.invalid)
	case len(r.pending) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, udnv1.ReasonConfigurationPending, join(r.pending)
	default:
		c.Status, c.Reason = metav1.ConditionTrue, udnv1.ReasonAccepted
		c.Message = join(append([]string{fmt.Sprintf("Networks advertised: %d, with the sessions of FRRConfigurations: %d", len(r.networks), len(r.bases))}, r.warnings...)) + "."
	}
	return c
}

// messageLimit, with a full stop, is below the API's limit for a condition's message.
const messageLimit = 10000

// join returns the distinct reasons as one message.
func join(reasons []string) string {
	return network.Shorten(strings.Join(slices.Compact(reasons), "; "), messageLimit)
}

// IsGenerated reports whether c was generated from another FRRConfiguration. Its name says so:
// labels and annotations may be edited.
func IsGenerated(c *frrv1.FRRConfiguration) bool {
	return isDerived(c.Name, generatedPrefix, generatedDigits)
}

// isManagedBase reports whether c is a base of the managed fabric, also by its name.
func isManagedBase(c *frrv1.FRRConfiguration) bool {
	return isDerived(c.Name, managedPrefix, managedDigits)
}

// isMeshBase reports whether c is the base of a full mesh.
func isMeshBase(c *frrv1.FRRConfiguration) bool {
	return isManagedBase(c) && c.Annotations[annotationRole] == ""
}

// isDerived reports whether a name is a prefix and as many hexadecimal digits.
func isDerived(name, prefix string, digits int) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	return ok && len(rest) == digits && strings.Trim(rest, "0123456789abcdef") == ""
}

// SourceOf returns what c was generated from.
func SourceOf(c *frrv1.FRRConfiguration) (Source, bool) {
	parts := strings.Split(c.Annotations[AnnotationSource], "/")
	if len(parts) != 3 || !IsGenerated(c) {
		return Source{}, false
	}
	return Source{parts[0], parts[1], parts[2]}, true
}

// nameOf returns the name of a generated FRRConfiguration. It is derived, so that
// creating it twice fails.
func nameOf(s Source) string {
	sum := sha256.Sum256([]byte(s.String()))
	return generatedPrefix + hex.EncodeToString(sum[:])[:generatedDigits]
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
	return metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: hostname(n)}}
}

func hostname(n Node) string { return cmp.Or(n.Labels[corev1.LabelHostname], n.Name) }

// sameHostnames maps each node to another one with the same value of the hostname label, which one nodeSelector selects
// together. Cloned machines may have the same value, and a kubelet may set any value on its own Node: so a node whose
// name is the value is left out.
func sameHostnames(nodes []Node) map[string]string {
	byHostname := map[string][]string{}
	for _, n := range nodes {
		byHostname[hostname(n)] = append(byHostname[hostname(n)], n.Name)
	}
	out := map[string]string{}
	for value, names := range byHostname {
		if len(names) == 1 {
			continue
		}
		for i, name := range names {
			switch {
			case name == value:
			case slices.Contains(names, value):
				out[name] = value
			default:
				out[name] = names[(i+1)%len(names)]
			}
		}
	}
	return out
}
