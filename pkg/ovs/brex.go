// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"bulkhead/pkg/ovs/flows"
	"bulkhead/pkg/ovs/vsdb"
)

// ExternalBridge returns the external bridge with the current OpenFlow ports of its uplink
// and of its patch ports, as far as they exist: gateway is the name of one, localnets maps
// the names of the others to their VLANs. The uplink is the port named in the bridge's
// external_ids:bridge-uplink, or else the only port that is neither internal nor a patch port.
func (c *Client) ExternalBridge(ctx context.Context, name, gateway string, localnets map[string]int) (flows.Bridge, error) {
	out := flows.Bridge{Name: name}
	br := &vsdb.Bridge{Name: name}
	if err := c.db.Get(ctx, br); err != nil {
		return out, fmt.Errorf("external bridge %s: %w", name, err)
	}
	uplinks := map[string][]int{}
	for _, uuid := range br.Ports {
		port := &vsdb.Port{UUID: uuid}
		if err := c.db.Get(ctx, port); err != nil {
			return out, fmt.Errorf("port %s of bridge %s: %w", uuid, name, err)
		}
		for _, uuid := range port.Interfaces {
			i := &vsdb.Interface{UUID: uuid}
			if err := c.db.Get(ctx, i); err != nil {
				return out, fmt.Errorf("interface %s of port %s: %w", uuid, port.Name, err)
			}
			if i.Name == gateway && i.Ofport != nil {
				out.Gateway = max(*i.Ofport, 0)
			}
			if vlan, ok := localnets[i.Name]; ok && i.Type == "patch" && i.Ofport != nil && *i.Ofport > 0 {
				out.Localnets = append(out.Localnets, flows.Localnet{Port: *i.Ofport, VLAN: vlan})
			}
			if i.Type == "internal" || i.Type == "patch" || i.Name == name {
				continue
			}
			ofport := -1
			if i.Ofport != nil {
				ofport = *i.Ofport
			}
			uplinks[port.Name] = append(uplinks[port.Name], ofport)
		}
	}
	uplink := br.ExternalIDs["bridge-uplink"]
	if uplink == "" {
		if len(uplinks) > 1 {
			return out, fmt.Errorf("bridge %s has several possible uplinks (%s): set the uplink with ovs-vsctl set bridge %s external_ids:bridge-uplink=PORT",
				name, strings.Join(sortedKeys(uplinks), ", "), name)
		}
		uplink = strings.Join(sortedKeys(uplinks), "")
	}
	out.Uplinks = uplinks[uplink]
	slices.Sort(out.Uplinks)
	return out, nil
}

// ProtectPatchPorts sets protected on the external bridge's patch ports, which
// lead to networks, except on those of localnets, which are as open as the wire. After a
// start of Open vSwitch, while the bridge does not have our flows yet, it acts as a learning
// switch, which does not forward between protected ports. The setting is in the database and
// persists across restarts.
func (c *Client) ProtectPatchPorts(ctx context.Context, bridge string, localnets map[string]int) error {
	br := &vsdb.Bridge{Name: bridge}
	if err := c.db.Get(ctx, br); err != nil {
		return fmt.Errorf("external bridge %s: %w", bridge, err)
	}
	var ops []ovsdb.Operation
	for _, uuid := range br.Ports {
		port := &vsdb.Port{UUID: uuid}
		if err := c.db.Get(ctx, port); err != nil {
			return fmt.Errorf("port %s of bridge %s: %w", uuid, bridge, err)
		}
		_, localnet := localnets[port.Name]
		if port.Protected != localnet {
			continue
		}
		for _, uuid := range port.Interfaces {
			i := &vsdb.Interface{UUID: uuid}
			if err := c.db.Get(ctx, i); err != nil {
				return fmt.Errorf("interface %s of port %s: %w", uuid, port.Name, err)
			}
			if i.Type != "patch" {
				continue
			}
			port.Protected = !localnet
			update, err := c.db.Where(port).Update(port, &port.Protected)
			if err != nil {
				return fmt.Errorf("protect port %s: %w", port.Name, err)
			}
			ops = append(ops, update...)
			break
		}
	}
	if len(ops) == 0 {
		return nil
	}
	cl, err := c.db.Wait(ctx, nil)
	if err == nil {
		_, err = c.db.Transact(ctx, cl, ops...)
	}
	if err != nil {
		return fmt.Errorf("protect the patch ports of bridge %s: %w", bridge, err)
	}
	return nil
}
