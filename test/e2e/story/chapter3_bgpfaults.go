// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/test/lab"
)

// apiServerAway is how long the API server does not answer.
const apiServerAway = 2 * time.Minute

// frrAlone kills frr-k8s on all nodes and stops the API server under traffic between sky's
// pods: FRR goes on with its sessions, and no ping is lost.
func (w *World) frrAlone(ctx context.Context, pods []*pod) (figures string, err error) {
	before, err := w.droppedSessions(ctx)
	if err != nil {
		return "", err
	}
	start := time.Now()
	sent, err := w.withoutLoss(ctx, pods[0], pods[len(pods)-1], func() error { return w.stopControl(ctx) })
	if err != nil {
		return "", fmt.Errorf("frr-k8s and the API server away: %w", err)
	}
	took := time.Since(start)
	after, err := w.droppedSessions(ctx)
	if err != nil {
		return "", err
	}
	if after != before {
		return "", fmt.Errorf("frr-k8s and the API server away: sessions ended %d times", after-before)
	}
	return fmt.Sprintf("frr-k8s and the API server away for %.0f s: %d pings, none lost", took.Seconds(), sent), nil
}

// killedWithoutOverlay kills the agents and the zone controllers, while sky's pods ping each other without an overlay: no
// ping is lost.
func (w *World) killedWithoutOverlay(ctx context.Context, pods []*pod) (figures string, err error) {
	patterns := []string{agentProcess, zoneRole}
	killed := 0
	sent, err := w.withoutLoss(ctx, pods[0], pods[len(pods)-1], func() error {
		for _, pattern := range patterns {
			n, err := w.killEverywhere(ctx, pattern, false)
			if err != nil {
				return err
			}
			killed += n
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("kill -9 of %s: %w", strings.Join(patterns, " and "), err)
	}
	return fmt.Sprintf("%d processes killed: %d pings, none lost", killed, sent), nil
}

// stopControl kills frr-k8s on all nodes, stops the API server for apiServerAway, and waits until all
// is as before.
func (w *World) stopControl(ctx context.Context) error {
	if err := w.Lab.KillFRRK8s(ctx); err != nil {
		return err
	}
	if err := w.Lab.Pause("kube-apiserver"); err != nil {
		return err
	}
	select {
	case <-time.After(apiServerAway):
	case <-ctx.Done():
	}
	reloads, err := w.frrReloads(ctx)
	err = errors.Join(err, w.Lab.Resume("kube-apiserver"), w.Lab.StartFRRK8s(context.WithoutCancel(ctx)))
	if err != nil {
		return err
	}
	if err := w.Lab.Wait(ctx, "the API server to answer", func(ctx context.Context) (bool, string, error) {
		_, err := w.Lab.Client().Discovery().ServerVersion()
		return err == nil, fmt.Sprint(err), nil
	}); err != nil {
		return err
	}
	// frr-k8s writes its configuration when it starts, and FRR reads it.
	if err := w.Lab.Wait(ctx, "FRR to reload its configuration on every node", func(ctx context.Context) (bool, string, error) {
		now, err := w.frrReloads(ctx)
		for node, last := range reloads {
			if when, result, _ := strings.Cut(now[node], " "); now[node] == last || result != "success" {
				return false, fmt.Sprintf("%s: %q at %s", node, result, when), err
			}
		}
		return true, "", err
	}); err != nil {
		return err
	}
	return w.noDifferences(ctx, "sky", network.VRFDefault)
}

// withoutLoss calls f while one pod pings the other in each IP family, and returns how many pings were
// sent. One that is lost is an error.
func (w *World) withoutLoss(ctx context.Context, from, to *pod, f func() error) (sent int, err error) {
	var watches []*lab.Process
	defer func() {
		for _, p := range watches {
			_ = p.Kill()
		}
	}()
	for _, a := range to.Primary {
		p, err := w.watchOnNode(ctx, from, a)
		if err != nil {
			return 0, err
		}
		watches = append(watches, p)
	}
	if err := f(); err != nil {
		return 0, err
	}
	for i, p := range watches {
		p.CloseStdin()
		res, err := p.Wait()
		if err != nil || res.ExitCode != 0 {
			return 0, fmt.Errorf("watch %s of %s: exit %d: %s: %w", to.Primary[i], to.Name, res.ExitCode, res.Stderr, err)
		}
		var r watched
		_, printed, _ := strings.Cut(res.Stdout, "\n")
		if err := json.Unmarshal([]byte(printed), &r); err != nil {
			return 0, fmt.Errorf("read netprobe's output %q: %w", res.Stdout, err)
		}
		if err := r.pingsError(); err != nil {
			return 0, fmt.Errorf("watch %s of %s: %w", to.Primary[i], to.Name, err)
		}
		if len(r.Lost) > 0 {
			return 0, fmt.Errorf("%d of %d pings to %s of %s lost: %v", len(r.Lost), r.Sent, to.Primary[i], to.Name, r.Lost)
		}
		sent += r.Sent
	}
	return sent, nil
}

// frrReloads returns when frr-k8s' reloader last reloaded each node's FRR, in seconds, and with
// which result.
func (w *World) frrReloads(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	for _, n := range w.Lab.Nodes() {
		res, err := n.Run(ctx, "cat "+lab.FRRStatus)
		if err != nil {
			return nil, err
		}
		if res.ExitCode != 0 {
			return nil, fmt.Errorf("node %s: FRR was never reloaded: %s", n.Name, res.Stderr)
		}
		out[n.Name] = res.Stdout
	}
	return out, nil
}

// networksComeAndGo creates and deletes a network a few times. FRR sees its VRF and its routes come and
// go, and must neither crash nor lose a session.
func (w *World) networksComeAndGo(ctx context.Context) error {
	before, err := w.droppedSessions(ctx)
	if err != nil {
		return err
	}
	vrfs := func(n *lab.Node) (int, error) {
		res, err := n.Run(ctx, "ip -o link show type vrf | wc -l")
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(res.Stdout))
	}
	wait := func(n *lab.Node, want int) error {
		return w.Lab.Wait(ctx, fmt.Sprintf("%s to have %d VRFs", n.Name, want), func(context.Context) (bool, string, error) {
			have, err := vrfs(n)
			return have == want, strconv.Itoa(have), err
		})
	}
	for range 3 {
		counts := map[string]int{}
		for _, n := range w.Lab.Nodes() {
			if counts[n.Name], err = vrfs(n); err != nil {
				return err
			}
		}
		if err := w.Lab.Apply(ctx, w.tenantManifest("brief", 36)); err != nil {
			return err
		}
		if err := each(w.Lab.Nodes(), func(n *lab.Node) error { return wait(n, counts[n.Name]+1) }); err != nil {
			return err
		}
		if err := w.deleteNamespaces(ctx, "brief"); err != nil {
			return err
		}
		if err := each(w.Lab.Nodes(), func(n *lab.Node) error { return wait(n, counts[n.Name]) }); err != nil {
			return err
		}
	}
	if err := each(w.Lab.Nodes(), func(n *lab.Node) error {
		return n.Script(ctx, "for f in /var/tmp/frr/*/crashlog; do [ ! -e $f ] || { echo $f; head -n 12 $f; exit 1; }; done")
	}); err != nil {
		return fmt.Errorf("a daemon of FRR has crashed: %w", err)
	}
	after, err := w.droppedSessions(ctx)
	if err == nil && after != before {
		err = fmt.Errorf("BGP sessions ended %d times while networks came and went", after-before)
	}
	return err
}

// watchOnNode starts pings from a pod to another, without the API server, and waits until they
// are answered.
func (w *World) watchOnNode(ctx context.Context, from *pod, to netip.Addr) (*lab.Process, error) {
	node := w.Lab.Node(from.Node)
	p, err := node.Start(ctx, fmt.Sprintf(`pid=$(pgrep -o -f '[s]erve --name %s/%s ') && exec nsenter -t "$pid" -n %s/netprobe watch --ping %s`,
		from.Namespace, from.Name, toolsDir, to))
	if err != nil {
		return nil, err
	}
	err = w.Lab.Wait(ctx, fmt.Sprintf("pings from %s to %s to be answered", from.Name, to), func(context.Context) (bool, string, error) {
		return strings.Contains(p.Stdout(), "flowing"), p.Stdout() + p.Stderr(), nil
	})
	if err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// droppedSessions returns how many BGP sessions have ended on all nodes since their FRR started.
func (w *World) droppedSessions(ctx context.Context) (total int, err error) {
	for _, n := range w.Lab.Nodes() {
		res, err := n.Run(ctx, `vtysh -c 'show bgp neighbors json' | sed -n 's/.*"connectionsDropped":\([0-9]*\).*/\1/p'`)
		if err != nil || res.ExitCode != 0 || strings.TrimSpace(res.Stdout) == "" {
			return 0, fmt.Errorf("read the sessions of %s: exit %d: %s: %w", n.Name, res.ExitCode, res.Stderr, err)
		}
		for _, f := range strings.Fields(res.Stdout) {
			count, err := strconv.Atoi(f)
			if err != nil {
				return 0, err
			}
			total += count
		}
	}
	return total, nil
}
