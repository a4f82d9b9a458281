// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"bulkhead/test/bench/report"
)

// Targets.
const (
	fullSize      = 500 // networks at which these hold
	maxStartCPU   = 10 * time.Second
	maxLookup     = 1.5 // a route lookup, against that with the first number of networks
	maxOperations = 1.0 // operations for one more network, against the first
)

// table collects figures.
type table []report.Figure

func (t *table) show(name, value string) {
	*t = append(*t, report.Figure{Name: name, Value: value})
}

func (t *table) target(name, value, target string, met bool) {
	*t = append(*t, report.Figure{Name: name, Value: value, Target: target, Met: met})
}

// ratio shows a figure of the i-th size, and its ratio to that of the first size, of which the
// target is most.
func (t *table) ratio(i int, name, text string, value, first, most float64) {
	if i == 0 {
		t.show(name, text)
		return
	}
	r := value / first
	t.target(name, fmt.Sprintf("%s, %.2f ×", text, r), fmt.Sprintf("≤ %.1f ×", most), first > 0 && r <= most)
}

func kernelFigures(results []kernelResult) []report.Figure {
	var t table
	for i, r := range results {
		at := func(s string) string { return fmt.Sprintf("%d networks: %s", r.Networks, s) }
		first := results[0]
		t.ratio(i, at("one more of each topology: netlink operations"), fmt.Sprint(r.Operations), float64(r.Operations), float64(first.Operations), maxOperations)
		t.show(at("one more of each topology: time in the VRF package"), report.Millis(r.VRF))
		t.ratio(i, at("one more of each topology: nft operations"), fmt.Sprint(r.Elements), float64(r.Elements), float64(first.Elements), maxOperations)
		t.show(at("one more of each topology: time in the firewall package"), report.Millis(r.Firewall))
		t.target(at("a start with nothing changed: operations"), fmt.Sprint(r.StartOperations), "0", r.StartOperations == 0)
		cpu := fmt.Sprintf("%s, processor %s", report.Seconds(r.Start), report.Seconds(r.StartCPU))
		if r.Networks >= fullSize {
			t.target(at("a start with nothing changed: VRF and firewall packages"), cpu, "≤ "+report.Seconds(maxStartCPU), r.StartCPU > 0 && r.StartCPU <= maxStartCPU)
		} else {
			t.show(at("a start with nothing changed: VRF and firewall packages"), cpu)
		}
		t.show(at("peak memory of this program there"), report.Megabytes(r.Peak))
		t.show(at("rules of both IP families"), fmt.Sprint(r.Rules))
		for f, family := range []string{"IPv4", "IPv6"} {
			t.ratio(i, at("route lookup, unmarked packet, "+family), fmt.Sprintf("%d ns", r.Unmarked[f]), float64(r.Unmarked[f]), float64(first.Unmarked[f]), maxLookup)
			t.ratio(i, at("route lookup, tenant's packet, "+family), fmt.Sprintf("%d ns", r.Tenant[f]), float64(r.Tenant[f]), float64(first.Tenant[f]), maxLookup)
		}
	}
	return t
}

func switchFigures(results []switchResult) []report.Figure {
	var t table
	for i, r := range results {
		at := func(s string) string { return fmt.Sprintf("%d networks: %s", r.networks, s) }
		first := results[0]
		t.show(at("flows of the external bridge"), fmt.Sprintf("%d, %.1f per network", r.flows, float64(r.flows)/float64(r.networks)))
		for _, l := range []struct {
			what      string
			it, first lookups
		}{{"an ARP request from the wire", r.broadcast, first.broadcast}, {"a reply to a gateway router", r.reply, first.reply}, {"a packet to a node port", r.service, first.service}} {
			t.ratio(i, at("table lookups of "+l.what), fmt.Sprintf("%d of the bridge, %d with OVN's", l.it.bridge, l.it.all), float64(l.it.all), float64(l.first.all), maxOperations)
		}
		t.ratio(i, at("one more of each topology: OpenFlow operations"), fmt.Sprint(r.operations), float64(r.operations), float64(first.operations), maxOperations)
		t.show(at("one more of each topology: time for them"), report.Millis(r.change))
		addTraffic(&t, at, r.traffic, r.control)
		t.target(at("pods that ask from one port at once and get their own answer"), fmt.Sprint(r.answered), fmt.Sprint(r.networks), r.answered == r.networks)
	}
	return t
}

// addTraffic shows the traffic, and its ratio to that of the control with as many ports.
func addTraffic(t *table, at func(string) string, r traffic, control *traffic) {
	against := func(value, control float64) string {
		return fmt.Sprintf(", %.2f × that with as many ports and one network", value/control)
	}
	var storm, stream, connections string
	if control != nil {
		storm = against(r.storm.Seconds(), control.storm.Seconds())
		stream = against(r.bytesPerSecond, control.bytesPerSecond)
		connections = against(r.connectionsPerSecond, control.connectionsPerSecond)
	}
	t.show(at(fmt.Sprintf("ovs-vswitchd in %s: idle", stormTime)), report.Seconds(r.idle))
	t.show(at(fmt.Sprintf("ovs-vswitchd in %s with %d ARP requests/s", stormTime, stormRate)), report.Seconds(r.storm)+storm)
	t.show(at("one stream from a pod to the outside"), fmt.Sprintf("%.1f MB/s", r.bytesPerSecond/1e6)+stream)
	t.show(at("connections from a pod to the outside"), fmt.Sprintf("%.0f/s", r.connectionsPerSecond)+connections)
}
