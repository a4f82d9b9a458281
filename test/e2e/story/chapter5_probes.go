// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"bulkhead/test/lab"
)

func probeChecks() []Check {
	return []Check{
		{Chapter: 5, Title: "probes of red's pods pass", Phase: phaseProbes, Needs: needs(fixtureTenants), Run: func(ctx context.Context, w *World) (string, error) { return w.probesPass(ctx, "red") }},
		{Chapter: 5, Title: "probes of blue's pods pass", Phase: phaseProbes, Needs: needs(fixtureTenants), Run: func(ctx context.Context, w *World) (string, error) { return w.probesPass(ctx, "blue") }},
		{Chapter: 5, Title: "a process on the node that is not kubelet is refused at once, and counted", Phase: phaseRefusals, Needs: needs(fixturePlain, fixtureTenants), Run: othersRefused},
		{Chapter: 5, Title: "a raw socket on the node does not reach locked addresses", Phase: phaseIsolation, Needs: needs(fixturePlain, fixtureTenants), Run: rawRefused},
	}
}

// atOnce bounds how long a refusal may take: far below any connect timeout.
const atOnce = time.Second

func othersRefused(ctx context.Context, w *World) (string, error) {
	slowest, refused := int64(0), 0
	for _, p := range append(w.tenant("red"), w.tenant("blue")...) {
		node := w.Lab.Node(p.Node)
		before, err := counter(ctx, node, "probe-refused")
		if err != nil {
			return "", err
		}
		list := dropICMP(targets(p.Default...))
		// A refusal by timeout is slow at every try; one delayed by a busy machine is not.
		tried := 0
		for slow, try := list, 1; len(slow) > 0; try++ {
			got, err := nodeProbe(ctx, node, 5*time.Second, slow...)
			if err != nil {
				return "", err
			}
			tried += len(slow)
			slow = nil
			for _, g := range got {
				if g.OK {
					return "", fmt.Errorf("a process on %s reached %s of %s", node.Name, g.Target, p.Name)
				}
				if g.Millis <= atOnce.Milliseconds() {
					slowest = max(slowest, g.Millis)
					continue
				}
				if try == 3 {
					return "", fmt.Errorf("a process on %s was refused %s only after %d ms: %s", node.Name, g.Target, g.Millis, g.Detail)
				}
				slow = append(slow, g.Target)
			}
		}
		after, err := counter(ctx, node, "probe-refused")
		if err != nil {
			return "", err
		}
		if after < before+uint64(tried) {
			return "", fmt.Errorf("%d refusals on %s, counter went from %d to %d", tried, node.Name, before, after)
		}
		refused += tried
	}
	// Control: the same process reaches a pod of the default network.
	plain, err := w.pod("plain-1")
	if err != nil {
		return "", err
	}
	want := map[string]string{}
	for _, t := range dropICMP(targets(plain.Default...)) {
		want[t] = plain.Namespace + "/" + plain.Name
	}
	if _, err := reach(w.fromNode(ctx, w.Lab.Node(plain.Node)), want); err != nil {
		return "", fmt.Errorf("a process on the node does not reach a pod of the default network either: %w", err)
	}
	return fmt.Sprintf("%d refused, slowest %d ms", refused, slowest), nil
}

func rawRefused(ctx context.Context, w *World) (string, error) {
	pods := append(w.tenant("red"), w.tenant("blue")...)
	// Control: the same ping reaches a pod of the default network.
	plain, err := w.pod("plain-1")
	if err != nil {
		return "", err
	}
	want := map[string]string{}
	for _, t := range addrTargets("icmp", plain.Default, 0) {
		want[t] = plain.Namespace + "/" + plain.Name
	}
	if _, err := reach(w.fromNode(ctx, w.Lab.Node(plain.Node)), want); err != nil {
		return "", fmt.Errorf("a raw ping does not reach a pod of the default network either: %w", err)
	}
	return fmt.Sprintf("%d pods", len(pods)), each(pods, func(p *pod) error {
		node := w.Lab.Node(p.Node)
		got, err := nodeProbe(ctx, node, 3*time.Second, addrTargets("icmp", p.Default, 0)...)
		if err != nil {
			return err
		}
		for _, g := range got {
			if g.OK {
				return fmt.Errorf("a raw ping from %s reached %s of %s", node.Name, g.Target, p.Name)
			}
		}
		return nil
	})
}

func dropICMP(list []string) []string {
	var out []string
	for _, t := range list {
		if !strings.HasPrefix(t, "icmp:") {
			out = append(out, t)
		}
	}
	return out
}

// nodeProbe runs netprobe on the node itself, outside every pod.
func nodeProbe(ctx context.Context, node *lab.Node, timeout time.Duration, list ...string) ([]probe, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("no targets to probe from %s", node.Name)
	}
	res, err := node.Run(ctx, toolsDir+"/netprobe check --timeout "+timeout.String()+" "+strings.Join(list, " "))
	if err != nil {
		return nil, err
	}
	if res.ExitCode != 0 {
		return nil, fmt.Errorf("netprobe on %s: exit %d: %s", node.Name, res.ExitCode, res.Stderr)
	}
	return parseProbes(res.Stdout, len(list))
}

func parseProbes(out string, want int) ([]probe, error) {
	var probes []probe
	dec := json.NewDecoder(bytes.NewBufferString(out))
	for dec.More() {
		var p probe
		if err := dec.Decode(&p); err != nil {
			return nil, fmt.Errorf("read netprobe's output %q: %w", out, err)
		}
		probes = append(probes, p)
	}
	if len(probes) != want {
		return nil, fmt.Errorf("netprobe printed %d results, want %d: %q", len(probes), want, out)
	}
	return probes, nil
}

func addrTargets(proto string, addrs []netip.Addr, port uint16) []string {
	var out []string
	for _, a := range addrs {
		if proto == "icmp" {
			out = append(out, "icmp:"+a.String())
			continue
		}
		out = append(out, proto+":"+netip.AddrPortFrom(a, port).String())
	}
	return out
}
