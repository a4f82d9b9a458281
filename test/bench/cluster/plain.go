// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// kindCost is the cost of one kind of request, when a client sends only such
// requests as fast as it can and nothing watches.
type kindCost struct {
	name         string
	ofNetwork    bool // one of the four writes per network
	rate         float64
	server, etcd time.Duration // CPU time per request
}

// plainWrites makes the writes of n networks, the user's one and the
// controller's three, with a client that only writes. No controller can exceed
// its rate on this machine. It also measures alternatives to these writes.
func (c *cluster) plainWrites(ctx context.Context, n int) ([]kindCost, float64, error) {
	name := ownName
	cudn := func(i int) string { return cudnsPath + "/" + name(i) }
	kinds := []struct {
		name      string
		ofNetwork bool
		do        func(ctx context.Context, i int) error
	}{
		{"create the ClusterUserDefinedNetwork (its user)", true, func(ctx context.Context, i int) error {
			return c.do(ctx, http.MethodPost, cudnsPath, jsonType, ownNetwork(name(i)))
		}},
		{"add the finalizer (merge patch)", true, func(ctx context.Context, i int) error {
			return c.do(ctx, http.MethodPatch, cudn(i), mergeType, finalizerBody())
		}},
		{"create the NAD", true, func(ctx context.Context, i int) error {
			return c.do(ctx, http.MethodPost, nadsPath(name(i)), jsonType, nadBody(name(i), i+1))
		}},
		{"set the status (server-side apply)", true, func(ctx context.Context, i int) error {
			return c.do(ctx, http.MethodPatch, cudn(i)+"/status?force=true&fieldManager=bench", applyType, statusBody(name(i), 1))
		}},
		{"set the status again (server-side apply)", false, func(ctx context.Context, i int) error {
			return c.do(ctx, http.MethodPatch, cudn(i)+"/status?force=true&fieldManager=bench", applyType, statusBody(name(i), 2))
		}},
		{"set the status again (merge patch)", false, func(ctx context.Context, i int) error {
			return c.do(ctx, http.MethodPatch, cudn(i)+"/status", mergeType, statusBody(name(i), 3))
		}},
		{"read the ClusterUserDefinedNetwork", false, func(ctx context.Context, i int) error {
			return c.do(ctx, http.MethodGet, cudn(i), "", nil)
		}},
		{"delete the NAD (its finalizer stays)", false, func(ctx context.Context, i int) error {
			return c.do(ctx, http.MethodDelete, nadsPath(name(i))+"/"+name(i), "", nil)
		}},
		{"remove the NAD's finalizer (merge patch)", false, func(ctx context.Context, i int) error {
			return c.do(ctx, http.MethodPatch, nadsPath(name(i))+"/"+name(i), mergeType, []byte(`{"metadata":{"finalizers":null}}`))
		}},
	}
	var out []kindCost
	var took time.Duration
	for _, k := range kinds {
		p, err := c.measure(ctx, k.name, n, func(ctx context.Context) error { return each(ctx, n, k.do) })
		if err != nil {
			return nil, 0, fmt.Errorf("plain writes: %w", err)
		}
		out = append(out, kindCost{k.name, k.ofNetwork, p.rate(), p.perNetwork(p.cpu[serverProc]), p.perNetwork(p.cpu[etcdProc])})
		if k.ofNetwork {
			took += p.took
		}
	}
	return out, float64(n) / took.Seconds(), nil
}
