// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"strings"
	"sync"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// advertised is an index of the VRFs into which networks are advertised.
type advertised struct {
	mu      sync.Mutex
	known   bool
	vrfs    map[string]string // comma-separated, by the network's name
	enqueue func(Owner)       // nil until the queue starts
}

// of returns the VRFs of a network, nil before the first SetAdvertised.
func (a *advertised) of(network string) *string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.known {
		return nil
	}
	vrfs := a.vrfs[network]
	return &vrfs
}

// set replaces the index and returns the networks that changed.
func (a *advertised) set(byNetwork map[string][]string) []string {
	next := make(map[string]string, len(byNetwork))
	for name, vrfs := range byNetwork {
		next[name] = strings.Join(vrfs, ",")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var changed []string
	for name, vrfs := range next {
		if a.vrfs[name] != vrfs {
			changed = append(changed, name)
		}
	}
	for name := range a.vrfs {
		if _, still := next[name]; !still {
			changed = append(changed, name)
		}
	}
	a.known, a.vrfs = true, next
	return changed
}

// SetAdvertised tells the reconciler the VRFs into which each network is advertised, by
// the network's name. Their NADs carry it to the nodes.
func (r *Reconciler) SetAdvertised(byNetwork map[string][]string) {
	first := r.advertised.of("") == nil
	changed := r.advertised.set(byNetwork)
	enqueue := r.advertised.queue()
	if enqueue == nil {
		return // every owner is reconciled after the queue starts
	}
	for _, name := range changed {
		if o, ok := ownerOfNetwork(name); ok {
			enqueue(o)
		}
	}
	if !first {
		return
	}
	// An earlier leader may have written networks that are no longer advertised.
	var nads nadv1.NetworkAttachmentDefinitionList
	if !r.readOK(r.cache.List(context.Background(), &nads, client.UnsafeDisableDeepCopy)) {
		return
	}
	for i := range nads.Items {
		if o, ours := OwnerOf(&nads.Items[i]); ours && nads.Items[i].Annotations[network.AnnotationAdvertisedVRFs] != "" {
			enqueue(o)
		}
	}
}

// start sets the function that enqueues owners.
func (a *advertised) start(enqueue func(Owner)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.enqueue = enqueue
}

func (a *advertised) queue() func(Owner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.enqueue
}
