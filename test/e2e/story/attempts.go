// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bulkhead/test/lab"
)

// attemptTime is how long a target that should not answer has to do so, if the controls answer in that
// time. slowestAttempt is the longest time that they get.
const attemptTime, slowestAttempt = 3 * time.Second, 40 * time.Second

// tryAt tries targets, each for at most that time.
type tryAt func(timeout time.Duration, list []string) ([]probe, error)

// attempts has a source try targets that should not answer, and returns a result per target: that of an answer, if there
// was one in any try. On a busy node a missing answer proves nothing. So a few targets at a time are tried together with
// controls, which must answer in the same time, and tried again with more time until they do. controls has the name of
// the server that must answer, by target; "" is any.
func (w *World) attempts(try tryAt, list []string, controls map[string]string) ([]probe, error) {
	const fewTargets = 16
	if len(list) == 0 || len(controls) == 0 {
		return nil, fmt.Errorf("%d targets to try, %d controls", len(list), len(controls))
	}
	results, timeout := map[string]probe{}, attemptTime
	for few := range slices.Chunk(list, fewTargets) {
		all := slices.Clone(few)
		for t := range controls {
			if !slices.Contains(all, t) {
				all = append(all, t)
			}
		}
		for deadline := time.Now().Add(patience); ; timeout = min(2*timeout, slowestAttempt) {
			w.asking <- struct{}{} // as in inTurn
			got, err := try(timeout, all)
			<-w.asking
			if err != nil {
				return nil, err
			}
			var silent []string
			for _, g := range got {
				if old, tried := results[g.Target]; !tried || g.OK && !old.OK {
					results[g.Target] = g
				}
				if who, control := controls[g.Target]; control && (!g.OK || who != "" && g.Who != who) {
					silent = append(silent, fmt.Sprintf("%s (%q): %q %s", g.Target, who, g.Who, g.Detail))
				}
			}
			if len(silent) == 0 {
				break
			}
			if time.Now().After(deadline) {
				return nil, fmt.Errorf("the attempts prove nothing: within %s these controls did not answer: %s", patience, strings.Join(silent, ", "))
			}
		}
	}
	out := make([]probe, len(list))
	for i, t := range list {
		out[i] = results[t]
	}
	return out, nil
}

// attempt is attempts from the pod's container, with another pod of its network as the control.
func (w *World) attempt(ctx context.Context, from *pod, container string, list ...string) ([]probe, error) {
	controls, err := w.controls(from.Tenant, from)
	if err != nil {
		return nil, err
	}
	got, err := w.attempts(w.tryFrom(ctx, from, container), list, controls)
	if err != nil {
		return nil, fmt.Errorf("from %s/%s: %w", from.Namespace, from.Name, err)
	}
	return got, nil
}

// nodeAttempt is attempts from a process of the node, with a pod of the default network as the control.
func (w *World) nodeAttempt(ctx context.Context, n *lab.Node, list ...string) ([]probe, error) {
	controls, err := w.controls("", &pod{Node: n.Name})
	if err != nil {
		return nil, err
	}
	got, err := w.attempts(tryFromNode(ctx, n), list, controls)
	if err != nil {
		return nil, fmt.Errorf("from %s: %w", n.Name, err)
	}
	return got, nil
}

// tryFrom tries targets from the pod's container.
func (w *World) tryFrom(ctx context.Context, from *pod, container string) tryAt {
	return func(timeout time.Duration, list []string) ([]probe, error) {
		return w.check(ctx, from, container, timeout, list...)
	}
}

// tryFromNode tries targets from a process of the node.
func tryFromNode(ctx context.Context, n *lab.Node) tryAt {
	return func(timeout time.Duration, list []string) ([]probe, error) {
		return nodeProbe(ctx, n, timeout, list...)
	}
}

// controls are the servers of another pod of a tenant, on another node if there is one.
func (w *World) controls(tenant string, besides *pod) (map[string]string, error) {
	pods := slices.DeleteFunc(w.tenant(tenant), func(p *pod) bool {
		return p.Namespace == besides.Namespace && p.Name == besides.Name || len(p.Primary) == 0
	})
	if len(pods) == 0 {
		return nil, fmt.Errorf("the network of %q has no pod besides %s/%s that answers it", tenant, besides.Namespace, besides.Name)
	}
	of := pods[max(0, slices.IndexFunc(pods, func(p *pod) bool { return p.Node != besides.Node }))]
	return serversOf(of, of.Primary), nil
}

// serversOf are a pod's TCP and UDP servers at its addresses, with its name.
func serversOf(p *pod, addresses []netip.Addr) map[string]string {
	out := map[string]string{}
	for _, t := range dropICMP(targets(addresses...)) {
		out[t] = p.Namespace + "/" + p.Name
	}
	return out
}

// anyOf are targets that anybody may answer.
func anyOf(targets []string) map[string]string {
	out := map[string]string{}
	for _, t := range targets {
		out[t] = ""
	}
	return out
}
