// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// FromUDN returns the request of a UserDefinedNetwork.
func FromUDN(u *udnv1.UserDefinedNetwork) *Request {
	r := &Request{
		Owner: Owner{u.Namespace, u.Name}, UID: u.UID, Generation: u.Generation, Deleting: u.DeletionTimestamp != nil,
		Labels: u.Labels, Annotations: u.Annotations, Topology: u.Spec.Topology, Layer3: u.Spec.Layer3, Layer2: u.Spec.Layer2,
	}
	r.setRole()
	return r
}

// FromCUDN returns the request of a ClusterUserDefinedNetwork.
func FromCUDN(c *udnv1.ClusterUserDefinedNetwork) *Request {
	n := &c.Spec.Network
	r := &Request{
		Owner: Owner{Name: c.Name}, UID: c.UID, Generation: c.Generation, Deleting: c.DeletionTimestamp != nil,
		Labels: c.Labels, Annotations: c.Annotations, Selector: &c.Spec.NamespaceSelector,
		Topology: n.Topology, Layer3: n.Layer3, Layer2: n.Layer2, Localnet: n.Localnet, NoOverlay: n.NoOverlaySettings(),
		Transport: n.Transport,
	}
	r.setRole()
	return r
}

func (r *Request) setRole() {
	switch {
	case r.Layer3 != nil:
		r.Role = r.Layer3.Role
	case r.Layer2 != nil:
		r.Role = r.Layer2.Role
	case r.Localnet != nil:
		r.Role = r.Localnet.Role
	}
	if r.Transport == "" {
		r.Transport = udnv1.TransportOptionGeneve
	}
}

// Primary tells whether the owner requests a primary network.
func (r *Request) Primary() bool { return r.Role == udnv1.NetworkRolePrimary }

// NetConf validates the request against the address plan and renders the
// configuration that its NADs have in common. Errors name the field and the remedy.
func (r *Request) NetConf(plan network.Plan) (network.NetConf, network.Network, error) {
	c := network.NetConf{
		CNIVersion: network.CNIVersion, Type: network.CNIType, Name: r.Network(),
		Topology: strings.ToLower(string(r.Topology)), Role: strings.ToLower(string(r.Role)),
	}
	var err error
	switch {
	case r.Topology == udnv1.NetworkTopologyLayer3 && r.Layer3 != nil:
		err = r.layer3(&c, plan)
	case r.Topology == udnv1.NetworkTopologyLayer2 && r.Layer2 != nil:
		err = r.layer2(&c, plan)
	case r.Topology == udnv1.NetworkTopologyLocalnet && r.Localnet != nil:
		err = r.localnet(&c, plan)
	default:
		err = fmt.Errorf("spec.%s is missing: topology %s needs it", c.Topology, r.Topology)
	}
	if err != nil {
		return c, network.Network{}, err
	}
	// The checks do not depend on the id.
	n, err := c.Network(1, plan)
	if err != nil {
		return c, n, err
	}
	return c, n, plan.Conflict(n)
}

func (r *Request) layer3(c *network.NetConf, plan network.Plan) error {
	l := r.Layer3
	c.MTU = int(l.MTU)
	var subnets []network.Subnet
	for _, s := range l.Subnets {
		p, err := parseCIDR(s.CIDR)
		if err != nil {
			return fmt.Errorf("subnets: %w", err)
		}
		host := int(s.HostSubnet)
		if host == 0 {
			host = network.DefaultHostLen(p)
		}
		subnets = append(subnets, network.Subnet{CIDR: p, HostLen: host})
	}
	c.Subnets = network.JoinSubnetList(subnets)
	if r.Transport == udnv1.TransportOptionNoOverlay {
		if r.NoOverlay == nil {
			return errors.New("spec.network.noOverlayOptions is missing: transport NoOverlay needs it")
		}
		c.Transport, c.OutboundSNAT = network.TransportNoOverlay, strings.ToLower(string(r.NoOverlay.OutboundSNAT))
	}
	return r.join(c, plan, l.JoinSubnets)
}

func (r *Request) layer2(c *network.NetConf, plan network.Plan) error {
	l := r.Layer2
	c.MTU = int(l.MTU)
	var gateways []string
	for _, ip := range l.DefaultGatewayIPs {
		gateways = append(gateways, string(ip))
	}
	c.DefaultGatewayIPs = strings.Join(gateways, ",")
	c.AllowPersistentIPs = persistent(l.IPAM)
	if r.Primary() {
		c.TransitSubnet = network.JoinCIDRs(plan.Transit)
	}
	return errors.Join(
		cidrs("subnets", l.Subnets, &c.Subnets),
		cidrs("reservedSubnets", l.ReservedSubnets, &c.ReservedSubnets),
		cidrs("infrastructureSubnets", l.InfrastructureSubnets, &c.InfrastructureSubnets),
		r.join(c, plan, l.JoinSubnets),
	)
}

func (r *Request) localnet(c *network.NetConf, plan network.Plan) error {
	l := r.Localnet
	// The default is rendered too, as OVN-Kubernetes does (Localnet proposal, "MTU").
	if c.MTU = int(l.MTU); c.MTU == 0 {
		c.MTU = plan.UnderlayMTU
	}
	c.PhysicalNetworkName, c.AllowPersistentIPs = l.PhysicalNetworkName, persistent(l.IPAM)
	if l.VLAN != nil && l.VLAN.Access != nil {
		c.VLANID = int(l.VLAN.Access.ID)
	}
	return errors.Join(
		cidrs("subnets", l.Subnets, &c.Subnets),
		cidrs("excludeSubnets", l.ExcludeSubnets, &c.ExcludeSubnets),
	)
}

// join renders the join subnets of a primary network: its own, or the cluster's.
// After a change of the cluster's, networks without their own are rendered again.
func (r *Request) join(c *network.NetConf, plan network.Plan, own udnv1.DualStackCIDRs) error {
	if len(own) > 0 {
		return cidrs("joinSubnets", own, &c.JoinSubnet)
	}
	if r.Primary() {
		c.JoinSubnet = network.JoinCIDRs(plan.UDNJoin)
	}
	return nil
}

func persistent(ipam *udnv1.IPAMConfig) bool {
	return ipam != nil && ipam.Lifecycle == udnv1.IPAMLifecyclePersistent
}

// cidrs renders a list of CIDRs in the format of the NAD's JSON.
func cidrs(field string, in []udnv1.CIDR, out *string) error {
	var ps []netip.Prefix
	for _, s := range in {
		p, err := parseCIDR(s)
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		ps = append(ps, p)
	}
	*out = network.JoinCIDRs(ps)
	return nil
}

// parseCIDR accepts host bits, as the API does, and masks them.
func parseCIDR(s udnv1.CIDR) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(string(s))
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("%q is not a CIDR such as 10.20.0.0/16 or fd20::/48", s)
	}
	return p.Masked(), nil
}
