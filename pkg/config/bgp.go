// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"bulkhead/pkg/network"
)

// buildBGP checks the keys of route advertisements and of networks without an overlay,
// after the no-overlay proposal, "Configuration File and Flags".
func (r *raw) buildBGP(c *Config, fail func(section, key string, err error)) {
	oneOf := func(section, key, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			fail(section, key, fmt.Errorf("%q is unknown: use %s or %s", value, allowed[0], allowed[1]))
		}
	}
	b := &c.BGP
	oneOf("default", "advertised-udn-isolation-mode", r.Default.IsolationMode, "strict", "loose")
	b.LooseIsolation = r.Default.IsolationMode == "loose"

	m := r.BGPManaged
	if b.Topology = m.Topology; m.Topology != "" {
		oneOf("bgp-managed", "topology", m.Topology, FullMesh, RouteReflectors)
	}
	if m.ASNumber < 1 || m.ASNumber > math.MaxUint32 {
		fail("bgp-managed", "as-number", fmt.Errorf("%d is outside 1..%d", m.ASNumber, uint32(math.MaxUint32)))
	} else {
		b.ASN = uint32(m.ASNumber)
	}
	if b.FRRNamespace = m.FRRNamespace; len(validation.IsDNS1123Label(b.FRRNamespace)) > 0 {
		fail("bgp-managed", "frr-namespace", fmt.Errorf("%q is not a namespace", b.FRRNamespace))
	}

	oneOf("default", "transport", r.Default.Transport, network.TransportGeneve, network.TransportNoOverlay)
	if r.Default.Transport != network.TransportNoOverlay {
		for key, value := range map[string]string{"outbound-snat": r.NoOverlay.OutboundSNAT, "routing": r.NoOverlay.Routing} {
			if value != "" {
				fail("no-overlay", key, fmt.Errorf("is only for [default] transport = %s: remove it, or set the transport", network.TransportNoOverlay))
			}
		}
		return
	}
	oneOf("no-overlay", "outbound-snat", r.NoOverlay.OutboundSNAT, "enabled", "disabled")
	oneOf("no-overlay", "routing", r.NoOverlay.Routing, "managed", "unmanaged")
	b.ManagedDefault = r.NoOverlay.Routing == "managed"
	if b.ManagedDefault && b.Topology == "" {
		fail("bgp-managed", "topology", errors.New("is empty: [no-overlay] routing = managed needs full-mesh or route-reflectors"))
	}
	if r.Default.MTU == 0 {
		c.DefaultNetwork.MTU = c.Plan.UnderlayMTU
	}
	c.DefaultNetwork.Transport, c.DefaultNetwork.OutboundSNAT = network.TransportNoOverlay, r.NoOverlay.OutboundSNAT
}
