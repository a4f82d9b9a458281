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
// writes only differences.
func (c *Client) SyncChassis(ctx context.Context, node network.Node, in Inputs) error {
	if c.syncChassis(ctx, node, in) == nil {
		return nil
	}
	// Another client may have changed the row or created the bridge concurrently.
	if err := c.syncChassis(ctx, node, in); err != nil {
		return fmt.Errorf("set up chassis %s: %w", node.Name, err)
	}
	return nil
}

// syncChassis builds on the state that it compares with: what an operator adds to the
// bridge mappings in between would be lost.
func (c *Client) syncChassis(ctx context.Context, node network.Node, in Inputs) error {
	have, err := c.Read(ctx, OwnerChassis)
	if err != nil {
		return err
	}
	in.ExternalIDs = have.Chassis
	want, err := BuildChassis(node, in)
	if err != nil {
		return err
	}
	return c.Apply(ctx, Diff(want, have))
}

// SyncManagement creates the management ports of these networks and deletes those
// of other networks, except of the networks with the ids kept, whose ports it leaves as they are. It
// continues after an error, e.g. a network without a subnet for this node, and returns all errors.
func (c *Client) SyncManagement(ctx context.Context, node network.Node, nets []network.Network, kept []int) error {
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
	have, err := c.Read(ctx, OwnerManagement)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	want := Merge(states...)
	for _, id := range kept {
		name := network.Network{ID: id}.ManagementPort()
		if _, wanted := want.Ports[name]; !wanted {
			if p, ok := have.Ports[name]; ok {
				want.Ports[name] = p
			}
		}
	}
	return errors.Join(append(errs, c.Apply(ctx, Diff(want, have)))...)
}

// EnsurePods creates pods' ports in one transaction. It deletes a port of another
// sandbox with the same logical port, which belongs to an earlier instance of the
// pod, and returns its name: replaced are ports that it has deleted or failed to. Other ports stay unchanged.
func (c *Client) EnsurePods(ctx context.Context, ports []PodPort) (replaced []string, err error) {
	ids, err := c.ExternalIDs(ctx)
	if err != nil {
		return nil, err
	}
	want := BuildPods(ports, IntegrationBridge(ids))
	have := State{Ports: map[string]Port{}}
	for _, p := range ports {
		for _, match := range [][2]string{{KeySandbox, p.Sandbox}, {KeyLSP, p.LSP}} {
			found, err := c.ports(ctx, match[0], match[1])
			if err != nil {
				return nil, err
			}
			for _, f := range found {
				_, wanted := want.Ports[f.Name]
				if wanted || f.ExternalIDs[KeyLSP] == p.LSP {
					have.Ports[f.Name] = f
				}
				if !wanted && f.ExternalIDs[KeyLSP] == p.LSP {
					replaced = append(replaced, f.Name)
				}
			}
		}
	}
	slices.Sort(replaced)
	return slices.Compact(replaced), c.Apply(ctx, Diff(want, have))
}

// DeletePods deletes a sandbox's ports of one attachment, or of all attachments
// if attachment is empty. Missing ports are no error.
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

// DeletePodPorts deletes pod ports by name.
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

// ListPods lists all our pod ports, sorted by name.
func (c *Client) ListPods(ctx context.Context) ([]PodPort, error) {
	s, err := c.Read(ctx, OwnerPod)
	if err != nil {
		return nil, err
	}
	out := make([]PodPort, 0, len(s.Ports))
	for _, name := range sortedKeys(s.Ports) {
		out = append(out, parsePodPort(s.Ports[name]))
	}
	return out, nil
}

// ports lists our pod ports with the pair in external_ids, using the index.
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

// WaitInstalled waits until ovn-controller has installed the flows of all these
// ports. It compares the logical port and the pod's uid (iface-id-ver), so that
// the port of an earlier pod with the same name does not count. If ctx ends
// first, the error says which port is not ready and why.
func (c *Client) WaitInstalled(ctx context.Context, ports []PodPort) error {
	var errs []error
	for _, p := range ports {
		reason := ""
		err := c.await(ctx, p.Name, func() (done bool, err error) {
			row := &vsdb.Interface{Name: p.Name}
			if err := c.db.Get(ctx, row); errors.Is(err, client.ErrNotFound) {
				return false, fmt.Errorf("port %s was deleted in the meantime", p.Name)
			} else if err != nil {
				return false, fmt.Errorf("read interface %s: %w", p.Name, err)
			}
			reason = notInstalledReason(*row, p)
			return reason == "", nil
		})
		switch {
		case err == nil:
		case ctx.Err() != nil && reason != "":
			errs = append(errs, fmt.Errorf("port %s of pod %s/%s: %s: %w", p.Name, p.Namespace, p.Pod, reason, ctx.Err()))
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// notInstalledReason returns why the interface does not carry the port's traffic
// yet, or "" if it does.
func notInstalledReason(row vsdb.Interface, p PodPort) string {
	ids := row.ExternalIDs
	switch {
	case ids[KeyLSP] != p.LSP || ids[KeyLSPVersion] != p.UID:
		return fmt.Sprintf("the interface now belongs to logical port %s of pod uid %s", ids[KeyLSP], ids[KeyLSPVersion])
	case ids[KeyInstalled] == "true":
		return ""
	case row.Error != nil && *row.Error != "":
		return "Open vSwitch cannot use the interface: " + strings.TrimSpace(*row.Error)
	case row.Ofport == nil || *row.Ofport <= 0:
		return "the interface has no OpenFlow port yet: is ovs-vswitchd running?"
	default:
		return fmt.Sprintf("ovn-controller has not bound logical port %s yet: is it in the zone's OVN database, with options:iface-id-ver=%s?", p.LSP, p.UID)
	}
}
