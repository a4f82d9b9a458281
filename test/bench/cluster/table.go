// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"
	"time"
)

// figure is one line of the table.
type figure struct {
	name, value string
	target      string // "": it is shown, and nothing is asked of it
	met         bool
	reference   string // what the reference needs
}

func (f figure) verdict() string {
	switch {
	case f.target == "":
		return ""
	case f.met:
		return "met"
	}
	return "MISSED"
}

// Targets.
const (
	minRate       = 150                  // networks a second at the small size
	maxGrowth     = 1.3                  // time per network, large against small
	wantWrites    = 3.0                  // per network: finalizer, NAD, status
	maxCPU        = 4 * time.Millisecond // of the controller, per network
	maxSmallBytes = 100 << 20
	maxBigBytes   = 300 << 20
)

// figures are the results against the targets. big is nil where it was left
// out.
func figures(small, big *result) []figure {
	var out []figure
	add := func(name, value, target string, met bool, reference string) {
		out = append(out, figure{name, value, target, met, reference})
	}
	show := func(name, value string) { add(name, value, "", false, "") }
	one := func(r *result, limit int64) {
		at := func(s string) string { return fmt.Sprintf("%d networks: %s", r.networks, s) }
		if r == small {
			add(at("made and ready"), fmt.Sprintf("%.0f networks/s", r.create.rate()), fmt.Sprintf("≥ %d", minRate), r.create.rate() >= minRate, "17")
		} else {
			show(at("made and ready"), fmt.Sprintf("%.0f networks/s", r.create.rate()))
			growth := ratio(r.create.took.Seconds()/float64(r.networks), small.create.took.Seconds()/float64(small.networks))
			add(at("time per network against "+fmt.Sprint(small.networks)), fmt.Sprintf("%.2f ×", growth), fmt.Sprintf("≤ %.1f ×", maxGrowth), growth <= maxGrowth, "")
		}
		perNetwork := float64(r.create.writes.total()) / float64(r.networks)
		add(at("API writes per network"), fmt.Sprintf("%.4g", perNetwork), "3", perNetwork == wantWrites, "3")
		cpu := r.create.perNetwork(r.create.cpu[controllerProc])
		add(at("controller CPU per network"), millis(cpu), "≤ 4 ms", cpu <= maxCPU, "15 ms")
		show(at("API server + etcd CPU per network"), millis(r.create.perNetwork(r.create.cpu[serverProc]+r.create.cpu[etcdProc])))
		all := r.create.perNetwork(r.create.ours())
		show(at("CPU per network of all of them"), fmt.Sprintf("%s: %.0f networks/s on %d cores without others", millis(all),
			ratio(float64(runtime.NumCPU()), all.Seconds()), runtime.NumCPU()))
		show(at("peak memory until all are ready"), megabytes(r.createPeak))
		reference := ""
		if r != small {
			reference = "351 MB at 2,000"
		}
		add(at("peak memory of all phases"), megabytes(r.peak), "≤ "+megabytes(limit), r.peak <= limit, reference)
		add(at("restart, API writes"), fmt.Sprint(r.restart.writes.total()), "0", r.restart.writes.total() == 0, "")
		show(at("restart, leader with caches"), seconds(r.readyAfter))
		show(at("restart, every network looked at"), seconds(r.restart.took)+", "+millis(r.restart.cpu[controllerProc])+" CPU")
		show(at(fmt.Sprintf("%d more, each in %d namespaces", sharedNetworks, sharedNamespaces)),
			fmt.Sprintf("%.0f networks/s, %.0f NADs/s, %.4g writes and %s controller CPU a NAD", r.shared.rate(), r.shared.rate()*sharedNamespaces,
				float64(r.shared.writes.total())/sharedNetworks/sharedNamespaces, millis(r.shared.cpu[controllerProc]/(sharedNetworks*sharedNamespaces))))
		show(at("all deleted"), fmt.Sprintf("%.0f networks/s, %s controller CPU each", r.remove.rate(), millis(r.remove.perNetwork(r.remove.cpu[controllerProc]))))
		show(at("the same writes by a bare client"), fmt.Sprintf("%.0f networks/s", r.plainRate))
	}
	one(small, maxSmallBytes)
	if big != nil {
		one(big, maxBigBytes)
	}
	return out
}

// missed counts the targets that were not met.
func missed(fs []figure) (n int) {
	for _, f := range fs {
		if f.target != "" && !f.met {
			n++
		}
	}
	return n
}

func printFigures(w io.Writer, fs []figure) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "figure\tvalue\ttarget\t\treference")
	for _, f := range fs {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", f.name, f.value, f.target, f.verdict(), f.reference)
	}
	return t.Flush()
}

// printDetails shows what the figures are made of: every phase's processor
// time by process and writes by kind, and what one write costs the API server.
func printDetails(w io.Writer, r *result) error {
	fmt.Fprintf(w, "\n%d networks, phase by phase: processor time, reconciles and writes per network of the phase\n", r.networks)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "phase\ttook\tnetworks\tcontroller\tAPI server\tetcd\tbench client\tothers\treconciles")
	phases := []phase{r.create, r.restart, r.shared, r.remove}
	for _, p := range phases {
		fmt.Fprintf(t, "%s\t%s\t%d", p.name, seconds(p.took), p.networks)
		for _, name := range []string{controllerProc, serverProc, etcdProc, benchProc, others} {
			fmt.Fprintf(t, "\t%s", millis(p.perNetwork(p.cpu[name])))
		}
		fmt.Fprintf(t, "\t%.3g\n", float64(p.looks)/float64(p.networks))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range phases {
		fmt.Fprintf(w, "%s: %s\n", p.name, p.limited())
		fmt.Fprintf(w, "  writes per network: %s; besides, in all: %s\n", p.writes.per(p.networks), p.rest.per(1))
	}
	fmt.Fprintf(w, "\n%d networks: what one write costs the API server, from a client that only writes\n", r.networks)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "request\ta second\tAPI server\tetcd")
	for _, k := range r.plain {
		name := k.name
		if k.ofNetwork {
			name = "* " + name
		}
		fmt.Fprintf(t, "%s\t%.0f\t%s\t%s\n", name, k.rate, millis(k.server), millis(k.etcd))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "A network is those with a star: %.0f networks/s at most on this machine; the controller reached %.0f %% of it.\n",
		r.plainRate, 100*ratio(r.create.rate(), r.plainRate))
	return nil
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func millis(d time.Duration) string { return fmt.Sprintf("%.2f ms", d.Seconds()*1000) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

func megabytes(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/(1<<20)) }
