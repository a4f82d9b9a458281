// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/client"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/vsdb"
)

// SyncChassis makes this node an OVN chassis with an integration bridge. It
// writes only what differs.
func (c *Client) SyncChassis(ctx context.Context, node network.Node, in Inputs) error {
	ids, err := c.ExternalIDs(ctx)
	if err != nil {
		return err
	}
	in.ExternalIDs = ids
	want, err := BuildChassis(node, in)
	if err != nil {
		return err
	}
	if err := Sync(ctx, c, OwnerChassis, want); err != nil {
		// ovn-controller may have made the bridge in this very moment.
		if retry := Sync(ctx, c, OwnerChassis, want); retry != nil {
			return fmt.Errorf("set up chassis %s: %w", node.Name, err)
		}
	}
	return nil
}

// SyncManagement makes the management ports of exactly these networks, and
// removes ours of any other. A network that has no subnet for this node is
// reported; the others are made all the same.
func (c *Client) SyncManagement(ctx context.Context, node network.Node, nets []network.Network) error {
	ids, err := c.ExternalIDs(ctx)
	if err != nil {
		return err
	}
	bridge := IntegrationBridge(ids)
	var errs []error
	var states []State
	for _, n := range nets {
		s, err := BuildManagement(n, node, bridge)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		states = append(states, s)
	}
	errs = append(errs, Sync(ctx, c, OwnerManagement, Merge(states...)))
	return errors.Join(errs...)
}

// EnsurePods makes pods' ports, in one transaction, and leaves other pods'
// alone. A port of another sandbox that claims the same logical port gives
// way: it is a former life of the same pod.
func (c *Client) EnsurePods(ctx context.Context, ports []PodPort) error {
	ids, err := c.ExternalIDs(ctx)
	if err != nil {
		return err
	}
	want := BuildPods(ports, IntegrationBridge(ids))
	have := State{Ports: map[string]Port{}}
	for _, p := range ports {
		for _, match := range [][2]string{{KeySandbox, p.Sandbox}, {KeyLSP, p.LSP}} {
			found, err := c.ports(ctx, match[0], match[1])
			if err != nil {
				return err
			}
			for _, f := range found {
				_, wanted := want.Ports[f.Name]
				if wanted || f.ExternalIDs[KeyLSP] == p.LSP {
					have.Ports[f.Name] = f
				}
			}
		}
	}
	return c.Apply(ctx, Diff(want, have))
}

// DeletePods removes the ports of a sandbox: of one attachment, or of all of
// them when attachment is empty. Nothing there is no error.
func (c *Client) DeletePods(ctx context.Context, sandbox, attachment string) error {
	found, err := c.ports(ctx, KeySandbox, sandbox)
	if err != nil {
		return err
	}
	have := State{Ports: map[string]Port{}}
	for _, p := range found {
		if attachment == "" || p.ExternalIDs[KeyAttachment] == attachment {
			have.Ports[p.Name] = p
		}
	}
	return c.Apply(ctx, Diff(State{}, have))
}

// DeletePodPorts removes pod ports by name.
func (c *Client) DeletePodPorts(ctx context.Context, names []string) error {
	have, err := c.Read(ctx, OwnerPod)
	if err != nil {
		return err
	}
	for name := range have.Ports {
		if !slices.Contains(names, name) {
			delete(have.Ports, name)
		}
	}
	return c.Apply(ctx, Diff(State{}, have))
}

// ListPods are all pod ports of ours, by name.
func (c *Client) ListPods(ctx context.Context) ([]PodPort, error) {
	s, err := c.Read(ctx, OwnerPod)
	if err != nil {
		return nil, err
	}
	out := make([]PodPort, 0, len(s.Ports))
	for _, name := range sortedKeys(s.Ports) {
		out = append(out, podPort(s.Ports[name]))
	}
	return out, nil
}

// ports are our pod ports with that pair in external_ids, from the index.
func (c *Client) ports(ctx context.Context, key, value string) ([]Port, error) {
	rows, err := c.interfaces(ctx, key, value)
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(r vsdb.Interface) bool {
		return r.ExternalIDs[KeyOwner] != OwnerValue || r.ExternalIDs[KeyRole] != string(OwnerPod)
	})
	if len(rows) == 0 {
		return nil, nil
	}
	bridges, err := c.bridgeOfPort(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Port, len(rows))
	for i, r := range rows {
		out[i] = portOf(r)
		out[i].Bridge = bridges[r.Name]
	}
	return out, nil
}

// WaitInstalled returns when ovn-controller has put the flows of all these
// ports in place: of this very logical port and pod (iface-id-ver), as a port
// of a former pod of the same name must not count. When ctx ends first the
// error says which port is missing what.
func (c *Client) WaitInstalled(ctx context.Context, ports []PodPort) error {
	var errs []error
	for _, p := range ports {
		why := ""
		err := c.await(ctx, p.Name, func() (done bool, err error) {
			row := &vsdb.Interface{Name: p.Name}
			if err := c.db.Get(ctx, row); errors.Is(err, client.ErrNotFound) {
				return false, fmt.Errorf("port %s was removed meanwhile", p.Name)
			} else if err != nil {
				return false, fmt.Errorf("read interface %s: %w", p.Name, err)
			}
			why = notInstalled(*row, p)
			return why == "", nil
		})
		switch {
		case err == nil:
		case ctx.Err() != nil && why != "":
			errs = append(errs, fmt.Errorf("port %s of pod %s/%s: %s: %w", p.Name, p.Namespace, p.Pod, why, ctx.Err()))
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// notInstalled is why the interface does not carry the port's traffic yet.
func notInstalled(row vsdb.Interface, p PodPort) string {
	ids := row.ExternalIDs
	switch {
	case ids[KeyLSP] != p.LSP || ids[KeyLSPVersion] != p.UID:
		return fmt.Sprintf("it belongs to logical port %s of pod uid %s now", ids[KeyLSP], ids[KeyLSPVersion])
	case ids[KeyInstalled] == "true":
		return ""
	case row.Error != nil && *row.Error != "":
		return "Open vSwitch cannot use it: " + strings.TrimSpace(*row.Error)
	case row.Ofport == nil || *row.Ofport <= 0:
		return "ovs-vswitchd has not taken it yet"
	default:
		return fmt.Sprintf("ovn-controller has not bound logical port %s yet: is it in the zone's OVN database, with options:iface-id-ver=%s?", p.LSP, p.UID)
	}
}
