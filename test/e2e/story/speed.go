// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// benchmarks judge speed, which depends on what else the machine does: no story has them.
func benchmarks() []Check {
	return []Check{
		{Chapter: 8, Title: "pods of a tenant and of the default network become ready: at most 2 ×", Phase: phaseFaults, Needs: needs(fixturePlain, fixtureTenants), Run: podReadyRatio, Timeout: 10 * time.Minute},
		{Chapter: 8, Title: "throughput of pods on two nodes without an overlay: at least 1.5 × that with Geneve", Phase: phaseFaults, Needs: needs(fixtureSwift), Run: noOverlayRatio, Timeout: 20 * time.Minute},
	}
}

// podReadyRatio creates pods of both kinds on one node, in turn, and compares
// the medians from creation to Ready. It deletes them at the end: a deletion would
// slow down the pod that is created next.
func podReadyRatio(ctx context.Context, w *World) (figures string, err error) {
	const rounds = 3
	var created []*pod
	defer func() {
		err = errors.Join(err, each(created, func(p *pod) error { return w.deletePod(ctx, p) }))
	}()
	took := map[string][]time.Duration{}
	for i := range rounds {
		for _, namespace := range []string{"plain", "red-a"} {
			p := &pod{Namespace: namespace, Name: fmt.Sprintf("speed-%d", i), Node: w.Lab.Nodes()[0].Name}
			if namespace == "red-a" {
				p.Tenant = "red"
			}
			start := time.Now()
			if err := w.Lab.Apply(ctx, p.spec()); err != nil {
				return "", err
			}
			created = append(created, p)
			if err := w.ready(ctx, p); err != nil {
				return "", err
			}
			took[namespace] = append(took[namespace], time.Since(start))
		}
	}
	median := func(namespace string) time.Duration {
		slices.Sort(took[namespace])
		return took[namespace][rounds/2]
	}
	plain, red := median("plain"), median("red-a")
	figures = fmt.Sprintf("default %.1f s, tenant %.1f s, ratio %.2f", plain.Seconds(), red.Seconds(), red.Seconds()/plain.Seconds())
	if red > 2*plain {
		return "", fmt.Errorf("%s: missed, want at most 2", figures)
	}
	return figures + ": met", nil
}
