// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"reflect"

	"bulkhead/pkg/ovs"
)

// reconcileNode makes this node a chassis and tells the API server the facts
// that other nodes and this node's zone need. It writes only what differs.
func (a *Agent) reconcileNode(ctx context.Context) error {
	node, err := a.OVS.NodeFacts(ctx, a.Config.Kubernetes.NodeName, a.Config.OVS, a.Config.Plan)
	if err != nil {
		return err
	}
	if a.Flows != nil {
		if err := a.Flows.Close(ctx); err != nil {
			return fmt.Errorf("close the external bridge before networks lead to it: %w", err)
		}
	}
	in := ovs.Inputs{SBAddress: a.Config.SBAddress, ExternalBridge: a.Config.OVS.ExternalBridge, PhysicalNetwork: a.Config.OVS.PhysicalNetwork}
	if err := a.OVS.SyncChassis(ctx, node, in); err != nil {
		return err
	}
	a.mu.Lock()
	changed := !reflect.DeepEqual(a.node, node)
	a.node = node
	a.mu.Unlock()
	if changed {
		a.Log.Info("node facts", "addresses", node.Addresses, "nextHops", node.NextHops, "encap", node.EncapIPs, "chassis", node.Chassis)
		if a.started.Load() {
			a.queue.Add(key{kind: everything}) // routes lead by the node's next hops
		}
	}
	if !a.started.Load() {
		return nil // what the API server has is not known yet
	}
	want, err := node.AgentAnnotations()
	if err != nil {
		return err
	}
	have := a.Store.Annotations()
	differ := map[string]string{}
	for k, v := range want {
		if have[k] != v {
			differ[k] = v
		}
	}
	if len(differ) == 0 {
		return nil
	}
	if err := a.API.Annotate(ctx, differ); err != nil {
		return fmt.Errorf("annotate node %s: %w", node.Name, err)
	}
	a.Store.Annotated(differ)
	return nil
}
