// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	"bulkhead/pkg/network"
)

// firstSync tracks the first reconcile of everything that existed when the
// cache was synced. The agent is ready when it is complete.
type firstSync struct {
	node *nodeReconciler
	log  *slog.Logger
	then func() // called once when complete

	mu      sync.Mutex
	started bool
	pending map[key]struct{}
	done    chan struct{} // closed when complete
}

func newFirstSync(node *nodeReconciler, log *slog.Logger, then func()) *firstSync {
	return &firstSync{node: node, log: log, then: then, done: make(chan struct{})}
}

// start sets the keys to wait for.
func (f *firstSync) start(keys []key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started, f.pending = true, map[key]struct{}{}
	for _, k := range keys {
		f.pending[k] = struct{}{}
	}
}

// reconciled says that a key was reconciled, with or without success: a network
// that fails does not block the node. Without the node's id and facts nothing counts, nor without a host subnet of the
// cluster default network: no pod would start.
func (f *firstSync) reconciled(k key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.started || f.complete() || !f.node.known() || f.noSubnet() != nil {
		return
	}
	delete(f.pending, k)
	if k.kind == kindAll {
		f.forgetDeleted()
	}
	if len(f.pending) == 0 {
		f.log.Info("first sync complete")
		f.then()
		close(f.done)
	}
}

// noSubnet returns an error if the cluster default network has no host subnet for the node.
func (f *firstSync) noSubnet() error {
	_, err := f.node.config.DefaultNetwork.HostSubnets(f.node.cache.NodeID())
	return err
}

// forgetDeleted drops the keys of networks that are deleted: nothing enqueues them again.
func (f *firstSync) forgetDeleted() {
	maps.DeleteFunc(f.pending, func(k key, _ struct{}) bool {
		if k.id == network.DefaultID || k.kind != kindNetwork && k.kind != kindGateway {
			return false
		}
		_, exists := f.node.cache.Network(k.id)
		return !exists
	})
}

func (f *firstSync) complete() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// Ready returns why the first sync is not complete, or nil.
func (f *firstSync) Ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.complete():
		return nil
	case !f.started:
		return errors.New("waiting for the API server")
	case f.node.cache.NodeID() == 0:
		return errors.New("waiting for the node's id from the cluster controller")
	case !f.node.known():
		return errors.New("waiting for Open vSwitch, and for an address of the external bridge")
	case f.noSubnet() != nil:
		return f.noSubnet()
	default:
		return fmt.Errorf("first sync: %d keys pending", len(f.pending))
	}
}
