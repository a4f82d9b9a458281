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

// ExternalBridge is the external bridge with its uplink's present OpenFlow
// ports. The uplink is the port that the bridge's external_ids:bridge-uplink
// names, or else the only one that is neither internal nor a patch port.
func (c *Client) ExternalBridge(ctx context.Context, name string) (flows.Bridge, error) {
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
	chosen := br.ExternalIDs["bridge-uplink"]
	if chosen == "" {
		if len(uplinks) > 1 {
			return out, fmt.Errorf("bridge %s has several ports that may be its uplink (%s): name it with ovs-vsctl set bridge %s external_ids:bridge-uplink=PORT",
				name, strings.Join(sortedKeys(uplinks), ", "), name)
		}
		chosen = strings.Join(sortedKeys(uplinks), "")
	}
	out.Uplinks = uplinks[chosen]
	slices.Sort(out.Uplinks)
	return out, nil
}

// ProtectPatchPorts marks the external bridge's patch ports, which lead to
// networks, as protected: while the bridge has no flows of ours, after a start
// of Open vSwitch, it switches by itself, and then never from one protected port
// to another. The mark is in the database and outlives a restart.
func (c *Client) ProtectPatchPorts(ctx context.Context, bridge string) error {
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
		if port.Protected {
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
			port.Protected = true
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
	results, err := c.db.Transact(ctx, ops...)
	if err == nil {
		_, err = ovsdb.CheckOperationResults(results, ops)
	}
	if err != nil {
		return fmt.Errorf("protect the patch ports of bridge %s: %w", bridge, err)
	}
	return nil
}
