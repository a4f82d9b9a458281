// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"bulkhead/pkg/network"
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

// FlowKeeper keeps the external bridge's flows as flows.Build wants them. It
// starts ovs-ofctl only when there is something to do: the bridge's uplink has
// other OpenFlow ports, networks changed, or ovs-vswitchd is another process.
type FlowKeeper struct {
	Client *Client
	Switch flows.Switch
	Bridge string
	// RunDir holds ovs-vswitchd's sockets.
	RunDir string
	Log    *slog.Logger
	// Report, when set, gets the outcome of every attempt: nil is success.
	Report func(error)

	mu       sync.Mutex
	networks []network.Network
	closed   bool // the flows were in place once
}

// RunDir is where ovs-vswitchd's sockets are, by the database's address.
func RunDir(address string) string {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return filepath.Dir(path)
	}
	return "/var/run/openvswitch"
}

// SetNetworks tells which networks the node has.
func (k *FlowKeeper) SetNetworks(nets []network.Network) {
	k.mu.Lock()
	k.networks = slices.Clone(nets)
	k.mu.Unlock()
	k.Client.change.notify(anything)
}

// Close closes the external bridge, before Open vSwitch is told that networks
// lead to it: nothing passes between patch ports then. It does so once.
func (k *FlowKeeper) Close(ctx context.Context) error {
	k.mu.Lock()
	closed := k.closed
	k.mu.Unlock()
	if closed {
		return nil
	}
	want, err := k.want(ctx)
	if err != nil && !errors.Is(err, flows.ErrNoUplink) {
		return err
	}
	if err := k.apply(ctx, want); err != nil {
		return err
	}
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	return nil
}

func (k *FlowKeeper) want(ctx context.Context) (flows.State, error) {
	bridge, err := k.Client.ExternalBridge(ctx, k.Bridge)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	nets := k.networks
	k.mu.Unlock()
	return flows.Build(bridge, nets)
}

func (k *FlowKeeper) apply(ctx context.Context, want flows.State) error {
	ops, err := flows.Sync(ctx, k.Switch, k.Bridge, want)
	if err != nil {
		return err
	}
	for _, op := range ops {
		k.Log.Info("external bridge", "op", op.String())
	}
	return nil
}

// Run keeps the flows until ctx ends.
func (k *FlowKeeper) Run(ctx context.Context) {
	restarted := watchSwitch(ctx, filepath.Join(k.RunDir, k.Bridge+".mgmt"))
	var done flows.State // what is in place, as far as we know
	backoff := 100 * time.Millisecond
	for ctx.Err() == nil {
		changed, stop := k.Client.change.wait(anything)
		want, err := k.want(ctx)
		if (err == nil || errors.Is(err, flows.ErrNoUplink)) && !reflect.DeepEqual(want, done) {
			if failed := k.apply(ctx, want); failed != nil {
				err = errors.Join(err, failed)
			} else {
				done = want
			}
		}
		err = errors.Join(err, k.Client.ProtectPatchPorts(ctx, k.Bridge))
		if k.Report != nil {
			k.Report(err)
		}
		var retry <-chan time.Time
		if err != nil {
			k.Log.Warn("cannot keep the external bridge's flows", "error", err)
			retry = time.After(backoff)
			backoff = min(2*backoff, 10*time.Second)
		} else {
			backoff = 100 * time.Millisecond
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-retry:
		case <-restarted:
			done = nil // a new switch has no flows
		}
		stop()
	}
}

// watchSwitch sends whenever ovs-vswitchd may be another process than before.
// It holds an OpenFlow connection to the bridge's management socket, which
// lives exactly as long as the process: no polling, and nothing is executed.
func watchSwitch(ctx context.Context, socket string) <-chan struct{} {
	out := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			_ = holdOpenFlow(ctx, socket, func() {
				select {
				case out <- struct{}{}:
				default:
				}
			})
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	return out
}

// holdOpenFlow greets the switch, calls up, and answers its echo requests
// until the connection ends.
func holdOpenFlow(ctx context.Context, socket string, up func()) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	// HELLO of OpenFlow 1.5 with the bitmap of all versions from 1.0 on.
	hello := []byte{6, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 0x7e}
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	greeted := false
	for {
		var head [8]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		length := binary.BigEndian.Uint16(head[2:])
		if length < 8 {
			return errors.New("OpenFlow message shorter than its header")
		}
		body := make([]byte, length-8)
		if _, err := io.ReadFull(conn, body); err != nil {
			return err
		}
		switch head[1] {
		case 0: // HELLO
			if !greeted {
				greeted = true
				up()
			}
		case 2: // ECHO_REQUEST
			head[1] = 3
			if _, err := conn.Write(append(head[:], body...)); err != nil {
				return err
			}
		}
	}
}
