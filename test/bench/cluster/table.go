// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bulkhead/test/bench/report"
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"
	"time"
)

// Targets.
const (
	minRate       = 150                  // networks per second at the small size
	maxGrowth     = 1.3                  // time per network, large versus small
	wantWrites    = 3.0                  // per network: finalizer, NAD, status
	maxCPU        = 4 * time.Millisecond // of the controller, per network
	maxSmallBytes = 100 << 20
	maxBigBytes   = 300 << 20
)

// figures compares the results with the targets. big is nil if it was skipped.
func figures(small, big *result) []report.Figure {
	var out []report.Figure
	add := func(name, value, target string, met bool, reference string) {
		out = append(out, report.Figure{Name: name, Value: value, Target: target, Met: met, Reference: reference})
	}
	show := func(name, value string) { add(name, value, "", false, "") }
	addSize := func(r *result, limit int64) {
		at := func(s string) string { return fmt.Sprintf("%d networks: %s", r.networks, s) }
		if r == small {
			add(at("created and ready"), fmt.Sprintf("%.0f networks/s", r.create.rate()), fmt.Sprintf("≥ %d", minRate), r.create.rate() >= minRate, "17")
		} else {
			show(at("created and ready"), fmt.Sprintf("%.0f networks/s", r.create.rate()))
			growth := report.Ratio(r.create.took.Seconds()/float64(r.networks), small.create.took.Seconds()/float64(small.networks))
			add(at("time per network, relative to "+fmt.Sprint(small.networks)), fmt.Sprintf("%.2f ×", growth), fmt.Sprintf("≤ %.1f ×", maxGrowth), growth > 0 && growth <= maxGrowth, "")
		}
		perNetwork := float64(r.create.writes.total()) / float64(r.networks)
		add(at("API writes per network"), fmt.Sprintf("%.4g", perNetwork), "3", perNetwork == wantWrites, "3")
		cpu := r.create.perNetwork(r.create.cpu[controllerProc])
		add(at("controller CPU per network"), report.Millis(cpu), "≤ 4 ms", cpu > 0 && cpu <= maxCPU, "15 ms")
		show(at("API server + etcd CPU per network"), report.Millis(r.create.perNetwork(r.create.cpu[serverProc]+r.create.cpu[etcdProc])))
		all := r.create.perNetwork(r.create.measured())
		show(at("CPU per network of all processes"), fmt.Sprintf("%s: %.0f networks/s on %d cores without others", report.Millis(all),
			report.Ratio(float64(runtime.NumCPU()), all.Seconds()), runtime.NumCPU()))
		show(at("peak memory until all are ready"), report.Megabytes(r.createPeak))
		reference := ""
		if r != small {
			reference = "351 MB at 2,000"
		}
		add(at("peak memory of all phases"), report.Megabytes(r.peak), "≤ "+report.Megabytes(limit), r.peak > 0 && r.peak <= limit, reference)
		add(at("restart, API writes"), fmt.Sprint(r.restart.writes.total()), "0", r.restart.writes.total() == 0, "")
		show(at("restart, leader with synced caches"), report.Seconds(r.readyAfter))
		show(at("restart, every network reconciled"), report.Seconds(r.restart.took)+", "+report.Millis(r.restart.cpu[controllerProc])+" CPU")
		show(at(fmt.Sprintf("%d more, each in %d namespaces", sharedNetworks, sharedNamespaces)),
			fmt.Sprintf("%.0f networks/s, %.0f NADs/s, %.4g writes and %s controller CPU per NAD", r.shared.rate(), r.shared.rate()*sharedNamespaces,
				float64(r.shared.writes.total())/sharedNetworks/sharedNamespaces, report.Millis(r.shared.cpu[controllerProc]/(sharedNetworks*sharedNamespaces))))
		show(at("all deleted"), fmt.Sprintf("%.0f networks/s, %s controller CPU per network", r.remove.rate(), report.Millis(r.remove.perNetwork(r.remove.cpu[controllerProc]))))
		show(at("the same writes by a client that only writes"), fmt.Sprintf("%.0f networks/s", r.plainRate))
	}
	addSize(small, maxSmallBytes)
	if big != nil {
		addSize(big, maxBigBytes)
	}
	return out
}

// printDetails prints the details of the figures: each phase's CPU time by
// process and writes by kind, and the API server's cost of one write.
func printDetails(w io.Writer, r *result) error {
	fmt.Fprintf(w, "\n%d networks, by phase: CPU time, reconciliations and writes per network of the phase\n", r.networks)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "phase\ttook\tnetworks\tcontroller\tAPI server\tetcd\tbench client\tothers\treconciles")
	phases := []phase{r.create, r.restart, r.shared, r.remove}
	for _, p := range phases {
		fmt.Fprintf(t, "%s\t%s\t%d", p.name, report.Seconds(p.took), p.networks)
		for _, name := range []string{controllerProc, serverProc, etcdProc, benchProc, others} {
			fmt.Fprintf(t, "\t%s", report.Millis(p.perNetwork(p.cpu[name])))
		}
		fmt.Fprintf(t, "\t%.3g\n", float64(p.reconciles)/float64(p.networks))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range phases {
		fmt.Fprintf(w, "%s: %s\n", p.name, p.bottleneck())
		fmt.Fprintf(w, "  writes per network: %s; background writes in total: %s\n", p.writes.per(p.networks), p.rest.per(1))
	}
	fmt.Fprintf(w, "\n%d networks: the API server's cost of one write, by a client that only writes\n", r.networks)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "request\tper second\tAPI server\tetcd")
	for _, k := range r.plain {
		name := k.name
		if k.ofNetwork {
			name = "* " + name
		}
		fmt.Fprintf(t, "%s\t%.0f\t%s\t%s\n", name, k.rate, report.Millis(k.server), report.Millis(k.etcd))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "The requests with a star create one network: at most %.0f networks/s on this machine; the controller reached %.0f %% of it.\n",
		r.plainRate, 100*report.Ratio(r.create.rate(), r.plainRate))
	return nil
}
