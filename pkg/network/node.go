// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
)

// GatewayConfig is the l3-gateway-config annotation of one network (only
// "default" is written): the node's way to the outside. JSON field names are
// the reference's.
type GatewayConfig struct {
	Mode      GatewayMode    `json:"mode"`
	Bridge    string         `json:"bridge-id"`
	MAC       string         `json:"mac-address"`
	Addresses []netip.Prefix `json:"ip-addresses"`
	NextHops  []netip.Addr   `json:"next-hops,omitempty"`
}

// ParseNode reads a Node's annotations. What is not there yet is left zero; a
// malformed annotation is an error naming it, and what else could be read is
// still returned.
func ParseNode(name string, annotations map[string]string) (Node, error) {
	n := Node{Name: name, Chassis: annotations[AnnotationChassisID]}
	var errs []error
	if raw, ok := annotations[AnnotationNodeID]; ok {
		id, err := strconv.Atoi(raw)
		if err != nil || id < 1 || id > MaxNodeID {
			errs = append(errs, fmt.Errorf("node %s: annotation %s %q is not a number in 1..%d", name, AnnotationNodeID, raw, MaxNodeID))
		} else {
			n.ID = id
		}
	}
	if raw := annotations[AnnotationEncapIPs]; raw != "" {
		if err := json.Unmarshal([]byte(raw), &n.EncapIPs); err != nil {
			errs = append(errs, fmt.Errorf("node %s: annotation %s: %w", name, AnnotationEncapIPs, err))
		}
	}
	if raw := annotations[AnnotationGatewayConfig]; raw != "" {
		var byNetwork map[string]GatewayConfig
		if err := json.Unmarshal([]byte(raw), &byNetwork); err != nil {
			errs = append(errs, fmt.Errorf("node %s: annotation %s: %w", name, AnnotationGatewayConfig, err))
		} else {
			g := byNetwork[DefaultName]
			n.Mode, n.Bridge, n.BridgeMAC, n.Addresses, n.NextHops = g.Mode, g.Bridge, g.MAC, g.Addresses, g.NextHops
		}
	}
	return n, errors.Join(errs...)
}

// AgentAnnotations are the annotations that n's agent writes.
func (n Node) AgentAnnotations() (map[string]string, error) {
	encap, err := json.Marshal(n.EncapIPs)
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", AnnotationEncapIPs, err)
	}
	gw, err := json.Marshal(map[string]GatewayConfig{DefaultName: {
		Mode: n.Mode, Bridge: n.Bridge, MAC: n.BridgeMAC, Addresses: n.Addresses, NextHops: n.NextHops,
	}})
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", AnnotationGatewayConfig, err)
	}
	return map[string]string{
		AnnotationChassisID: n.Chassis, AnnotationEncapIPs: string(encap), AnnotationGatewayConfig: string(gw),
	}, nil
}
