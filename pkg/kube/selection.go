// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"bulkhead/pkg/network"
)

// SelectionRequest is a pod's request for one network.
type SelectionRequest struct {
	IPs      []netip.Prefix // /32 or /128 if the pod specifies no prefix length
	MAC      string         // normalised
	Gateways []netip.Addr   // for the pod's default routes
	Claim    string         // name of the IPAMClaim, in the pod's namespace
	// ClaimSource is the deprecated annotation, if it names Claim.
	ClaimSource string
}

// Selection is one network attachment that a pod requests.
type Selection struct {
	Namespace, Name string // of the NetworkAttachmentDefinition
	Key             string // in the pod-networks annotation
	IfName          string // of the pod's interface: requested, or net1, net2, … by position
	Request         SelectionRequest
	Err             error // the request is malformed
}

// MaxSelections is how many attachments a pod can request. Each costs a port and
// addresses on its node.
const MaxSelections = 32

// maxSelectionsLen is the most bytes of the annotation: it is parsed at each event of the pod.
const maxSelectionsLen = 32 << 10

// ParseSelections parses the networks annotation of a pod in the given namespace.
// Its format is a JSON list, or a comma-separated list of
// <namespace>/<name>@<interface>.
func ParseSelections(namespace, annotation string) ([]Selection, error) {
	if len(annotation) > maxSelectionsLen {
		return nil, fmt.Errorf("annotation %s has %d bytes: write at most %d", network.AnnotationNetworks, len(annotation), maxSelectionsLen)
	}
	elements, err := parseElements(annotation)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", network.AnnotationNetworks, err)
	}
	if len(elements) > MaxSelections {
		return nil, fmt.Errorf("annotation %s has %d elements: request at most %d", network.AnnotationNetworks, len(elements), MaxSelections)
	}
	var out []Selection
	seen, names := map[string]int{}, map[string]struct{}{}
	for i, e := range elements {
		if e.Namespace == "" {
			e.Namespace = namespace
		}
		if len(validation.IsDNS1123Label(e.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(e.Name)) > 0 {
			return nil, fmt.Errorf("annotation %s: element %d names %q, which is not a valid NetworkAttachmentDefinition name: write <namespace>/<name>",
				network.AnnotationNetworks, i+1, network.NADKey(e.Namespace, e.Name))
		}
		s := Selection{Namespace: e.Namespace, Name: e.Name, Key: network.NADKey(e.Namespace, e.Name)}
		// A repeated network is another interface of the pod.
		if n := seen[s.Key]; n > 0 {
			seen[s.Key]++
			s.Key += "/" + strconv.Itoa(n)
		} else {
			seen[s.Key] = 1
		}
		s.IfName = cmp.Or(e.InterfaceRequest, "net"+strconv.Itoa(i+1))
		s.Request, s.Err = parseRequest(e)
		if err := checkIfName(s.IfName, names); err != nil {
			s.Err = errors.Join(s.Err, err)
		}
		names[s.IfName] = struct{}{}
		if s.Err != nil {
			s.Err = fmt.Errorf("annotation %s: element %d (%s): %w", network.AnnotationNetworks, i+1, s.Key, s.Err)
		}
		out = append(out, s)
	}
	return out, nil
}

// ParsePrimary parses a pod's request for its primary network.
func ParsePrimary(annotations map[string]string) (SelectionRequest, error) {
	r, err := ParseDefault(annotations[network.AnnotationDefaultNetwork])
	claim := annotations[network.AnnotationPrimaryClaim]
	if err != nil || r.Claim != "" || claim == "" {
		return r, err
	}
	if len(validation.IsDNS1123Subdomain(claim)) > 0 {
		return SelectionRequest{}, fmt.Errorf("annotation %s: %q is not the name of an IPAMClaim", network.AnnotationPrimaryClaim, claim)
	}
	r.Claim, r.ClaimSource = claim, network.AnnotationPrimaryClaim
	return r, nil
}

// ParseDefault parses a pod's request for its primary network: one element, in a
// list or on its own. The name of the network is ignored: the meta plugin uses it.
func ParseDefault(annotation string) (SelectionRequest, error) {
	if annotation = strings.TrimSpace(annotation); annotation == "" {
		return SelectionRequest{}, nil
	}
	if !strings.ContainsAny(annotation, `[{"`) {
		return SelectionRequest{}, nil // only a name
	}
	if annotation[0] == '{' {
		annotation = "[" + annotation + "]"
	}
	elements, err := parseElements(annotation)
	if err == nil && len(elements) > 1 {
		err = fmt.Errorf("it has %d elements: a pod has one primary network, keep one", len(elements))
	}
	var r SelectionRequest
	if err == nil && len(elements) == 1 {
		elements[0].GatewayRequest = nil // a primary network has its own gateways
		r, err = parseRequest(elements[0])
	}
	if err != nil {
		return SelectionRequest{}, fmt.Errorf("annotation %s: %w", network.AnnotationDefaultNetwork, err)
	}
	return r, nil
}

// checkIfName checks the name of a requested interface.
func checkIfName(name string, others map[string]struct{}) error {
	_, dup := others[name]
	switch {
	case dup:
		return fmt.Errorf("interface: %s is requested twice: choose another name", name)
	case len(name) > 15 || name == "." || name == ".." || strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || c == '/' || c == ':' || c == '%' }):
		return fmt.Errorf("interface: %q is not an interface name: write up to 15 characters without spaces, slashes and colons", name)
	case name == "lo" || name == "eth0" || name == network.PrimaryInterface:
		return fmt.Errorf("interface: %s is the name of another interface of the pod: choose another name", name)
	}
	return nil
}

func parseElements(annotation string) ([]*nadv1.NetworkSelectionElement, error) {
	if strings.TrimSpace(annotation) == "" {
		return nil, nil
	}
	var out []*nadv1.NetworkSelectionElement
	if strings.ContainsAny(annotation, `[{"`) {
		if err := json.Unmarshal([]byte(annotation), &out); err != nil {
			return nil, fmt.Errorf("it is not a JSON list of network selection elements (%w): write [{\"name\": …}]", err)
		}
		for i, e := range out {
			if e == nil {
				return nil, fmt.Errorf("element %d is null: remove it", i+1)
			}
		}
		return out, nil
	}
	for i, item := range strings.Split(annotation, ",") {
		e := &nadv1.NetworkSelectionElement{}
		name, ifName, hasIf := strings.Cut(strings.TrimSpace(item), "@")
		if hasIf && (ifName == "" || strings.ContainsAny(ifName, "@/")) {
			return nil, fmt.Errorf("element %d (%q) has no interface name after @: write <namespace>/<name>@<interface>", i+1, item)
		}
		e.Name, e.InterfaceRequest = name, ifName
		if ns, rest, ok := strings.Cut(name, "/"); ok {
			e.Namespace, e.Name = ns, rest
			if ns == "" {
				return nil, fmt.Errorf("element %d (%q) has no namespace before /: write <namespace>/<name>", i+1, item)
			}
		}
		out = append(out, e)
	}
	return out, nil
}

func parseRequest(e *nadv1.NetworkSelectionElement) (r SelectionRequest, err error) {
	for _, raw := range e.IPRequest {
		p, err := netip.ParsePrefix(raw)
		if err != nil {
			a, err := netip.ParseAddr(raw)
			if err != nil || a.Zone() != "" {
				return r, fmt.Errorf("ips: %q is not an IP address such as 10.20.0.5 or 10.20.0.5/16", raw)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if p.Addr().Is4In6() {
			return r, fmt.Errorf("ips: %q is an IPv4-mapped IPv6 address: write it as IPv4", raw)
		}
		r.IPs = append(r.IPs, p)
	}
	if e.MacRequest != "" {
		hw, err := net.ParseMAC(e.MacRequest)
		if err != nil || len(hw) != 6 {
			return r, fmt.Errorf("mac: %q is not an Ethernet address such as 02:00:00:00:00:05", e.MacRequest)
		}
		if hw[0]&1 != 0 || hw.String() == "00:00:00:00:00:00" {
			return r, fmt.Errorf("mac: %s is not a usable unicast address: choose another", hw)
		}
		r.MAC = hw.String()
	}
	for _, raw := range e.GatewayRequest {
		a, ok := netip.AddrFromSlice(raw)
		if !ok {
			return r, fmt.Errorf("default-route: %q is not an IP address", raw)
		}
		r.Gateways = append(r.Gateways, a.Unmap())
	}
	if r.Claim = e.IPAMClaimReference; r.Claim != "" && len(validation.IsDNS1123Subdomain(r.Claim)) > 0 {
		return r, fmt.Errorf("ipam-claim-reference: %q is not the name of an IPAMClaim", r.Claim)
	}
	return r, nil
}
