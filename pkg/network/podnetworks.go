// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// PodNetwork is one entry of the pod-networks annotation: what a pod gets on
// one network. Key of the cluster default network: "default"; of others, the
// NAD key "<namespace>/<name>". JSON field names are the reference's.
type PodNetwork struct {
	IPs      []netip.Prefix `json:"ip_addresses"`
	MAC      string         `json:"mac_address"`
	Gateways []netip.Addr   `json:"gateway_ips,omitempty"`
	Routes   []PodRoute     `json:"routes,omitempty"`
	// IP and Gateway repeat a single-stack pod's only address for older readers.
	IP       string `json:"ip_address,omitempty"`
	Gateway  string `json:"gateway_ip,omitempty"`
	TunnelID int    `json:"tunnel_id,omitempty"`
	Role     Role   `json:"role,omitempty"`
}

// PodRoute is one route inside the pod.
type PodRoute struct {
	Dest    netip.Prefix `json:"dest"`
	NextHop netip.Addr   `json:"nextHop"`
}

// PodNetworks is the whole annotation.
type PodNetworks map[string]PodNetwork

// ParsePodNetworks reads the pod-networks annotation; "" is an empty one.
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

// Render is the annotation's value.
func (p PodNetworks) Render() (string, error) {
	filled := make(PodNetworks, len(p))
	for k, n := range p {
		filled[k] = n.Filled()
	}
	b, err := json.Marshal(filled)
	if err != nil {
		return "", fmt.Errorf("render %s: %w", AnnotationPodNetworks, err)
	}
	return string(b), nil
}

// Filled is n with what repeats its only address.
func (n PodNetwork) Filled() PodNetwork {
	if len(n.IPs) == 1 {
		n.IP = n.IPs[0].String()
		if len(n.Gateways) == 1 {
			n.Gateway = n.Gateways[0].String()
		}
	}
	return n
}

// NewPodNetwork is what a pod with those addresses gets on n, whose host
// subnets on the pod's node contain them. hasPrimary tells that a tenant's
// network is the pod's primary one: then n, if it is the cluster default
// network, is locked to the infrastructure.
func NewPodNetwork(n Network, plan Plan, ips []netip.Prefix, hasPrimary bool) PodNetwork {
	out := PodNetwork{IPs: ips, MAC: MACOf(ips), Role: n.Role}
	if n.Topology == Layer2 || n.Topology == Localnet {
		// The whole network is on the link, and the rest behind the default route.
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
			if dest.Addr().Is4() == gw.Is4() && !(ip.Masked().Bits() <= dest.Bits() && ip.Masked().Overlaps(dest)) {
				out.Routes = append(out.Routes, PodRoute{Dest: dest, NextHop: gw})
			}
		}
	}
	return out
}

// WithoutDefault is what a pod gets on its primary network n when its default
// route of a family goes elsewhere: routes to what only n leads to instead.
func (p PodNetwork) WithoutDefault(n Network, plan Plan, is4 bool) PodNetwork {
	i := slices.IndexFunc(p.Gateways, func(a netip.Addr) bool { return a.Is4() == is4 })
	if i < 0 {
		return p
	}
	gw := p.Gateways[i]
	p.Gateways = slices.Delete(slices.Clone(p.Gateways), i, i+1)
	p.Routes = slices.Clone(p.Routes)
	for _, dest := range slices.Concat(plan.ServiceCIDRs, n.JoinSubnets) {
		if dest.Addr().Is4() == is4 {
			p.Routes = append(p.Routes, PodRoute{Dest: dest, NextHop: gw})
		}
	}
	return p
}

// PodNADs are the keys of the NADs that a pod-networks annotation names. What
// cannot be read counts for nothing: the annotation's writers write it again.
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
