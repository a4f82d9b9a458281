// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	libovsdb "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"bulkhead/pkg/batch"
	"bulkhead/pkg/ovs/vsdb"
	"bulkhead/pkg/ovsdb"
)

// Target accesses the database: Client, or Fake in tests.
type Target interface {
	// Read returns the owner's actual state.
	Read(ctx context.Context, owner Owner) (State, error)
	// Apply applies the operations. It continues after a failed one; the error
	// names each. The next Read shows the changes.
	Apply(ctx context.Context, ops []Op) error
}

const (
	// maxOps is the most operations in one transaction.
	maxOps = 200
	// cacheTimeout bounds the wait until the cache shows a transaction.
	cacheTimeout = 10 * time.Second
)

// Read implements Target.
func (c *Client) Read(ctx context.Context, owner Owner) (State, error) {
	if owner == OwnerChassis {
		return c.readChassis(ctx)
	}
	rows, err := c.interfaces(ctx, KeyOwner, OwnerValue)
	if err != nil {
		return State{}, err
	}
	bridges, err := c.bridgeOfPort(ctx)
	if err != nil {
		return State{}, err
	}
	s := State{Ports: map[string]Port{}}
	for _, row := range rows {
		if row.ExternalIDs[KeyRole] == string(owner) {
			p := portOf(row)
			p.Bridge = bridges[p.Name]
			s.Ports[p.Name] = p
		}
	}
	return s, nil
}

// interfaces lists the interfaces with the pair in external_ids. It uses the
// index of key and does not scan the table.
func (c *Client) interfaces(ctx context.Context, key, value string) ([]vsdb.Interface, error) {
	// The cache uses the first index that matches, and indexes a row without
	// the key as "". So the other indexed keys get a value that no row has.
	ids := map[string]string{}
	for _, k := range indexedKeys {
		ids[k] = "\x00"
	}
	ids[key] = value
	cl, err := c.db.Wait(ctx, nil)
	if err != nil {
		return nil, err
	}
	var rows []vsdb.Interface
	if err := cl.Where(&vsdb.Interface{ExternalIDs: ids}).List(ctx, &rows); err != nil {
		return nil, fmt.Errorf("list OVS interfaces with external_ids:%s=%s: %w", key, value, err)
	}
	return rows, nil
}

func (c *Client) readChassis(ctx context.Context) (State, error) {
	root, err := c.root(ctx)
	if err != nil {
		return State{}, err
	}
	s := State{Chassis: maps.Clone(root.ExternalIDs)}
	br := vsdb.Bridge{Name: IntegrationBridge(root.ExternalIDs)}
	switch err := c.db.Get(ctx, &br); {
	case err == nil:
		s.Bridge = &Bridge{Name: br.Name, DatapathType: br.DatapathType}
	case !errors.Is(err, client.ErrNotFound):
		return State{}, fmt.Errorf("read bridge %s: %w", br.Name, err)
	}
	return s, nil
}

// ExternalIDs returns the external_ids of the Open_vSwitch row, for Inputs.
func (c *Client) ExternalIDs(ctx context.Context) (map[string]string, error) {
	root, err := c.root(ctx)
	return root.ExternalIDs, err
}

func (c *Client) root(ctx context.Context) (vsdb.OpenvSwitch, error) {
	var rows []vsdb.OpenvSwitch
	if err := c.db.List(ctx, &rows); err != nil {
		return vsdb.OpenvSwitch{}, fmt.Errorf("read the Open_vSwitch row: %w", err)
	}
	if len(rows) != 1 {
		return vsdb.OpenvSwitch{}, fmt.Errorf("the database has %d Open_vSwitch rows instead of one: is it initialised (ovs-vsctl init)?", len(rows))
	}
	return rows[0], nil
}

// bridgeOfPort maps ports to bridges. Bridges are few and list their ports.
func (c *Client) bridgeOfPort(ctx context.Context) (map[string]string, error) {
	var bridges []vsdb.Bridge
	if err := c.db.List(ctx, &bridges); err != nil {
		return nil, fmt.Errorf("list OVS bridges: %w", err)
	}
	var ports []vsdb.Port
	if err := c.db.List(ctx, &ports); err != nil {
		return nil, fmt.Errorf("list OVS ports: %w", err)
	}
	name := make(map[string]string, len(ports))
	for _, p := range ports {
		name[p.UUID] = p.Name
	}
	out := make(map[string]string, len(ports))
	for _, b := range bridges {
		for _, uuid := range b.Ports {
			out[name[uuid]] = b.Name
		}
	}
	return out, nil
}

// ourKeys lists the external_ids keys that Build may set.
var ourKeys = []string{KeyOwner, KeyRole, KeyNetwork, KeyNAD, KeyLSP, KeyLSPVersion, KeyAttachedMAC, KeySandbox, KeyIfName, KeyAttachment, KeyPod}

func portOf(row vsdb.Interface) Port {
	p := Port{Name: row.Name, Internal: row.Type == "internal", ExternalIDs: map[string]string{}}
	for _, k := range ourKeys {
		if v, ok := row.ExternalIDs[k]; ok {
			p.ExternalIDs[k] = v
		}
	}
	if row.MAC != nil {
		p.MAC = *row.MAC
	}
	if row.MTURequest != nil {
		p.MTU = *row.MTURequest
	}
	return p
}

// Apply implements Target. It puts up to maxOps operations in a transaction, and
// applies them one by one only if the transaction fails.
func (c *Client) Apply(ctx context.Context, ops []Op) error {
	return batch.Apply(ops, maxOps, func(ops []Op) error { return c.transact(ctx, ops) }, c.db.Fatal(ctx))
}

// transact applies ops in one transaction and waits until the cache shows it. If
// the connection was lost, it retries once with the next one: an operation that
// was already applied is then a no-op or fails.
func (c *Client) transact(ctx context.Context, ops []Op) error {
	cl, err := c.db.Wait(ctx, nil)
	if err != nil {
		return err
	}
	err = c.transactOnce(ctx, cl, ops)
	if ovsdb.IsLoss(err) {
		if cl, err = c.db.Wait(ctx, cl); err == nil {
			err = c.transactOnce(ctx, cl, ops)
		}
	}
	return err
}

func (c *Client) transactOnce(ctx context.Context, cl client.Client, ops []Op) error {
	var all []libovsdb.Operation
	for i, op := range ops {
		rows, err := c.operations(ctx, op, fmt.Sprintf("bh%d", i))
		if err != nil {
			return err
		}
		all = append(all, rows...)
	}
	if len(all) == 0 {
		return nil
	}
	results, err := c.db.Transact(ctx, cl, all...)
	if err != nil {
		return err
	}
	for i, op := range all {
		if op.Op == libovsdb.OperationMutate && results[i].Count == 0 {
			return fmt.Errorf("the row of table %s was deleted in the meantime", op.Table)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cacheTimeout)
	defer cancel()
	for _, op := range ops {
		if err := c.await(ctx, rowName(op), func() (bool, error) { return c.cacheShows(ctx, op) }); err != nil {
			return fmt.Errorf("wait for the cache to show %s: %w", op, err)
		}
	}
	return nil
}

// operations returns the database operations of op. id is unique in the
// transaction.
func (c *Client) operations(ctx context.Context, op Op, id string) ([]libovsdb.Operation, error) {
	switch o := op.(type) {
	case SetChassis:
		root, err := c.root(ctx)
		if err != nil {
			return nil, err
		}
		// Whatever replaced the old value meanwhile stays: New does not take account of it.
		return c.setIDs(&root, &root.ExternalIDs, map[string]string{o.Key: o.New}, map[string]string{o.Key: o.Old})
	case AddBridge:
		return c.addBridge(ctx, o.Bridge, id)
	case AddPort:
		return c.addPort(ctx, o.Port, id)
	case SetPort:
		return c.setPort(ctx, o)
	case DeletePort:
		return c.deletePort(ctx, o.Port)
	default:
		return nil, fmt.Errorf("unknown operation %T", op)
	}
}

// setIDs changes single keys of a row's external_ids, because ovn-controller and
// operators write other keys. A map mutation never overwrites, so setIDs deletes
// the old pairs first.
func (c *Client) setIDs(row model.Model, field *map[string]string, set, drop map[string]string) ([]libovsdb.Operation, error) {
	var m []model.Mutation
	if len(drop) > 0 {
		m = append(m, model.Mutation{Field: field, Mutator: libovsdb.MutateOperationDelete, Value: drop})
	}
	if len(set) > 0 {
		m = append(m, model.Mutation{Field: field, Mutator: libovsdb.MutateOperationInsert, Value: set})
	}
	if len(m) == 0 {
		return nil, nil
	}
	return c.db.Where(row).Mutate(row, m...)
}

// create returns the operations that insert rows of any table.
func (c *Client) create(rows ...model.Model) ([]libovsdb.Operation, error) {
	var out []libovsdb.Operation
	for _, r := range rows {
		ops, err := c.db.Create(r)
		if err != nil {
			return nil, err
		}
		out = append(out, ops...)
	}
	return out, nil
}

func (c *Client) addBridge(ctx context.Context, b Bridge, id string) ([]libovsdb.Operation, error) {
	root, err := c.root(ctx)
	if err != nil {
		return nil, err
	}
	secure := vsdb.BridgeFailModeSecure
	owner := map[string]string{KeyOwner: OwnerValue}
	iface := &vsdb.Interface{UUID: id + "i", Name: b.Name, Type: "internal"}
	port := &vsdb.Port{UUID: id + "p", Name: b.Name, Interfaces: []string{iface.UUID}}
	bridge := &vsdb.Bridge{UUID: id + "b", Name: b.Name, FailMode: &secure, DatapathType: b.DatapathType,
		Ports: []string{port.UUID}, ExternalIDs: owner, OtherConfig: map[string]string{"disable-in-band": "true"}}
	ops, err := c.create(iface, port, bridge)
	if err != nil {
		return nil, err
	}
	link, err := c.db.Where(&root).Mutate(&root, model.Mutation{Field: &root.Bridges, Mutator: libovsdb.MutateOperationInsert, Value: []string{bridge.UUID}})
	return append(ops, link...), err
}

func (c *Client) addPort(ctx context.Context, p Port, id string) ([]libovsdb.Operation, error) {
	iface := &vsdb.Interface{UUID: id + "i", Name: p.Name, ExternalIDs: p.ExternalIDs}
	if p.Internal {
		iface.Type = "internal"
	}
	if p.MAC != "" {
		iface.MAC = &p.MAC
	}
	if p.MTU != 0 {
		iface.MTURequest = &p.MTU
	}
	port := &vsdb.Port{UUID: id + "p", Name: p.Name, Interfaces: []string{iface.UUID},
		ExternalIDs: map[string]string{KeyOwner: OwnerValue}}
	bridge := &vsdb.Bridge{Name: p.Bridge}
	if err := c.db.Get(ctx, bridge); err != nil {
		return nil, fmt.Errorf("bridge %s: %w", p.Bridge, err)
	}
	ops, err := c.create(iface, port)
	if err != nil {
		return nil, err
	}
	link, err := c.db.Where(bridge).Mutate(bridge, model.Mutation{Field: &bridge.Ports, Mutator: libovsdb.MutateOperationInsert, Value: []string{port.UUID}})
	return append(ops, link...), err
}

func (c *Client) setPort(ctx context.Context, o SetPort) ([]libovsdb.Operation, error) {
	row := &vsdb.Interface{Name: o.Want.Name}
	if err := c.db.Get(ctx, row); err != nil {
		return nil, fmt.Errorf("interface %s: %w", o.Want.Name, err)
	}
	set, drop := o.ids()
	ops, err := c.setIDs(row, &row.ExternalIDs, set, drop)
	if err != nil {
		return nil, err
	}
	if o.Want.MAC != o.Have.MAC || o.Want.MTU != o.Have.MTU {
		row.MAC, row.MTURequest = nil, nil
		if o.Want.MAC != "" {
			row.MAC = &o.Want.MAC
		}
		if o.Want.MTU != 0 {
			row.MTURequest = &o.Want.MTU
		}
		up, err := c.db.Where(row).Update(row, &row.MAC, &row.MTURequest)
		if err != nil {
			return nil, err
		}
		ops = append(ops, up...)
	}
	return ops, nil
}

// deletePort removes the port from its bridge. The database then deletes the
// port and its interface, as nothing refers to them.
func (c *Client) deletePort(ctx context.Context, p Port) ([]libovsdb.Operation, error) {
	port := &vsdb.Port{Name: p.Name}
	switch err := c.db.Get(ctx, port); {
	case errors.Is(err, client.ErrNotFound):
		return nil, nil // already deleted
	case err != nil:
		return nil, fmt.Errorf("port %s: %w", p.Name, err)
	}
	if port.ExternalIDs[KeyOwner] != OwnerValue {
		return nil, fmt.Errorf("port %s is not Bulkhead's: external_ids:%s is not %s", p.Name, KeyOwner, OwnerValue)
	}
	bridge := &vsdb.Bridge{Name: p.Bridge}
	switch err := c.db.Get(ctx, bridge); {
	case errors.Is(err, client.ErrNotFound):
		return nil, nil // deleted with its ports
	case err != nil:
		return nil, fmt.Errorf("bridge %s: %w", p.Bridge, err)
	}
	return c.db.Where(bridge).Mutate(bridge, model.Mutation{Field: &bridge.Ports, Mutator: libovsdb.MutateOperationDelete, Value: []string{port.UUID}})
}

// rowName returns the name of the row that op changes, or anyRow for the root.
func rowName(op Op) string {
	switch o := op.(type) {
	case AddBridge:
		return o.Bridge.Name
	case AddPort:
		return o.Port.Name
	case SetPort:
		return o.Want.Name
	case DeletePort:
		return o.Port.Name
	default:
		return anyRow
	}
}

// cacheShows reports whether the cache shows the result of op.
func (c *Client) cacheShows(ctx context.Context, op Op) (bool, error) {
	switch o := op.(type) {
	case SetChassis:
		root, err := c.root(ctx)
		return root.ExternalIDs[o.Key] == o.New, err
	case AddBridge:
		return exists(c.db.Get(ctx, &vsdb.Bridge{Name: o.Bridge.Name}))
	case AddPort:
		if ok, err := exists(c.db.Get(ctx, &vsdb.Port{Name: o.Port.Name})); !ok || err != nil {
			return ok, err
		}
		return exists(c.db.Get(ctx, &vsdb.Interface{Name: o.Port.Name}))
	case SetPort:
		row := &vsdb.Interface{Name: o.Want.Name}
		if ok, err := exists(c.db.Get(ctx, row)); !ok || err != nil {
			return ok, err
		}
		p := portOf(*row)
		return p.MAC == o.Want.MAC && p.MTU == o.Want.MTU && maps.Equal(p.ExternalIDs, o.Want.ExternalIDs), nil
	case DeletePort:
		ok, err := exists(c.db.Get(ctx, &vsdb.Interface{Name: o.Port.Name}))
		return !ok, err
	default:
		return true, nil
	}
}

func exists(err error) (bool, error) {
	if errors.Is(err, client.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Describe renders operations, one per line.
func Describe(ops []Op) string {
	lines := make([]string, len(ops))
	for i, o := range ops {
		lines[i] = o.String()
	}
	return strings.Join(lines, "\n")
}
