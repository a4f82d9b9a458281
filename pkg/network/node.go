// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// GatewayConfig is the entry of one network in the l3-gateway-config annotation
// (Bulkhead writes only "default"): how the node reaches destinations outside
// the cluster. JSON field names are OVN-Kubernetes'.
type GatewayConfig struct {
	Mode      GatewayMode    `json:"mode"`
	Bridge    string         `json:"bridge-id"`
	MAC       string         `json:"mac-address"`
	MTU       int            `json:"mtu,omitempty"` // of the bridge's link; not in OVN-Kubernetes
	Addresses []netip.Prefix `json:"ip-addresses"`
	NextHops  []netip.Addr   `json:"next-hops,omitempty"`
}

// ParseNode parses a Node's annotations. The fields of a missing or malformed
// annotation are left zero. The error names each malformed annotation.
func ParseNode(name string, annotations map[string]string) (Node, error) {
	n := Node{Name: name}
	var errs []error
	for _, a := range []struct {
		annotation string
		parse      func(raw string, n *Node) error
	}{
		{AnnotationNodeID, parseNodeID}, {AnnotationChassisID, parseChassis},
		{AnnotationEncapIPs, parseEncap}, {AnnotationGatewayConfig, parseGateway},
	} {
		raw, ok := annotations[a.annotation]
		if !ok {
			continue
		}
		if err := a.parse(raw, &n); err != nil {
			errs = append(errs, fmt.Errorf("node %s: annotation %s: %w", name, a.annotation, err))
		}
	}
	return n, errors.Join(errs...)
}

func parseNodeID(raw string, n *Node) error {
	id, err := strconv.Atoi(raw)
	if err != nil || id < 1 || id > MaxNodeID {
		return fmt.Errorf("%q is not a number in 1..%d", raw, MaxNodeID)
	}
	n.ID = id
	return nil
}

func parseChassis(raw string, n *Node) error {
	if raw == "" || strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`",;'\`, r) }) {
		return fmt.Errorf("%q is not a valid chassis name", raw)
	}
	n.Chassis = raw
	return nil
}

// A node writes its own annotations, which all others read: they build a tunnel for each tunnel address, and
// a stolen node's credentials must not make them build thousands.
const (
	maxEncapIPs      = 16
	maxNodeAddresses = 256
)

func parseEncap(raw string, n *Node) error {
	var ips []netip.Addr
	if err := json.Unmarshal([]byte(raw), &ips); err != nil {
		return err
	}
	if len(ips) == 0 || len(ips) > maxEncapIPs {
		return fmt.Errorf("it lists %d addresses: it must be 1 to %d", len(ips), maxEncapIPs)
	}
	for i, ip := range ips {
		if !isHost(ip) || slices.Contains(ips[:i], ip) {
			return fmt.Errorf("%q is not a valid node address, or is listed twice", ip)
		}
	}
	n.EncapIPs = ips
	return nil
}

func parseGateway(raw string, n *Node) error {
	var byNetwork map[string]GatewayConfig
	if err := json.Unmarshal([]byte(raw), &byNetwork); err != nil {
		return err
	}
	g, ok := byNetwork[DefaultName]
	if !ok {
		return fmt.Errorf("no entry for network %q", DefaultName)
	}
	if g.Mode != SharedGateway && g.Mode != LocalGateway {
		return fmt.Errorf("mode %q is neither %s nor %s", g.Mode, SharedGateway, LocalGateway)
	}
	mac, err := net.ParseMAC(g.MAC)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || [6]byte(mac) == [6]byte{} {
		return fmt.Errorf("mac-address %q is not the MAC address of an interface", g.MAC)
	}
	if g.MTU < 0 {
		return fmt.Errorf("mtu %d is negative", g.MTU)
	}
	if len(g.Addresses) == 0 || len(g.Addresses) > maxNodeAddresses || len(g.NextHops) > maxNodeAddresses {
		return fmt.Errorf("it lists %d ip-addresses and %d next-hops: there must be 1 to %d addresses, and at most as many next hops", len(g.Addresses), len(g.NextHops), maxNodeAddresses)
	}
	for i, p := range g.Addresses {
		if !isHost(p.Addr()) || p.Bits() == 0 || slices.Contains(g.Addresses[:i], p) {
			return fmt.Errorf("ip-addresses: %q is not a valid node address with its prefix length, or is listed twice", p)
		}
	}
	for i, hop := range g.NextHops {
		if !isHost(hop) && !hop.IsLinkLocalUnicast() || hop.Zone() != "" || slices.Contains(g.NextHops[:i], hop) {
			return fmt.Errorf("next-hops: %q is not a valid router address, or is listed twice", hop)
		}
	}
	n.Mode, n.Bridge, n.BridgeMAC, n.MTU, n.Addresses, n.NextHops = g.Mode, g.Bridge, mac.String(), g.MTU, g.Addresses, g.NextHops
	return nil
}

// isHost reports whether a node can have address a on the network between nodes.
func isHost(a netip.Addr) bool { return a.IsGlobalUnicast() && !a.Is4In6() && a.Zone() == "" }

// AgentAnnotations returns the annotations that n's agent writes.
func (n Node) AgentAnnotations() (map[string]string, error) {
	encap, err := json.Marshal(n.EncapIPs)
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", AnnotationEncapIPs, err)
	}
	gw, err := json.Marshal(map[string]GatewayConfig{DefaultName: {
		Mode: n.Mode, Bridge: n.Bridge, MAC: n.BridgeMAC, MTU: n.MTU, Addresses: n.Addresses, NextHops: n.NextHops,
	}})
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", AnnotationGatewayConfig, err)
	}
	return map[string]string{
		AnnotationChassisID: n.Chassis, AnnotationEncapIPs: string(encap), AnnotationGatewayConfig: string(gw),
	}, nil
}
