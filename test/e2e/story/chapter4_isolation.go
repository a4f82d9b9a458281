// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

func isolationChecks() []Check {
	return []Check{
		{4, "red, blue and the default network do not reach each other, on either interface", isolationMatrix, 5 * time.Minute},
	}
}

// isolationMatrix tries every pair of networks, from a pod on each node to
// every pod of the other networks, on both interfaces, and prints what came
// of it.
func isolationMatrix(ctx context.Context, w *World) (string, error) {
	groups := map[string][]*pod{"red": w.tenant("red"), "blue": w.tenant("blue")}
	for _, p := range w.pods {
		if p.Tenant == "" && !p.HostNetwork {
			groups["default"] = append(groups["default"], p)
		}
	}
	order := []string{"red", "blue", "default"}
	rows := []string{fmt.Sprintf("%-10s %-10s %-10s %-9s %6s  %s", "FROM", "TO", "INTERFACE", "PROTOCOLS", "TRIED", "RESULT")}
	var leaks []string
	tried := 0
	for _, from := range order {
		for _, to := range order {
			for _, iface := range []string{"default", "primary"} {
				if from == to && (from == "default" || iface == "primary") || to == "default" && iface == "primary" {
					continue // the same network; that it works is another check's
				}
				list, want := isolationTargets(groups[to], iface)
				bad, n := 0, 0
				for _, source := range groups[from] {
					got, err := w.check(ctx, source, "", 2*time.Second, list...)
					if err != nil {
						return "", err
					}
					for i, g := range got {
						if strings.Contains(g.Target, source.Default[0].String()+":") || holds(source, g.Target) {
							continue // its own address
						}
						n++
						if w.leaks(source, g, want[i], groups) {
							bad++
							leaks = append(leaks, fmt.Sprintf("%s reached %s at %s (%q)", source.Name, want[i].Name, g.Target, g.Who))
						}
					}
				}
				tried += n
				verdict := "isolated"
				if bad > 0 {
					verdict = fmt.Sprintf("%d REACHED", bad)
				}
				rows = append(rows, fmt.Sprintf("%-10s %-10s %-10s %-9s %6d  %s", from, to, iface, "tcp udp icmp", n, verdict))
			}
		}
	}
	fmt.Fprintf(w.Out, "     %s\n", strings.Join(rows, "\n     "))
	if len(leaks) > 0 {
		return "", fmt.Errorf("%s", strings.Join(leaks, "\n"))
	}
	return fmt.Sprintf("%d pairs tried", tried), nil
}

func isolationTargets(pods []*pod, iface string) (list []string, want []*pod) {
	for _, p := range pods {
		addrs := p.Primary
		if iface == "default" {
			addrs = p.Default
		}
		for _, t := range targets(addrs...) {
			list, want = append(list, t), append(want, p)
		}
	}
	return list, want
}

func holds(p *pod, target string) bool {
	for _, a := range append(append([]netip.Addr{}, p.Default...), p.Primary...) {
		for _, t := range targets(a) {
			if t == target {
				return true
			}
		}
	}
	return false
}

// leaks tells whether an answer came from where none may come. An address
// that the source's own network holds too is answered by its own: then the
// server's name tells, and for ICMP, which names nobody, such an address says
// nothing.
func (w *World) leaks(source *pod, g probe, to *pod, groups map[string][]*pod) bool {
	if !g.OK {
		return false
	}
	if g.Who != "" {
		return g.Who == to.Namespace+"/"+to.Name
	}
	if strings.HasPrefix(g.Target, "icmp:") && source.Tenant != "" {
		for _, own := range groups[source.Tenant] {
			for _, a := range own.Primary {
				if g.Target == "icmp:"+a.String() {
					return false
				}
			}
		}
	}
	return true
}
