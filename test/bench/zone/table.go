// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/test/bench/report"
)

// Targets.
const (
	targetNetworks   = 500              // at this number of networks or more
	maxCPU           = 20 * time.Second // of the zone
	maxMemory        = 250 << 20
	maxWideMemory    = 400 << 20
	maxGrowth        = 1.3 // one more object, at the last size against the first
	maxBoundGrowth   = 1.5
	maxFlowsAlone    = 770
	maxFlowsWithPeer = 920

	// firstMemory is what ovn-controller, the southbound database and northd took with the first rows, which joined routers by
	// switches: 681, 618 and 556 MB at targetNetworks empty networks on one node.
	firstMemory    = (681 + 618 + 556) << 20
	maxFirstMemory = 0.7
)

// figures compares the results with the targets.
func figures(m measured) []report.Figure {
	var out []report.Figure
	add := func(name, value, target string, met bool, reference string) {
		out = append(out, report.Figure{Name: name, Value: value, Target: target, Met: met, Reference: reference})
	}
	addSize := func(r *result, memory int64) {
		at := func(s string) string {
			if r == m.empty {
				return fmt.Sprintf("%d empty networks, %d node: %s", r.shape.networks, r.shape.nodes, s)
			}
			if r == m.remote {
				return fmt.Sprintf("one Layer2 network, %d nodes, %d pods: %s", r.shape.nodes, r.shape.pods, s)
			}
			return fmt.Sprintf("%d networks, %d nodes: %s", r.shape.networks, r.shape.nodes, s)
		}
		show := func(name, value string) { add(at(name), value, "", false, "") }
		show("all rows committed", report.Seconds(r.committed))
		show("northd has followed", within(r.southbound))
		show("ovn-controller has followed", within(r.switched))
		if r.shape.networks >= targetNetworks {
			add(at("zone CPU"), report.Seconds(r.cpu), "≤ "+report.Seconds(maxCPU), r.cpu > 0 && r.cpu <= maxCPU, "77 s, without pods and services")
			add(at("zone peak memory"), report.Megabytes(r.peak), "≤ "+report.Megabytes(memory), r.peak > 0 && r.peak <= memory, "529 MB, without pods and services")
		} else {
			show("zone CPU", report.Seconds(r.cpu))
			show("zone peak memory", report.Megabytes(r.peak))
		}
		n := float64(r.shape.networks)
		show("zone CPU per network", report.Millis(time.Duration(float64(r.cpu)/n)))
		show("transactions, bytes", fmt.Sprintf("%d, %.0f kB per network", r.traffic.writes, float64(r.traffic.bytes)/1000/n))
		show("OpenFlow flows, logical flows per network", fmt.Sprintf("%.0f, %.0f", float64(r.flows)/n, float64(r.logical)/n))
		for _, d := range r.daemons {
			show(d.name+" CPU, memory", report.Seconds(d.cpu)+", "+report.Megabytes(d.memory))
		}
		for _, c := range r.changes {
			value := fmt.Sprintf("%s, %d transactions, %.1f kB", report.Millis(c.took), c.writes, float64(c.bytes)/1000)
			if c.bound > 0 {
				value += fmt.Sprintf("; southbound row after %s, OpenFlow port %s, claimed %s, bound %s",
					report.Millis(c.row), report.Millis(c.numbered), report.Millis(c.claimed), report.Millis(c.bound))
			}
			show("one more "+c.name, value)
		}
		if r.shape.changes {
			add(at("restart with nothing changed: write transactions"), fmt.Sprint(r.restart.writes), "0", r.restart.writes == 0, "")
			show("restart: zone CPU", report.Seconds(r.restartCPU))
		}
	}
	for _, r := range m.sizes {
		addSize(r, maxMemory)
	}
	if m.empty != nil {
		addSize(m.empty, maxMemory)
		out = append(out, ovnMemory(m.empty))
	}
	if m.remote != nil {
		addSize(m.remote, maxMemory)
	}
	if m.wide != nil {
		addSize(m.wide, maxWideMemory)
	}
	out = append(out, growth(m.sizes)...)
	out = append(out, routeFigures(m.learned)...)
	for _, f := range m.flows {
		limit, name := maxFlowsAlone, "alone"
		if f.nodes > 1 {
			limit, name = maxFlowsWithPeer, fmt.Sprintf("with %d peers", f.nodes-1)
		}
		add(fmt.Sprintf("OpenFlow flows of a %s network with a pod, %s", map[network.Topology]string{network.Layer3: "Layer3", network.Layer2: "Layer2"}[f.topology], name),
			fmt.Sprintf("%.0f", f.perNet), fmt.Sprintf("≤ %d", limit), f.perNet > 0 && f.perNet <= float64(limit), "1,080 without a pod")
	}
	return out
}

// ovnMemory compares OVN's memory with the first rows'. At fewer networks than that was measured at, there is no target.
func ovnMemory(r *result) report.Figure {
	var memory int64
	for _, d := range r.daemons {
		switch d.name {
		case "ovn-controller", "SB server", "ovn-northd":
			memory += d.memory
		}
	}
	f := report.Figure{Name: fmt.Sprintf("%d empty networks, %d node: memory of ovn-controller, southbound database and northd", r.shape.networks, r.shape.nodes), Value: report.Megabytes(memory)}
	if r.shape.networks >= targetNetworks {
		f.Target, f.Met = "≤ "+report.Megabytes(int64(maxFirstMemory*firstMemory)), memory > 0 && memory <= int64(maxFirstMemory*firstMemory)
		f.Reference = report.Megabytes(firstMemory) + " with the first rows"
	}
	return f
}

// within formats how long OVN took to follow.
func within(d time.Duration) string {
	if d == 0 {
		return fmt.Sprintf("not within %s of the last row", followed)
	}
	return report.Seconds(d)
}

// growth compares the last size with the first.
func growth(results []*result) []report.Figure {
	if len(results) < 2 {
		return nil
	}
	first, last := results[0], results[len(results)-1]
	var out []report.Figure
	add := func(name string, a, b, limit float64) {
		r := report.Ratio(b, a)
		out = append(out, report.Figure{
			Name:  fmt.Sprintf("%s, at %d networks relative to %d", name, last.shape.networks, first.shape.networks),
			Value: fmt.Sprintf("%.2f ×", r), Target: fmt.Sprintf("≤ %.1f ×", limit), Met: r > 0 && r <= limit,
		})
	}
	for i, c := range first.changes {
		d := last.changes[i]
		per, name := 1.0, "one more "+c.name+": time to its rows"
		if c.name == "node" { // each network has rows of each peer
			per, name = float64(last.shape.networks)/float64(first.shape.networks), name+", per network"
		}
		add(name, c.took.Seconds(), d.took.Seconds()/per, maxGrowth)
		add("one more "+c.name+": bytes"+name[len("one more "+c.name+": time to its rows"):], float64(c.bytes), float64(d.bytes)/per, maxGrowth)
		if c.bound > 0 {
			add("one more "+c.name+": time to its bound port", c.bound.Seconds(), d.bound.Seconds(), maxBoundGrowth)
		}
	}
	return out
}
