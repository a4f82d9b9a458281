// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"fmt"
	"net/netip"
	"strings"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// FromUDN is what a UserDefinedNetwork asks for.
func FromUDN(u *udnv1.UserDefinedNetwork) *Request {
	r := &Request{
		Owner: Owner{u.Namespace, u.Name}, UID: u.UID, Generation: u.Generation, Deleting: u.DeletionTimestamp != nil,
		Labels: u.Labels, Annotations: u.Annotations, Topology: u.Spec.Topology, Layer3: u.Spec.Layer3,
	}
	r.setRole(u.Spec.Layer3, u.Spec.Layer2, nil)
	return r
}

// FromCUDN is what a ClusterUserDefinedNetwork asks for.
func FromCUDN(c *udnv1.ClusterUserDefinedNetwork) *Request {
	n := &c.Spec.Network
	r := &Request{
		Owner: Owner{Name: c.Name}, UID: c.UID, Generation: c.Generation, Deleting: c.DeletionTimestamp != nil,
		Labels: c.Labels, Annotations: c.Annotations, Selector: &c.Spec.NamespaceSelector,
		Topology: n.Topology, Layer3: n.Layer3, Transport: n.Transport,
	}
	r.setRole(n.Layer3, n.Layer2, n.Localnet)
	return r
}

func (r *Request) setRole(l3 *udnv1.Layer3Config, l2 *udnv1.Layer2Config, ln *udnv1.LocalnetConfig) {
	switch {
	case l3 != nil:
		r.Role = l3.Role
	case l2 != nil:
		r.Role = l2.Role
	case ln != nil:
		r.Role = ln.Role
	}
}

// NotYetSupported says what of the request this version does not serve; ""
// is nothing.
func (r *Request) NotYetSupported() string {
	switch {
	case r.Topology != udnv1.NetworkTopologyLayer3:
		return fmt.Sprintf("topology %s is not yet supported: use topology Layer3", r.Topology)
	case r.Role != udnv1.NetworkRolePrimary:
		return fmt.Sprintf("role %s is not yet supported with topology %s: use role Primary", r.Role, r.Topology)
	case r.Transport != "" && r.Transport != udnv1.TransportOptionGeneve:
		return fmt.Sprintf("transport %s is not yet supported: use transport Geneve", r.Transport)
	}
	return ""
}

// NetConf checks the request against the address plan and renders what its
// NADs have in common. Errors name the field and the remedy.
func (r *Request) NetConf(plan network.Plan) (network.NetConf, network.Network, error) {
	c := network.NetConf{
		CNIVersion: network.CNIVersion, Type: network.CNIType, Name: r.Network(),
		Topology: strings.ToLower(string(r.Topology)), Role: strings.ToLower(string(r.Role)),
	}
	if r.Layer3 == nil {
		return c, network.Network{}, fmt.Errorf("spec.layer3 is missing: topology %s needs it", r.Topology)
	}
	c.MTU = int(r.Layer3.MTU)
	var subnets []network.Subnet
	for _, s := range r.Layer3.Subnets {
		p, err := parseCIDR(s.CIDR)
		if err != nil {
			return c, network.Network{}, fmt.Errorf("subnets: %w", err)
		}
		host := int(s.HostSubnet)
		if host == 0 {
			host = network.DefaultHostLen(p)
		}
		subnets = append(subnets, network.Subnet{CIDR: p, HostLen: host})
	}
	c.Subnets = network.JoinSubnetList(subnets)
	join := plan.UDNJoin
	if len(r.Layer3.JoinSubnets) > 0 {
		join = nil
		for _, s := range r.Layer3.JoinSubnets {
			p, err := parseCIDR(s)
			if err != nil {
				return c, network.Network{}, fmt.Errorf("joinSubnets: %w", err)
			}
			join = append(join, p)
		}
	}
	c.JoinSubnet = network.JoinCIDRs(join)
	// The id matters to nothing that is checked here.
	n, err := c.Network(1, plan)
	if err != nil {
		return c, n, err
	}
	return c, n, plan.Conflict(n)
}

// parseCIDR is lenient about host bits, as the API is, and about nothing else.
func parseCIDR(s udnv1.CIDR) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(string(s))
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("%q is not a CIDR such as 10.20.0.0/16 or fd20::/48", s)
	}
	return p.Masked(), nil
}
