// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/test/lab"
	"bulkhead/test/sampling"
)

func faultPointChecks() []Check {
	return []Check{{Chapter: 8, Title: "the agent is killed after an operation while a network is created and deleted: nothing enters the network, and nothing remains", Phase: phaseFaults,
		Needs: needs(fixturePlain, fixtureTenants, fixtureBrief), Run: agentFaultPoints, Timeout: 40 * time.Minute, Group: groupFaultPoints}}
}

// The agent makes more system calls that change the world than these while the network,
// its pods and its host-network pod are created, and while they are deleted.
const (
	callsOfCreation = 240
	callsOfDeletion = 120
)

// agentFaultPoints injects a fault at a call that the seed and the node's gateway choose or,
// if everything runs, at one in each half of the calls: a round takes minutes.
func agentFaultPoints(ctx context.Context, w *World) (string, error) {
	local, err := w.localGateway(ctx)
	if err != nil {
		return "", err
	}
	seed, rounds := w.Seed+strconv.FormatBool(local), 1
	if w.Full {
		rounds = 2
	}
	var done []string
	for i := range rounds {
		// Each round has its own part of the calls.
		point := func(what string, of int) int {
			return 1 + i*of/rounds + sampling.Part(what+strconv.Itoa(i), seed, of/rounds)
		}
		create, remove := point("creation", callsOfCreation), point("deletion", callsOfDeletion)
		tries, err := w.createAndDelete(ctx, create, remove)
		if err != nil {
			return "", fmt.Errorf("killed after call %d of the creation, %d of the deletion: %w", create, remove, err)
		}
		done = append(done, fmt.Sprintf("%d and %d", create, remove))
		fmt.Fprintf(w.Out, "     killed after calls %d and %d, %d rounds of attempts\n", create, remove, tries)
	}
	return "after calls " + strings.Join(done, ", "), nil
}

// createAndDelete creates a namespace with a network and pods, and kills the agent after create of its calls. It
// then deletes the namespace, and kills the agent after remove calls. Meanwhile the node and pods of
// other networks try to reach the new pods. It returns how many rounds they tried.
func (w *World) createAndDelete(ctx context.Context, create, remove int) (rounds int, err error) {
	node, last := w.Lab.Nodes()[0], w.Lab.Nodes()[len(w.Lab.Nodes())-1]
	before, err := w.steady(ctx, false)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.deleteNamespaces(context.WithoutCancel(ctx), "brief"))
		}
	}()
	// Addresses of the network that its pods may get on the node.
	var candidates []string
	for _, subnet := range []string{"10.36.%d.%d", "fd36:0:0:%d::%d"} {
		for i := range len(w.Lab.Nodes()) {
			for host := 2; host <= 6; host++ {
				if a := netip.MustParseAddr(fmt.Sprintf(subnet, i, host)); w.has(a) {
					candidates = append(candidates, "tcp:"+netip.AddrPortFrom(a, 8080).String())
				}
			}
		}
	}
	pollers, err := w.startPollers(ctx, node, "brief/", candidates)
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, i := range pollers {
			i.kill()
		}
	}()
	pods := []*pod{{Namespace: "brief", Name: "brief-1", Node: node.Name, Tenant: "brief"}, {Namespace: "brief", Name: "brief-2", Node: last.Name, Tenant: "brief"}}
	host, manifest := hostNetworkPod("brief", "brief-host", node.Name, "brief", "")
	if err := w.killAgentAt(ctx, node, create, func() error {
		if err := w.Lab.Apply(ctx, w.tenantManifest("brief", 36)+"---"+manifest); err != nil {
			return err
		}
		return w.create(ctx, pods...)
	}); err != nil {
		return 0, fmt.Errorf("create: %w", err)
	}
	if err := w.ready(ctx, host); err != nil {
		return 0, err
	}
	w.addPods(host)
	// The network works, and its pods have some of the addresses that were tried.
	if _, err := w.mesh(ctx, pods); err != nil {
		return 0, err
	}
	want := map[string]string{}
	for _, a := range pods[0].Primary {
		t := "tcp:" + netip.AddrPortFrom(a, 8080).String()
		want[t] = "brief/brief-1"
		if !slices.Contains(candidates, t) {
			return 0, fmt.Errorf("nobody has tried %s: the list of addresses is wrong", t)
		}
	}
	if _, err := w.reach(ctx, host, "nobody", want); err != nil {
		return 0, fmt.Errorf("the host-network pod to its network: %w", err)
	}
	if err := w.killAgentAt(ctx, node, remove, func() error { return w.deleteNamespaces(ctx, "brief") }); err != nil {
		return 0, fmt.Errorf("delete: %w", err)
	}
	for who, i := range pollers {
		n, err := i.end(ctx)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", who, err)
		}
		rounds += n
	}
	return rounds, w.asBefore(ctx, before, false)
}

// killAgentAt has the node's agent killed after a number of its calls while do runs, and waits
// until it is back.
func (w *World) killAgentAt(ctx context.Context, n *lab.Node, after int, do func() error) error {
	const pattern = agentProcess
	old, err := processes(ctx, n, pattern)
	if err != nil || len(old) != 1 {
		return fmt.Errorf("agents on %s: %v, want one: %w", n.Name, old, err)
	}
	pid := slices.Collect(maps.Keys(old))[0]
	killer, err := n.Start(ctx, fmt.Sprintf("exec %s/killat -pid %s -after %d", toolsDir, pid, after))
	if err != nil {
		return err
	}
	defer killer.Kill()
	if err := w.Lab.Wait(ctx, "the agent of "+n.Name+" to be watched", func(context.Context) (bool, string, error) {
		return strings.HasPrefix(killer.Stdout(), "armed"), killer.Stdout() + killer.Stderr(), nil
	}); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	// The agent may still be at work on what was done.
	limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	gone := w.Lab.Wait(limited, "the agent of "+n.Name+" to be killed", func(ctx context.Context) (bool, string, error) {
		now, err := processes(ctx, n, pattern)
		_, alive := now[pid]
		return err == nil && !alive, "it runs", err
	})
	killer.CloseStdin()
	res, err := killer.Wait()
	if err != nil {
		return err
	}
	if gone != nil {
		return fmt.Errorf("%w: it made %s calls", gone, strings.TrimPrefix(strings.TrimSpace(res.Stdout), "armed\n"))
	}
	return backAgain(ctx, w, n, pattern, old)
}

// poller tries to reach servers until it is ended.
type poller struct {
	kill func()
	end  func(ctx context.Context) (rounds int, err error)
}

// startPollers has a process of the node's, a pod of the default network and one of red's on it
// try to reach servers of an owner.
func (w *World) startPollers(ctx context.Context, node *lab.Node, owner string, candidates []string) (map[string]poller, error) {
	command := []string{"netprobe", "poll", "-owner", owner}
	command = append(command, candidates...)
	out := map[string]poller{}
	p, err := node.Start(ctx, "exec "+toolsDir+"/"+strings.Join(command, " "))
	if err != nil {
		return nil, err
	}
	out[node.Name] = poller{kill: func() { _ = p.Kill() }, end: func(context.Context) (int, error) {
		p.CloseStdin()
		res, err := p.Wait()
		if err != nil || res.ExitCode != 0 {
			return 0, fmt.Errorf("exit %d: %s: %w", res.ExitCode, res.Stderr, err)
		}
		return pollRounds(res.Stdout)
	}}
	for _, tenant := range []string{"", "red"} {
		pods := w.tenant(tenant)
		i := slices.IndexFunc(pods, func(p *pod) bool { return p.Node == node.Name })
		if i < 0 {
			return out, fmt.Errorf("tenant %q has no pod on %s", tenant, node.Name)
		}
		command[0] = "/tools/netprobe"
		s, err := w.start(ctx, pods[i], "", command...)
		if err != nil {
			return out, err
		}
		out[pods[i].Name] = poller{kill: s.kill, end: func(ctx context.Context) (int, error) {
			text, err := s.wait(ctx)
			if err != nil {
				return 0, err
			}
			return pollRounds(text)
		}}
	}
	return out, nil
}

// pollRounds reads what netprobe poll has printed.
func pollRounds(text string) (rounds int, err error) {
	if i := strings.Index(text, "answered"); i >= 0 {
		return 0, errors.New(strings.TrimSpace(text[i:]))
	}
	_, count, _ := strings.Cut(text, "rounds ")
	rounds, err = strconv.Atoi(strings.TrimSpace(count))
	if err != nil || rounds < 3 {
		return 0, fmt.Errorf("netprobe printed %q, want at least 3 rounds", text)
	}
	return rounds, nil
}
