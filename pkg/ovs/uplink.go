// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"bulkhead/pkg/ovs/uplink"
	"bulkhead/pkg/ovs/vsdb"
)

// KeyUplink is a bridge's external_ids key that names the port of its uplink.
const KeyUplink = "bridge-uplink"

// keyMAC is a bridge's other_config key for its MAC address.
const keyMAC = "hwaddr"

// applyTimeout bounds the wait until ovs-vswitchd has made a change.
const applyTimeout = 30 * time.Second

// ReadUplink reads the external bridge, and of which bridge an interface is a port. An empty iface
// names none.
func (c *Client) ReadUplink(ctx context.Context, bridge, iface string) (uplink.Switch, error) {
	var out uplink.Switch
	reader := bridgeReader{client: c, name: bridge}
	br := &vsdb.Bridge{Name: bridge}
	switch err := c.db.Get(ctx, br); {
	case errors.Is(err, client.ErrNotFound):
	case err != nil:
		return out, fmt.Errorf("external bridge %s: %w", bridge, err)
	default:
		out.Exists, out.Created, out.Uplink = true, br.ExternalIDs[KeyOwner] == OwnerValue, br.ExternalIDs[KeyUplink]
		if out.Created {
			out.MAC = br.OtherConfig[keyMAC]
		}
	}
	if out.Uplink == "" { // else the other ports do not matter
		for _, uuid := range br.Ports {
			p, err := reader.port(ctx, uuid)
			if err != nil {
				return out, err
			}
			if !p.patch && !p.internal && p.name != iface {
				out.Others = append(out.Others, p.name)
			}
		}
		slices.Sort(out.Others)
	}
	if iface == "" {
		return out, nil
	}
	port, name, err := c.portOfInterface(ctx, br, iface)
	if port != nil {
		out.PortOf, out.Added = name, port.ExternalIDs[KeyOwner] == OwnerValue
	}
	return out, err
}

// portOfInterface returns the port that has the interface and the name of the port's bridge; it looks in br first.
func (c *Client) portOfInterface(ctx context.Context, br *vsdb.Bridge, iface string) (*vsdb.Port, string, error) {
	row := &vsdb.Interface{Name: iface}
	if ok, err := exists(c.db.Get(ctx, row)); !ok || err != nil {
		return nil, "", err
	}
	p := &vsdb.Port{Name: iface}
	if err := c.db.Get(ctx, p); err == nil && slices.Contains(p.Interfaces, row.UUID) && slices.Contains(br.Ports, p.UUID) {
		return p, br.Name, nil
	}
	var ports []vsdb.Port
	if err := c.db.List(ctx, &ports); err != nil {
		return nil, "", fmt.Errorf("list OVS ports: %w", err)
	}
	bridges, err := c.bridgeOfPort(ctx)
	if err != nil {
		return nil, "", err
	}
	for _, p := range ports {
		if slices.Contains(p.Interfaces, row.UUID) {
			return &p, bridges[p.Name], nil
		}
	}
	return nil, "", nil
}

// AddExternalBridge creates the bridge with the uplink's MAC address. It is a learning switch until
// it has our flows, so that the node's own traffic never waits for the agent.
func (c *Client) AddExternalBridge(ctx context.Context, bridge, mac string) error {
	if ok, err := exists(c.db.Get(ctx, &vsdb.Bridge{Name: bridge})); ok || err != nil {
		return err
	}
	root, err := c.root(ctx)
	if err != nil {
		return err
	}
	standalone := vsdb.BridgeFailModeStandalone
	i := &vsdb.Interface{UUID: "i", Name: bridge, Type: "internal"}
	p := &vsdb.Port{UUID: "p", Name: bridge, Interfaces: []string{i.UUID}}
	// Patch ports connect bridges with the same type of datapath only.
	b := &vsdb.Bridge{UUID: "b", Name: bridge, FailMode: &standalone, DatapathType: root.ExternalIDs["ovn-bridge-datapath-type"],
		Ports: []string{p.UUID}, ExternalIDs: map[string]string{KeyOwner: OwnerValue}, OtherConfig: map[string]string{keyMAC: mac, "disable-in-band": "true"}}
	ops, err := c.create(i, p, b)
	if err != nil {
		return err
	}
	link, err := c.db.Where(&root).Mutate(&root, model.Mutation{Field: &root.Bridges, Mutator: ovsdb.MutateOperationInsert, Value: []string{b.UUID}})
	if err != nil {
		return err
	}
	if err := c.transactApplied(ctx, bridge, append(ops, link...), func() (bool, error) {
		return exists(c.db.Get(ctx, &vsdb.Bridge{Name: bridge}))
	}); err != nil {
		return err
	}
	return c.usable(ctx, bridge)
}

// SetBridgeMAC sets the MAC address of the bridge that AddExternalBridge created.
func (c *Client) SetBridgeMAC(ctx context.Context, bridge, mac string) error {
	br := &vsdb.Bridge{Name: bridge}
	if err := c.db.Get(ctx, br); err != nil {
		return fmt.Errorf("external bridge %s: %w", bridge, err)
	}
	if br.ExternalIDs[KeyOwner] != OwnerValue {
		return fmt.Errorf("bridge %s is not Bulkhead's: external_ids:%s is not %s", bridge, KeyOwner, OwnerValue)
	}
	ops, err := c.db.Where(br).Mutate(br,
		model.Mutation{Field: &br.OtherConfig, Mutator: ovsdb.MutateOperationDelete, Value: []string{keyMAC}},
		model.Mutation{Field: &br.OtherConfig, Mutator: ovsdb.MutateOperationInsert, Value: map[string]string{keyMAC: mac}})
	if err != nil {
		return err
	}
	return c.transactApplied(ctx, bridge, ops, func() (bool, error) {
		br := &vsdb.Bridge{Name: bridge}
		ok, err := exists(c.db.Get(ctx, br))
		return !ok || br.OtherConfig[keyMAC] == mac, err
	})
}

// AddUplink adds an interface to the bridge as its uplink. The port is transient: where the start
// of Open vSwitch removes transient ports at boot, the interface works as the operating system
// configures it until the agent runs.
func (c *Client) AddUplink(ctx context.Context, bridge, iface string) error {
	br := &vsdb.Bridge{Name: bridge}
	if err := c.db.Get(ctx, br); err != nil {
		return fmt.Errorf("external bridge %s: %w", bridge, err)
	}
	i := &vsdb.Interface{UUID: "i", Name: iface}
	p := &vsdb.Port{UUID: "p", Name: iface, Interfaces: []string{i.UUID}, ExternalIDs: map[string]string{KeyOwner: OwnerValue},
		OtherConfig: map[string]string{"transient": "true"}}
	ops, err := c.create(i, p)
	if err != nil {
		return err
	}
	link, err := c.db.Where(br).Mutate(br,
		model.Mutation{Field: &br.Ports, Mutator: ovsdb.MutateOperationInsert, Value: []string{p.UUID}},
		model.Mutation{Field: &br.ExternalIDs, Mutator: ovsdb.MutateOperationInsert, Value: map[string]string{KeyUplink: iface}})
	if err != nil {
		return err
	}
	if err := c.transactApplied(ctx, iface, append(ops, link...), func() (bool, error) {
		return exists(c.db.Get(ctx, &vsdb.Interface{Name: iface}))
	}); err != nil {
		return err
	}
	return c.usable(ctx, iface)
}

// DeleteUplink removes the port that AddUplink added.
func (c *Client) DeleteUplink(ctx context.Context, bridge, iface string) error {
	br, p := &vsdb.Bridge{Name: bridge}, &vsdb.Port{Name: iface}
	for _, err := range []error{c.db.Get(ctx, br), c.db.Get(ctx, p)} {
		if ok, err := exists(err); !ok || err != nil {
			return err
		}
	}
	if p.ExternalIDs[KeyOwner] != OwnerValue && br.ExternalIDs[KeyOwner] != OwnerValue {
		return fmt.Errorf("port %s is not Bulkhead's: external_ids:%s is not %s", iface, KeyOwner, OwnerValue)
	}
	ops, err := c.db.Where(br).Mutate(br,
		model.Mutation{Field: &br.Ports, Mutator: ovsdb.MutateOperationDelete, Value: []string{p.UUID}},
		model.Mutation{Field: &br.ExternalIDs, Mutator: ovsdb.MutateOperationDelete, Value: map[string]string{KeyUplink: iface}})
	if err != nil {
		return err
	}
	return c.transactApplied(ctx, iface, ops, func() (bool, error) {
		ok, err := exists(c.db.Get(ctx, &vsdb.Port{Name: iface}))
		return !ok, err
	})
}

// DeleteExternalBridge deletes the bridge that AddExternalBridge created, with its ports.
func (c *Client) DeleteExternalBridge(ctx context.Context, bridge string) error {
	br := &vsdb.Bridge{Name: bridge}
	if ok, err := exists(c.db.Get(ctx, br)); !ok || err != nil {
		return err
	}
	if br.ExternalIDs[KeyOwner] != OwnerValue {
		return fmt.Errorf("bridge %s is not Bulkhead's: external_ids:%s is not %s", bridge, KeyOwner, OwnerValue)
	}
	root, err := c.root(ctx)
	if err != nil {
		return err
	}
	ops, err := c.db.Where(&root).Mutate(&root, model.Mutation{Field: &root.Bridges, Mutator: ovsdb.MutateOperationDelete, Value: []string{br.UUID}})
	if err != nil {
		return err
	}
	return c.transactApplied(ctx, bridge, ops, func() (bool, error) {
		ok, err := exists(c.db.Get(ctx, &vsdb.Bridge{Name: bridge}))
		return !ok, err
	})
}

// transactApplied runs a transaction, and waits until ovs-vswitchd has applied it and the cache shows
// it: shown is called after changes of the row with that name.
func (c *Client) transactApplied(ctx context.Context, name string, ops []ovsdb.Operation, shown func() (bool, error)) error {
	cl, err := c.db.Wait(ctx, nil)
	if err != nil {
		return err
	}
	root, err := c.root(ctx)
	if err != nil {
		return err
	}
	next, err := c.db.Where(&root).Mutate(&root, model.Mutation{Field: &root.NextCfg, Mutator: ovsdb.MutateOperationAdd, Value: 1})
	if err != nil {
		return err
	}
	ops = append(append(ops, next...), ovsdb.Operation{Op: ovsdb.OperationSelect, Table: vsdb.OpenvSwitchTable, Columns: []string{"next_cfg"}})
	results, err := c.db.Transact(ctx, cl, ops...)
	if err != nil {
		return err
	}
	number := 0
	if rows := results[len(ops)-1].Rows; len(rows) == 1 {
		switch n := rows[0]["next_cfg"].(type) {
		case float64:
			number = int(n)
		case int:
			number = n
		}
	}
	if number == 0 {
		return errors.New("the Open vSwitch database returns no next_cfg for the change")
	}
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	err = c.await(ctx, anyRow, func() (bool, error) {
		root, err := c.root(ctx)
		return root.CurCfg >= number, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("wait for Open vSwitch to make the change (is ovs-vswitchd running?): %w", err)
	}
	if err != nil {
		return err
	}
	return c.await(ctx, name, shown)
}

// usable returns why ovs-vswitchd cannot use an interface.
func (c *Client) usable(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	reason := "it has no OpenFlow port yet: is ovs-vswitchd running?"
	err := c.await(ctx, name, func() (bool, error) {
		row := &vsdb.Interface{Name: name}
		if ok, err := exists(c.db.Get(ctx, row)); !ok || err != nil {
			return false, err
		}
		if row.Error != nil && *row.Error != "" {
			return false, errors.New("Open vSwitch cannot use it: " + strings.TrimSpace(*row.Error))
		}
		return row.Ofport != nil && *row.Ofport > 0, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%s: %w", reason, err)
	}
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	return nil
}

// WatchUplink calls notify when the bridge is another one, or has another uplink, until ctx ends. Its
// other ports, of which each network has one, cost one read of the bridge's row.
func (c *Client) WatchUplink(ctx context.Context, bridge string, notify func()) {
	changed, stop := c.change.wait(bridge)
	defer stop()
	read := func() (uuid, uplink string, joined bool) {
		br := &vsdb.Bridge{Name: bridge}
		if c.db.Get(ctx, br) != nil {
			return "", "", false
		}
		p := &vsdb.Port{Name: br.ExternalIDs[KeyUplink]}
		return br.UUID, p.Name, p.Name != "" && c.db.Get(ctx, p) == nil && slices.Contains(br.Ports, p.UUID)
	}
	uuid, uplink, joined := read()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		if u, name, in := read(); u != uuid || name != uplink || in != joined {
			uuid, uplink, joined = u, name, in
			notify()
		}
	}
}
