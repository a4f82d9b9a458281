// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"bulkhead/pkg/bgpstatus"
	"bulkhead/pkg/network"
	"bulkhead/pkg/vrf"
)

// bgpFlags are the flags of bulkheadctl bgp.
type bgpFlags struct{ vtysh, nb string }

func (f *bgpFlags) register(fs *flag.FlagSet) {
	fs.StringVar(&f.vtysh, "vtysh", "vtysh", "bgp: the command that runs FRR's vtysh, such as \"crictl exec CONTAINER vtysh\"")
	fs.StringVar(&f.nb, "nb-address", "unix:/var/run/ovn/ovnnb_db.sock", "bgp: OVN's northbound database")
}

// run shows what the node announces and has learned.
func (f *bgpFlags) run(out io.Writer, st state, asJSON bool) error {
	command := strings.Fields(f.vtysh)
	if len(command) == 0 {
		return fmt.Errorf("-vtysh is empty: set it to the command that runs FRR's vtysh")
	}
	status, tables, err := bgpStatus(st)
	if err != nil {
		return err
	}
	if err := (bgpstatus.Reader{Vtysh: command, NB: f.nb, Bridge: st.Node.Bridge, Tables: tables}).Read(context.Background(), &status); err != nil {
		return err
	}
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(status)
	}
	return status.Write(out)
}

// bgpStatus returns the status as far as the agent knows it, and the VRFs' routing tables.
func bgpStatus(st state) (bgpstatus.Status, map[string]int, error) {
	out := bgpstatus.Status{Node: st.Node.Name, Mode: network.GatewayMode(st.Node.GatewayMode)}
	tables := map[string]int{network.VRFDefault: vrf.MainTable}
	for _, n := range st.Networks {
		if n.VRF != "" {
			tables[n.VRF] = n.Table
		}
		known := network.Network{ID: n.ID, Topology: network.Topology(n.Topology), Transport: n.Transport, AdvertisedVRFs: n.AdvertisedVRFs}
		if !known.Advertised() && !known.IsDefault() {
			continue
		}
		x := bgpstatus.Network{Name: n.Name, NoOverlay: n.Transport == network.TransportNoOverlay}
		if known.Announced() {
			x.VRFs = append(x.VRFs, network.VRFDefault)
		}
		x.VRFs = append(x.VRFs, known.OtherVRFs(n.VRF)...)
		for _, text := range n.HostSubnets {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return out, nil, fmt.Errorf("parse the agent's state: network %s: %w", n.Name, err)
			}
			if len(x.VRFs) > 0 {
				x.Prefixes = append(x.Prefixes, p)
			}
		}
		for _, text := range n.Subnets {
			subnet, err := network.ParseSubnet(text, known.Topology)
			if err != nil {
				return out, nil, fmt.Errorf("parse the agent's state: network %s: %w", n.Name, err)
			}
			x.Subnets = append(x.Subnets, subnet.CIDR)
		}
		out.Networks = append(out.Networks, x)
	}
	return out, tables, nil
}
