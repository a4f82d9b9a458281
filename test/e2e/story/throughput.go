// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bulkhead/test/bench/proc"
)

const (
	floodPort   = 8081
	floodTime   = 8 * time.Second
	floodRounds = 3
	// leastRatio is how much faster pods without an overlay are to be.
	leastRatio = 1.5
)

// connection is what one TCP connection between two pods came to.
type connection struct {
	mbits      float64 // per second
	processor  float64 // seconds of both nodes per Gbit
	roundTrip  float64 // milliseconds
	throughput bool    // else only roundTrip is set
}

// The two networks differ in nothing else, and have no services.
const withGeneve, withoutOverlay = "tunnel", "swift"

// setUpThroughput creates both, with a pod on two nodes each.
func setUpThroughput(ctx context.Context, w *World) error {
	if err := w.Lab.Apply(ctx, w.noOverlayNetwork(withoutOverlay, "", 91, "Enabled", "Managed")+w.tenantManifest(withGeneve, 92)); err != nil {
		return err
	}
	if err := w.conditions(ctx, cudns, "", withoutOverlay, "True"); err != nil {
		return err
	}
	var pods []*pod
	for _, name := range []string{withGeneve, withoutOverlay} {
		for _, n := range w.tenantNodes() {
			pods = append(pods, &pod{Namespace: name, Name: name + "-" + n.Name, Node: n.Name, Tenant: name})
		}
	}
	return w.create(ctx, pods...)
}

// noOverlayRatio compares TCP between pods on two nodes, without an overlay and with
// Geneve, in turn: throughput, processor time and round trips, as medians.
func noOverlayRatio(ctx context.Context, w *World) (string, error) {
	pairs := map[string][2]*pod{}
	for _, tenant := range []string{withGeneve, withoutOverlay} {
		pods := w.tenant(tenant)
		if len(pods) < 2 {
			return "", errors.New("the throughput between nodes needs a lab with two nodes")
		}
		pairs[tenant] = [2]*pod{pods[0], pods[1]}
	}
	var figures []string
	var missed error
	for f, family := range w.Families {
		got := map[string][]connection{}
		for range floodRounds {
			for _, tenant := range []string{withGeneve, withoutOverlay} {
				from, to := pairs[tenant][0], pairs[tenant][1]
				for _, echo := range []bool{false, true} {
					c, err := w.flood(ctx, from, to, netip.AddrPortFrom(to.Primary[f], floodPort), echo)
					if err != nil {
						return "", fmt.Errorf("%s to %s: %w", from.Name, to.Name, err)
					}
					got[tenant] = append(got[tenant], c)
				}
			}
		}
		median := func(tenant string, throughput bool, value func(connection) float64) float64 {
			var list []float64
			for _, c := range got[tenant] {
				if c.throughput == throughput {
					list = append(list, value(c))
				}
			}
			slices.Sort(list)
			return list[len(list)/2]
		}
		mbits := func(c connection) float64 { return c.mbits }
		processor := func(c connection) float64 { return c.processor }
		roundTrip := func(c connection) float64 { return c.roundTrip }
		ratio := median(withoutOverlay, true, mbits) / median(withGeneve, true, mbits)
		line := fmt.Sprintf("%s: Geneve %.0f Mbit/s, %.1f s of processor per Gbit, %.2f ms; no overlay %.0f, %.1f, %.2f; throughput %.2f ×", family,
			median(withGeneve, true, mbits), median(withGeneve, true, processor), median(withGeneve, false, roundTrip),
			median(withoutOverlay, true, mbits), median(withoutOverlay, true, processor), median(withoutOverlay, false, roundTrip), ratio)
		figures = append(figures, line)
		if ratio < leastRatio {
			missed = fmt.Errorf("missed, want a throughput of at least %.1f ×", leastRatio)
		}
	}
	if missed != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(figures, "; "), missed)
	}
	return strings.Join(figures, "; ") + ": met", nil
}

// flood has one pod send to another, or with echo exchange single bytes with it.
func (w *World) flood(ctx context.Context, from, to *pod, at netip.AddrPort, echo bool) (c connection, err error) {
	flag := fmt.Sprintf("-echo=%t", echo)
	server, err := w.start(ctx, to, "", "/tools/netprobe", "sink", flag, fmt.Sprintf("-listen=:%d", at.Port()))
	if err != nil {
		return c, err
	}
	defer server.kill()
	if _, err := server.firstLine(ctx); err != nil {
		return c, err
	}
	before, err := w.busy(ctx, from, to)
	if err != nil {
		return c, err
	}
	printed, err := w.exec(ctx, from, "", "/tools/netprobe", "flood", flag, "-to="+at.String(), "-for="+floodTime.String())
	if err != nil {
		return c, err
	}
	read, err := server.wait(ctx)
	if err != nil {
		return c, err
	}
	after, err := w.busy(ctx, from, to)
	if err != nil {
		return c, err
	}
	if !echo { // the receiver's count: the sender's includes what is still in buffers
		_, printed, _ = strings.Cut(read, "\n")
	}
	var r struct{ Bytes, Micros int64 }
	if err := json.Unmarshal([]byte(printed), &r); err != nil || r.Bytes == 0 {
		return c, fmt.Errorf("netprobe printed %q: %w", printed, err)
	}
	if echo {
		return connection{roundTrip: float64(r.Micros) / 1000 / float64(r.Bytes)}, nil
	}
	bits := float64(r.Bytes) * 8
	return connection{throughput: true, mbits: bits / float64(r.Micros), processor: (after - before).Seconds() / (bits / 1e9)}, nil
}

// busy is how long the processors of the two pods' nodes have worked.
func (w *World) busy(ctx context.Context, pods ...*pod) (total time.Duration, err error) {
	for _, p := range pods {
		res, err := w.Lab.Node(p.Node).Run(ctx, "cat /proc/stat")
		if err != nil {
			return 0, err
		}
		d, err := proc.Busy(res.Stdout)
		if err != nil {
			return 0, fmt.Errorf("on %s: %w", p.Node, err)
		}
		total += d
	}
	return total, nil
}
