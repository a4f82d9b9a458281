// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/sbdb"
	"bulkhead/pkg/ovsdb"
)

// ReadPorts reads the node's port bindings from its southbound database.
func ReadPorts(ctx context.Context, address string) ([]Port, error) {
	conn := ovsdb.New()
	conn.Address = address
	conn.Models = func() (model.ClientDBModel, error) {
		return model.NewClientDBModel("OVN_Southbound", map[string]model.Model{
			sbdb.PortBindingTable: &sbdb.PortBinding{}, sbdb.DatapathBindingTable: &sbdb.DatapathBinding{},
		})
	}
	conn.Monitors = func() []client.MonitorOption {
		return []client.MonitorOption{client.WithTable(&sbdb.PortBinding{}), client.WithTable(&sbdb.DatapathBinding{})}
	}
	db, err := conn.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the southbound database %s: %w", address, err)
	}
	defer db.Close()
	var datapaths []sbdb.DatapathBinding
	if err := db.List(ctx, &datapaths); err != nil {
		return nil, fmt.Errorf("read datapaths: %w", err)
	}
	names := map[string]string{}
	for _, d := range datapaths {
		names[d.UUID] = d.ExternalIDs["name"]
	}
	var rows []sbdb.PortBinding
	if err := db.List(ctx, &rows); err != nil {
		return nil, fmt.Errorf("read port bindings: %w", err)
	}
	var out []Port
	for _, r := range rows {
		out = append(out, portOf(r, names[r.Datapath]))
	}
	return out, nil
}

// portOf converts a row. Its mac column holds, for each of the port's addresses, a MAC
// and the IP addresses, those of routers with the length of their prefix.
func portOf(r sbdb.PortBinding, datapath string) Port {
	p := Port{
		Name: r.LogicalPort, Type: r.Type, Datapath: datapath, Network: r.ExternalIDs[network.MarkNetwork],
		Primary: r.ExternalIDs[network.MarkRole] == string(network.RolePrimary), Node: r.ExternalIDs[network.MarkNode], Peer: r.Options["peer"],
	}
	if name := r.ExternalIDs[network.MarkPod]; name != "" {
		p.Pod = r.ExternalIDs[network.MarkNamespace] + "/" + name
	}
	for _, m := range r.MAC {
		for i, field := range strings.Fields(m) {
			if i == 0 {
				if strings.Contains(field, ":") {
					p.MAC = field
				}
				continue
			}
			if a, err := netip.ParseAddr(field); err == nil {
				p.Addrs = append(p.Addrs, a)
			} else if prefix, err := netip.ParsePrefix(field); err == nil {
				p.Prefixes = append(p.Prefixes, prefix)
			}
		}
	}
	return p
}
