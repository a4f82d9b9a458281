// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"bulkhead/pkg/ovs/flows"
	"bulkhead/pkg/ovs/vsdb"
)

// bridgePort is a port of the external bridge.
type bridgePort struct {
	name       string
	interfaces []string
	patch      bool // leads to another bridge
	internal   bool // to the host
}

// bridgeReader reads the external bridge. It reads a patch port's rows when the port is new, so
// that the cost of an event hardly depends on the number of networks. Other ports are few, and may change: a
// bond gets another member.
type bridgeReader struct {
	client *Client
	name   string
	ports  map[string]bridgePort // by UUID
}

// read returns the bridge with the current OpenFlow ports of its uplink and of its patch
// ports, as far as they exist: router is the name of one, localnets maps the names of others to
// their VLANs. The uplink is the port named in the bridge's external_ids:bridge-uplink, or
// else the only port that is neither internal nor a patch port. added are the names of the
// ports that the reader has not seen before.
func (r *bridgeReader) read(ctx context.Context, router string, localnets map[string]int) (out flows.Bridge, added []string, err error) {
	out.Name = r.name
	br := &vsdb.Bridge{Name: r.name}
	if err := r.client.db.Get(ctx, br); err != nil {
		return out, nil, fmt.Errorf("external bridge %s: %w", r.name, err)
	}
	known := r.ports
	r.ports = make(map[string]bridgePort, len(br.Ports))
	for _, uuid := range br.Ports {
		p, ok := known[uuid]
		if !ok || !p.patch {
			if p, err = r.port(ctx, uuid); err != nil {
				r.ports = known
				return out, nil, err
			}
			if !ok || p.patch {
				added = append(added, p.name)
			}
		}
		r.ports[uuid] = p
	}
	uplinks := map[string][]string{} // interfaces by port
	for _, p := range r.ports {
		if !p.patch && !p.internal {
			uplinks[p.name] = p.interfaces
		}
	}
	uplink := br.ExternalIDs[KeyUplink]
	if uplink == "" {
		if len(uplinks) > 1 {
			return out, added, fmt.Errorf("bridge %s has several possible uplinks (%s): set the uplink with ovs-vsctl set bridge %s external_ids:bridge-uplink=PORT",
				r.name, strings.Join(sortedKeys(uplinks), ", "), r.name)
		}
		uplink = strings.Join(sortedKeys(uplinks), "")
	}
	for _, i := range uplinks[uplink] {
		ofport, err := r.client.openFlowPort(ctx, i)
		if err != nil {
			return out, added, err
		}
		out.Uplinks = append(out.Uplinks, ofport)
	}
	slices.Sort(out.Uplinks)
	if n := len(out.Uplinks); n > 0 && out.Uplinks[n-1] > 0 { // a bond works without its missing members
		out.Uplinks = slices.DeleteFunc(out.Uplinks, func(port int) bool { return port <= 0 })
	}
	for _, p := range r.ports {
		vlan, localnet := localnets[p.name]
		if !p.patch || p.name != router && !localnet {
			continue
		}
		ofport, err := r.client.openFlowPort(ctx, p.name)
		switch {
		case err != nil:
			return out, added, err
		case ofport <= 0: // not connected yet
		case localnet:
			out.Localnets = append(out.Localnets, flows.Localnet{Port: ofport, VLAN: vlan})
		default:
			out.Router = ofport
		}
	}
	slices.SortFunc(out.Localnets, func(a, b flows.Localnet) int { return a.Port - b.Port })
	return out, added, nil
}

func (r *bridgeReader) port(ctx context.Context, uuid string) (bridgePort, error) {
	port := &vsdb.Port{UUID: uuid}
	if err := r.client.db.Get(ctx, port); err != nil {
		return bridgePort{}, fmt.Errorf("port %s of bridge %s: %w", uuid, r.name, err)
	}
	p := bridgePort{name: port.Name, internal: port.Name == r.name}
	for _, uuid := range port.Interfaces {
		i := &vsdb.Interface{UUID: uuid}
		if err := r.client.db.Get(ctx, i); err != nil {
			return bridgePort{}, fmt.Errorf("interface %s of port %s: %w", uuid, port.Name, err)
		}
		p.interfaces = append(p.interfaces, i.Name)
		p.patch = p.patch || i.Type == "patch"
		p.internal = p.internal || i.Type == "internal"
	}
	return p, nil
}

// possibleUplinks returns the names of the ports that may be the uplink, and of their interfaces.
func (r *bridgeReader) possibleUplinks() map[string]struct{} {
	out := map[string]struct{}{}
	for _, p := range r.ports {
		if !p.patch && !p.internal {
			out[p.name] = struct{}{}
			for _, name := range p.interfaces {
				out[name] = struct{}{}
			}
		}
	}
	return out
}

// openFlowPort returns the OpenFlow port of an interface; -1: it has none, or does not exist.
func (c *Client) openFlowPort(ctx context.Context, name string) (int, error) {
	i := &vsdb.Interface{Name: name}
	if err := c.db.Get(ctx, i); errors.Is(err, client.ErrNotFound) {
		return -1, nil
	} else if err != nil {
		return -1, fmt.Errorf("interface %s: %w", name, err)
	}
	if i.Ofport == nil {
		return -1, nil
	}
	return *i.Ofport, nil
}

// protect sets the column protected of the external bridge's patch ports to networks. Ports to Localnet networks and to
// the uplink router are not protected: they are as open as the link outside. After a start of Open vSwitch, until the
// bridge has our flows, it acts as a learning switch, which does not forward between protected ports. The setting is in
// the database and persists across restarts. only limits the ports by name; nil: all.
func (r *bridgeReader) protect(ctx context.Context, router string, localnets map[string]int, only []string) error {
	var ops []ovsdb.Operation
	for uuid, p := range r.ports {
		if !p.patch || only != nil && !slices.Contains(only, p.name) {
			continue
		}
		port := &vsdb.Port{UUID: uuid}
		if err := r.client.db.Get(ctx, port); err != nil {
			return fmt.Errorf("port %s of bridge %s: %w", p.name, r.name, err)
		}
		_, open := localnets[p.name]
		if open = open || p.name == router; port.Protected == open {
			port.Protected = !open
			update, err := r.client.db.Where(port).Update(port, &port.Protected)
			if err != nil {
				return fmt.Errorf("protect port %s: %w", p.name, err)
			}
			ops = append(ops, update...)
		}
	}
	if len(ops) == 0 {
		return nil
	}
	cl, err := r.client.db.Wait(ctx, nil)
	if err == nil {
		_, err = r.client.db.Transact(ctx, cl, ops...)
	}
	if err != nil {
		return fmt.Errorf("protect the patch ports of bridge %s: %w", r.name, err)
	}
	return nil
}
