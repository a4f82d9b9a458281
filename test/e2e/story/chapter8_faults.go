// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
	"bulkhead/test/lab"
)

func faultChecks() []Check {
	kill := func(title, pattern string, anywhere bool, g *group) Check {
		return Check{Chapter: 8, Title: "kill -9 of " + title + ": no ping at 50/s lost, no stream broken, nothing recreated", Phase: phaseFaults, Needs: needs(fixtureTenants), Run: func(ctx context.Context, w *World) (string, error) {
			return killUnderTraffic(ctx, w, pattern, anywhere)
		}, Timeout: 10 * time.Minute, Group: g}
	}
	return []Check{
		kill("the agent", agentProcess, false, groupKillAgent),
		kill("the zone controller", zoneRole, false, groupKillZone),
		kill("the cluster controller", clusterRole, true, groupKillCluster),
	}
}

// What is in the command lines of the product's processes.
const (
	agentProcess = "/usr/bin/agent"
	zoneRole     = "--role=zone"
	clusterRole  = "--role=cluster"
)

// killUnderTraffic kills a process on every node at once while red's pods talk
// across nodes and to the outside, waits until it is back and ready, and compares the nodes' states.
func killUnderTraffic(ctx context.Context, w *World, pattern string, anywhere bool) (string, error) {
	pods, err := w.podsNamed("red-a-1", "red-a-2")
	if err != nil {
		return "", err
	}
	from, to := pods[0], pods[1]
	nodes := w.Lab.Nodes()
	before, err := w.steady(ctx, true)
	if err != nil {
		return "", err
	}
	if err := w.nothingCorrected(ctx); err != nil {
		return "", err
	}
	leader, err := w.leader(ctx)
	if err != nil {
		return "", err
	}
	const listenPort = 8073
	outside := w.Lab.External()
	server, err := outside.Start(ctx, fmt.Sprintf("exec %s/netprobe serve --name %s --listen :%d", toolsDir, outside.Name, listenPort))
	if err != nil {
		return "", err
	}
	defer server.Kill()
	// Between the pods in each IP family, and to a server outside the cluster: through the node's gateway,
	// routes, nft and the external bridge.
	destinations := map[string]netip.AddrPort{}
	for _, a := range to.Primary {
		destinations["red-a-2 "+a.String()] = netip.AddrPortFrom(a, 8080)
	}
	a, ok := network.FirstOfFamily(addrs(outside), from.Primary[0])
	if !ok {
		return "", fmt.Errorf("the external machine has no address of the IP family of %s", from.Primary[0])
	}
	destinations["the external machine"] = netip.AddrPortFrom(a, listenPort)
	traffic := map[string]*watch{}
	for name, at := range destinations {
		// The kill waits for the first answers: the first packets of a flow are
		// delayed by the nodes' lookups, whatever is killed.
		watch, err := w.watch(ctx, from, "--ping", at.Addr().String(), "--tcp", at.String())
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		defer watch.kill()
		traffic[name] = watch
	}
	killed, err := w.killEverywhere(ctx, pattern, anywhere)
	if err != nil {
		return "", err
	}
	if pattern == clusterRole {
		if err := w.awaitNewLeader(ctx, leader, before); err != nil {
			return "", err
		}
	}
	figures := fmt.Sprintf("%d killed", killed)
	for _, name := range slices.Sorted(maps.Keys(traffic)) {
		r, err := traffic[name].result(ctx)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		line := fmt.Sprintf("%s: %d pings, %d lost, slowest %d ms, %d stream lines, longest gap %d ms", name, r.Sent, len(r.Lost), r.SlowestMillis, r.StreamLines, r.StreamLongestGapMillis)
		if err := r.pingsError(); err != nil || len(r.Lost) > 0 {
			return "", fmt.Errorf("%s: lost %v, %w", line, r.Lost, err)
		}
		if r.StreamError != "" || r.StreamLines < 100 {
			return "", fmt.Errorf("stream: %s: %s", line, r.StreamError)
		}
		figures += "; " + line
	}
	after, err := w.states(ctx, true)
	if err != nil {
		return "", err
	}
	for _, n := range nodes {
		if d := difference(before[n.Name], after[n.Name]); len(d) > 0 {
			return "", fmt.Errorf("node %s changed:\n%s", n.Name, strings.Join(d, "\n"))
		}
	}
	return figures, nil
}

// killEverywhere kills the processes whose command lines match on all nodes at once, waits until they are back and
// ready, and returns how many there were. With anywhere, some nodes may have none.
func (w *World) killEverywhere(ctx context.Context, pattern string, anywhere bool) (int, error) {
	var killed atomic.Int32
	err := each(w.Lab.Nodes(), func(n *lab.Node) error {
		old, err := processes(ctx, n, pattern)
		if err != nil {
			return err
		}
		if len(old) == 0 && anywhere {
			return nil // this one runs where the scheduler put it
		}
		if len(old) == 0 {
			return fmt.Errorf("node %s: no process %s", n.Name, pattern)
		}
		if _, err := n.Run(ctx, "kill -9 "+strings.Join(slices.Sorted(maps.Keys(old)), " ")); err != nil {
			return err
		}
		killed.Add(int32(len(old)))
		return backAgain(ctx, w, n, pattern, old)
	})
	if err == nil && killed.Load() == 0 {
		err = fmt.Errorf("no process %s on any node", pattern)
	}
	return int(killed.Load()), err
}

// processes are those on the node whose command line matches: their command
// lines by process id.
func processes(ctx context.Context, n *lab.Node, pattern string) (map[string]string, error) {
	// The brackets keep the shell that runs this from finding itself.
	command := fmt.Sprintf("pgrep -a -f -- '%s[%s]%s' || true", pattern[:1], pattern[1:2], pattern[2:])
	res, err := n.Run(ctx, command)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(res.Stdout) {
		pid, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		out[pid] = args
	}
	return out, nil
}

// backAgain waits until as many processes run again, each under a new process
// id and ready.
func backAgain(ctx context.Context, w *World, n *lab.Node, pattern string, old map[string]string) error {
	return w.Lab.Wait(ctx, fmt.Sprintf("%s to be back on %s", pattern, n.Name), func(ctx context.Context) (bool, string, error) {
		now, err := processes(ctx, n, pattern)
		if err != nil || len(now) != len(old) {
			return false, fmt.Sprintf("processes %v", now), err
		}
		for pid, args := range now {
			if _, same := old[pid]; same {
				return false, "process " + pid + " still runs", nil
			}
			url := "http://127.0.0.1:" + healthPort(args) + "/readyz"
			if pattern == clusterRole {
				url = "http://127.0.0.1:" + healthPort(args) + "/healthz" // a standby is healthy, and only the leader ready
			}
			res, err := n.Run(ctx, "curl -s -o /dev/null -w '%{http_code}' --max-time 2 "+url+" || true")
			if err != nil || res.Stdout != "200" {
				return false, url + " " + res.Stdout, err
			}
		}
		return true, "", nil
	})
}

// leader returns the cluster controller that holds the lease.
func (w *World) leader(ctx context.Context) (string, error) {
	lease, err := w.Lab.Client().CoordinationV1().Leases("bulkhead-system").Get(ctx, "bulkhead-cluster", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", fmt.Errorf("read which cluster controller leads: %w (%+v)", err, lease)
	}
	return *lease.Spec.HolderIdentity, nil
}

// awaitNewLeader waits until another cluster controller leads and has created and deleted a network, and
// then until the nodes are as before.
func (w *World) awaitNewLeader(ctx context.Context, former string, before map[string]snapshot) (err error) {
	if err := w.Lab.Wait(ctx, "another cluster controller to lead", func(ctx context.Context) (bool, string, error) {
		now, err := w.leader(ctx)
		return now != former, now, err
	}); err != nil {
		return err
	}
	const namespace = "newleader"
	defer func() {
		err = errors.Join(err, w.deleteNamespaces(context.WithoutCancel(ctx), namespace))
		if err == nil {
			err = w.asBefore(ctx, before, true)
		}
	}()
	if err := w.Lab.Apply(ctx, w.tenantManifest(namespace, 34)); err != nil {
		return err
	}
	return w.conditions(ctx, udns, namespace, "net", "True")
}

// healthPort is the port of a process's health endpoint, by its --listen flag.
func healthPort(args string) string {
	_, listen, _ := strings.Cut(args, "--listen=")
	address, _, _ := strings.Cut(listen, " ")
	return address[strings.LastIndex(address, ":")+1:]
}
