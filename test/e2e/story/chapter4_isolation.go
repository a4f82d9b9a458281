// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

func isolationChecks() []Check {
	return []Check{
		{Chapter: 4, Title: "red, blue, violet and the default network do not reach each other, on either interface", Phase: phaseIsolation, Needs: needs(fixturePlain, fixtureTenants, fixtureLayer2), Run: isolationMatrix, Timeout: 15 * time.Minute},
	}
}

// attempt is one line of the matrix: from whom, to whom, on which interface.
type attempt struct{ from, to, iface string }

// isolationMatrix has every pod try every pod of the other networks on both
// interfaces, and its own network's on the default one, and prints what came
// of it.
func isolationMatrix(ctx context.Context, w *World) (string, error) {
	groups := map[string][]*pod{"red": w.tenant("red"), "blue": w.tenant("blue"), "violet": w.tenant("violet"), "default": w.tenant("")}
	order := []string{"red", "blue", "violet", "default"}
	var lines []attempt
	var sources []*pod
	for _, from := range order {
		sources = append(sources, groups[from]...)
		for _, to := range order {
			for _, iface := range []string{"default", "primary"} {
				if from == to && (from == "default" || iface == "primary") || to == "default" && iface == "primary" {
					continue // the same network; that it works is another check's
				}
				lines = append(lines, attempt{from, to, iface})
			}
		}
	}
	var mu sync.Mutex
	tried, reached := map[attempt]int{}, map[attempt]int{}
	err := each(sources, func(source *pod) error {
		var list []string
		var to []*pod
		var of []attempt
		for _, line := range lines {
			if !slices.Contains(groups[line.from], source) {
				continue
			}
			targets, pods := isolationTargets(groups[line.to], line.iface)
			for i, t := range targets {
				if !holds(source, t) { // its own addresses it reaches, of course
					list, to, of = append(list, t), append(to, pods[i]), append(of, line)
				}
			}
		}
		got, err := w.attempt(ctx, source, "", list...)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		var found []error
		for i, g := range got {
			tried[of[i]]++
			if leaks(source, g, groups[of[i].from]) {
				reached[of[i]]++
				found = append(found, fmt.Errorf("%s reached %s at %s (%q)", source.Name, to[i].Name, g.Target, g.Who))
			}
		}
		return errors.Join(found...)
	})
	total := 0
	fmt.Fprintf(w.Out, "     %-8s %-8s %-10s %-13s %5s  %s\n", "FROM", "TO", "INTERFACE", "PROTOCOLS", "TRIED", "RESULT")
	for _, line := range lines {
		verdict := "isolated"
		switch {
		case tried[line] == 0:
			verdict = "NOT TRIED"
			err = errors.Join(err, fmt.Errorf("%v was not tried", line))
		case reached[line] > 0:
			verdict = fmt.Sprintf("%d REACHED", reached[line])
		}
		total += tried[line]
		fmt.Fprintf(w.Out, "     %-8s %-8s %-10s %-13s %5d  %s\n", line.from, line.to, line.iface, "tcp, udp, icmp", tried[line], verdict)
	}
	return fmt.Sprintf("%d attempts", total), err
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

// leaks reports whether the answer came from anybody but a pod of the source's own network, whose pods
// may have the same address: the server's name distinguishes them. A ping names no server, so it proves nothing for such an address.
func leaks(source *pod, g probe, network []*pod) bool {
	if !g.OK {
		return false
	}
	if g.Who != "" {
		return !slices.ContainsFunc(network, func(own *pod) bool { return g.Who == own.Namespace+"/"+own.Name })
	}
	if strings.HasPrefix(g.Target, "icmp:") && source.Tenant != "" {
		for _, own := range network {
			for _, a := range own.Primary {
				if g.Target == "icmp:"+a.String() {
					return false
				}
			}
		}
	}
	return true
}
