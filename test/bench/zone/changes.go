// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// measureChanges measures one more pod, service, network and node, several times each,
// spread over the networks. OVN follows each before the next: its work for the one would
// take the processors from the other.
func (b *bench) measureChanges(ctx context.Context, r *result) error {
	b.o.progress("%s: one more pod, service, network and node", b.shape)
	s := b.shape
	spread := func(k int) int { return k * (s.networks - 1) / changesOfEach }
	ports, err := watchBindings(ctx, b.host)
	if err != nil {
		return err
	}
	defer ports.close()
	for _, k := range []struct {
		name   string
		create func(k int) error
		bind   bool
	}{
		{"pod", func(k int) error { return b.createPod(ctx, s.topologyOf(spread(k)), spread(k), s.pods+k, 0) }, true},
		{"service", func(k int) error { return b.createService(ctx, s, spread(k), s.services+k) }, false},
		{"network", func(k int) error { return b.createNetwork(ctx, s, s.networks+k) }, false},
		{"node", func(k int) error { return b.createNode(ctx, s.nodes+k) }, false},
	} {
		var costs []change
		for i := range changesOfEach {
			if _, err := b.host.Run("ovn-nbctl", "--no-leader-only", "--timeout=120", "--wait=hv", "sync"); err != nil {
				return fmt.Errorf("wait until OVN has followed: %w", err)
			}
			before := b.proxy.traffic()
			start := time.Now()
			if err := k.create(i); err != nil {
				return fmt.Errorf("one more %s: %w", k.name, err)
			}
			if k.bind {
				if err := b.bind(ctx, spread(i), podName(s.pods+i)); err != nil {
					return err
				}
			}
			if err := b.poll(ctx, "the zone writes rows of one more "+k.name, func() error {
				if b.proxy.traffic().writes == before.writes {
					return fmt.Errorf("no transaction")
				}
				return nil
			}); err != nil {
				return err
			}
			c := change{name: k.name}
			if k.bind {
				lsp := b.lsp(spread(i), podName(s.pods+i))
				var at binding
				if err := b.poll(ctx, "port "+lsp+" is bound", func() (err error) {
					at, err = ports.get(lsp)
					return err
				}); err != nil {
					return err
				}
				c.row, c.numbered, c.claimed, c.bound = at.row.Sub(start), at.numbered.Sub(start), at.claimed.Sub(start), at.installed.Sub(start)
			}
			if err := b.settle(ctx, before); err != nil {
				return err
			}
			t := b.proxy.traffic().since(before)
			c.took, c.writes, c.bytes = t.last.Sub(start), t.writes, t.bytes
			costs = append(costs, c)
		}
		r.changes = append(r.changes, median(costs))
	}
	return nil
}

// median returns the medians of the costs' fields.
func median(costs []change) change {
	c := change{name: costs[0].name}
	middle := len(costs) / 2
	for _, f := range []struct {
		get func(change) int64
		set func(int64)
	}{
		{func(c change) int64 { return int64(c.took) }, func(v int64) { c.took = time.Duration(v) }},
		{func(c change) int64 { return int64(c.row) }, func(v int64) { c.row = time.Duration(v) }},
		{func(c change) int64 { return int64(c.numbered) }, func(v int64) { c.numbered = time.Duration(v) }},
		{func(c change) int64 { return int64(c.claimed) }, func(v int64) { c.claimed = time.Duration(v) }},
		{func(c change) int64 { return int64(c.bound) }, func(v int64) { c.bound = time.Duration(v) }},
		{func(c change) int64 { return int64(c.writes) }, func(v int64) { c.writes = int(v) }},
		{func(c change) int64 { return c.bytes }, func(v int64) { c.bytes = v }},
	} {
		var values []int64
		for _, one := range costs {
			values = append(values, f.get(one))
		}
		slices.Sort(values)
		f.set(values[middle])
	}
	return c
}

func (b *bench) lsp(i int, pod string) string {
	return network.PodLSP(networkName(i)+"/"+networkName(i), networkName(i), pod)
}

// bind adds an interface for a pod of network i, as CNI ADD does.
func (b *bench) bind(ctx context.Context, i int, pod string) error {
	p, err := b.kube.CoreV1().Pods(networkName(i)).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return b.host.Bind(b.lsp(i, pod), string(p.UID), fmt.Sprintf("n%d%s", i, pod), "type=internal")
}

// countFlows returns the OpenFlow flows of br-int and the logical flows.
func (b *bench) countFlows() (openflow, logical int, err error) {
	out, err := b.host.Run("ovs-ofctl", "dump-aggregate", "unix:"+b.host.Path("br-int.mgmt"))
	if err != nil {
		return 0, 0, err
	}
	_, count, found := strings.Cut(out, "flow_count=")
	if !found {
		return 0, 0, fmt.Errorf("no flow count in %q", out)
	}
	if openflow, err = strconv.Atoi(strings.TrimSpace(count)); err != nil {
		return 0, 0, fmt.Errorf("flow count in %q: %w", out, err)
	}
	rows, err := b.host.Run("ovsdb-client", "transact", b.host.Sock("sb"),
		`["OVN_Southbound",{"op":"select","table":"Logical_Flow","columns":["_uuid"],"where":[]}]`)
	return openflow, strings.Count(rows, `"_uuid"`), err
}

// flowCount is the number of OpenFlow flows of one network.
type flowCount struct {
	topology network.Topology
	nodes    int
	perNet   float64
}

// countFlows counts the flows that a dual-stack network with one pod adds to a node,
// alone and with two other nodes.
func countFlows(ctx context.Context, o options) ([]flowCount, error) {
	const few, many = 2, 12
	var out []flowCount
	for _, t := range []network.Topology{network.Layer3, network.Layer2} {
		for _, nodes := range []int{1, 3} {
			var flows []int
			for _, n := range []int{few, many} {
				r, err := runShape(ctx, o, shape{networks: n, nodes: nodes, pods: 1, topology: t})
				if err != nil {
					return nil, err
				}
				flows = append(flows, r.flows)
			}
			out = append(out, flowCount{t, nodes, float64(flows[1]-flows[0]) / (many - few)})
		}
	}
	return out, nil
}
