// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// PodNetwork is one entry of the pod-networks annotation: a pod's settings on
// one network. The key of the entry is "default" for the cluster default
// network, and the NAD key "<namespace>/<name>" for others. JSON field names are
// OVN-Kubernetes'.
type PodNetwork struct {
	IPs      []netip.Prefix `json:"ip_addresses"`
	MAC      string         `json:"mac_address"`
	Gateways []netip.Addr   `json:"gateway_ips,omitempty"`
	Routes   []PodRoute     `json:"routes,omitempty"`
	// IP and Gateway are deprecated copies of a single-stack pod's only address.
	IP       string `json:"ip_address,omitempty"`
	Gateway  string `json:"gateway_ip,omitempty"`
	TunnelID int    `json:"tunnel_id,omitempty"`
	Role     Role   `json:"role,omitempty"`
}

// PodRoute is a route in the pod.
type PodRoute struct {
	Dest    netip.Prefix `json:"dest"`
	NextHop netip.Addr   `json:"nextHop"`
}

// PodNetworks is the pod-networks annotation.
type PodNetworks map[string]PodNetwork

// ParsePodNetworks parses the pod-networks annotation. "" is an empty one.
func ParsePodNetworks(annotation string) (PodNetworks, error) {
	if annotation == "" {
		return nil, nil
	}
	var out PodNetworks
	if err := json.Unmarshal([]byte(annotation), &out); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", AnnotationPodNetworks, err)
	}
	for key, n := range out {
		for _, ip := range n.IPs {
			if !ip.IsValid() {
				return nil, fmt.Errorf("annotation %s: %s has an empty address", AnnotationPodNetworks, key)
			}
		}
	}
	return out, nil
}

// Render returns the annotation's value.
func (p PodNetworks) Render() (string, error) {
	out := make(PodNetworks, len(p))
	for k, n := range p {
		out[k] = n.WithLegacyFields()
	}
	b, err := json.Marshal(out)
	if err != nil {
		return "", fmt.Errorf("render %s: %w", AnnotationPodNetworks, err)
	}
	return string(b), nil
}

// WithLegacyFields returns n with IP and Gateway set if it is single-stack.
func (n PodNetwork) WithLegacyFields() PodNetwork {
	if len(n.IPs) == 1 {
		n.IP = n.IPs[0].String()
		if len(n.Gateways) == 1 {
			n.Gateway = n.Gateways[0].String()
		}
	}
	return n
}

// NewPodNetwork returns the settings of a pod on n. ips are the pod's addresses,
// inside the host subnets of its node. hasPrimary tells whether the pod has a
// tenant's primary network; the cluster default network is then locked.
func NewPodNetwork(n Network, plan Plan, ips []netip.Prefix, hasPrimary bool) PodNetwork {
	out := PodNetwork{IPs: ips, MAC: MACOf(ips), Role: n.Role}
	if n.Topology == Layer2 || n.Topology == Localnet {
		// The whole network is on-link; the default route covers everything else.
		for _, ip := range ips {
			if n.IsPrimary() {
				out.Gateways = append(out.Gateways, n.GatewayIn(ip.Masked()).Addr())
			}
		}
		return out
	}
	var routed []netip.Prefix
	for _, s := range n.Subnets {
		routed = append(routed, s.CIDR)
	}
	switch {
	case n.IsDefault() && hasPrimary:
		out.Role = RoleInfrastructureLocked
		routed = append(routed, plan.Join...)
	case n.IsDefault():
		out.Role = RolePrimary
		routed = nil // the default route covers everything
	case n.IsPrimary():
		routed = append(routed, plan.ServiceCIDRs...)
		routed = append(routed, n.JoinSubnets...)
	}
	for _, ip := range ips {
		gw := Gateway(ip.Masked()).Addr()
		if out.Role == RolePrimary {
			out.Gateways = append(out.Gateways, gw)
		}
		for _, dest := range routed {
			if SameFamily(dest, gw) && !(ip.Masked().Bits() <= dest.Bits() && ip.Masked().Overlaps(dest)) {
				out.Routes = append(out.Routes, PodRoute{Dest: dest, NextHop: gw})
			}
		}
	}
	return out
}

// WithoutDefault returns p, a pod's settings on its primary network n, without
// the default route of one IP family, for a pod whose default route is on
// another network. Routes to what only n can reach replace it.
func (p PodNetwork) WithoutDefault(n Network, plan Plan, is4 bool) PodNetwork {
	i := slices.IndexFunc(p.Gateways, func(a netip.Addr) bool { return a.Is4() == is4 })
	if i < 0 {
		return p
	}
	gw := p.Gateways[i]
	p.Gateways = slices.Delete(slices.Clone(p.Gateways), i, i+1)
	p.Routes = slices.Clone(p.Routes)
	only := slices.Concat(plan.ServiceCIDRs, n.JoinSubnets)
	if n.Topology == Layer3 {
		only = append(only, n.CIDRs()...)
	}
	for _, dest := range FilterFamilies(only, is4, !is4) {
		onLink := slices.ContainsFunc(p.IPs, func(ip netip.Prefix) bool { return ip.Masked().Bits() <= dest.Bits() && ip.Masked().Overlaps(dest) })
		if r := (PodRoute{Dest: dest, NextHop: gw}); !onLink && !slices.Contains(p.Routes, r) {
			p.Routes = append(p.Routes, r)
		}
	}
	return p
}

// PrimaryInterface is a pod's interface on a tenant's primary network.
const PrimaryInterface = "ovn-udn1"

// SplitNADKey returns the NAD of an entry's key: <namespace>/<name> or, for a second
// attachment to the same NAD, <namespace>/<name>/<index>.
func SplitNADKey(key string) (namespace, name string, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) < 2 || parts[0] == "" || parts[1] == "" {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// NADOf returns the NAD's key without the index of a repeated attachment.
func NADOf(key string) string {
	if namespace, name, ok := SplitNADKey(key); ok {
		return NADKey(namespace, name)
	}
	return key
}

// PodNADs returns the NAD keys of a pod-networks annotation, sorted. It ignores
// malformed annotations and keys: the annotation's writers repair them.
func PodNADs(annotation string) []string {
	if annotation == "" {
		return nil
	}
	var raw map[string]json.RawMessage
	if json.Unmarshal([]byte(annotation), &raw) != nil {
		return nil
	}
	var out []string
	for k := range raw {
		parts := strings.Split(k, "/") // a second attachment is <namespace>/<name>/<index>
		if len(parts) < 2 || strings.Contains(k, ",") || parts[0] == "" || parts[1] == "" {
			continue // the cluster default network has no NAD
		}
		out = append(out, NADKey(parts[0], parts[1]))
	}
	slices.Sort(out)
	return slices.Compact(out)
}
