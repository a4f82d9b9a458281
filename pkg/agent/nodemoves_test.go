// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/network"
)

// TestNodeMoves: everything follows the node's address and default gateway, in both gateway modes: what other nodes
// and the zone read, networks' routes, nft and the external bridge's flows. Nothing of the old ones stays.
func TestNodeMoves(t *testing.T) {
	const oldAddress, oldHop, address, hop = "192.0.2.10", "192.0.2.1", "198.51.100.10", "198.51.100.1"
	for _, mode := range []network.GatewayMode{network.SharedGateway, network.LocalGateway} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bridge := &fakeFlows{}
				nft, rules := firewall.NewFake()
				f := newFakeNode(t, func(p *Parts) {
					p.Config.OVS.GatewayMode, p.Flows, p.Firewall = mode, bridge, nft
				})
				f.agent.start()
				f.setNodeID(3)
				f.setNAD(nad(f.agent.config, "shop", "net", 4))
				f.events().changeNamespace("shop", Namespace{Labelled: true})
				outputs := map[string]func() string{
					"annotations of the Node": func() string {
						f.mu.Lock()
						defer f.mu.Unlock()
						var all []string
						for _, v := range f.annotations {
							all = append(all, v)
						}
						return strings.Join(all, "\n")
					},
					"routes": f.dumpKernel,
					"nft":    rules.Dump,
					"flows of the external bridge": func() string {
						bridge.mu.Lock()
						defer bridge.mu.Unlock()
						return bridge.node.Addresses[0].String() + " " + bridge.node.NextHops[0].String()
					},
				}
				// has reports whether a text has an address, which may be the beginning of a longer one.
				has := func(text, address string) bool {
					for _, word := range strings.FieldsFunc(text, func(r rune) bool { return !strings.ContainsRune("0123456789.", r) }) {
						if word == address {
							return true
						}
					}
					return false
				}
				wants := map[string][]string{"annotations of the Node": {address, hop}, "routes": {hop}, "nft": {address}, "flows of the external bridge": {address, hop}}
				before := map[string][]string{"annotations of the Node": {oldAddress, oldHop}, "routes": {oldHop}, "nft": {oldAddress}, "flows of the external bridge": {oldAddress, oldHop}}
				follow := func(when string, want map[string][]string, gone ...string) {
					t.Helper()
					for name, output := range outputs {
						eventually(t, when+": "+name, func() bool {
							text := output()
							for _, a := range want[name] {
								if !has(text, a) {
									return false
								}
							}
							for _, a := range gone {
								if has(text, a) {
									return false
								}
							}
							return true
						})
					}
				}
				eventually(t, "ready", func() bool {
					return f.state(4).State == StateReady && f.agent.State(context.Background(), false).Node.Name != ""
				})
				follow("before", before, address, hop)
				f.move(address+"/24", hop)
				moved := time.Now()
				follow("afterwards", wants, oldAddress, oldHop)
				if took := time.Since(moved); took > resyncInterval/4 { // the resync would hide a lost event
					t.Errorf("after %v", took)
				}
			})
		})
	}
}
