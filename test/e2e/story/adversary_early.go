// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/adversary"
	"bulkhead/test/adversary/way"
)

// slateNamespace is labelled and has no network.
const slateNamespace = `
apiVersion: v1
kind: Namespace
metadata: {name: slate, labels: {k8s.ovn.org/primary-user-defined-network: ""}}
---`

// early attacks from host-network pods that the agent has not configured: one that
// starts while the agent is stopped, and one whose namespace has no network. The
// pinned programs know neither and must keep them out of all tenants' networks.
func (a *arena) early(ctx context.Context) (string, error) {
	agents, err := processes(ctx, a.near, "/usr/bin/agent")
	if err != nil || len(agents) == 0 {
		return "", errors.Join(fmt.Errorf("no agent on %s", a.near.Name), err)
	}
	agent := strings.Join(slices.Sorted(maps.Keys(agents)), " ")
	if err := a.script(ctx, "kill -STOP "+agent); err != nil {
		return "", err
	}
	stopped := true
	goOn := func() error {
		if !stopped {
			return nil
		}
		stopped = false
		return a.script(ctx, "kill -CONT "+agent)
	}
	defer func() { _ = goOn() }()
	early, manifest := arenaHost("amber", "amber-early", a.near.Name, "amber", "")
	slate, other := arenaHost("slate", "slate-host", a.near.Name, "slate", "")
	if err := a.w.Lab.Apply(ctx, slateNamespace+manifest+"---"+other); err != nil {
		return "", err
	}
	var players []player
	for _, p := range []*pod{early, slate} {
		if err := a.w.ready(ctx, p); err != nil {
			return "", err
		}
		for _, c := range []string{"root", "nobody"} {
			players = append(players, player{pod: p, container: c})
		}
	}
	m := newMatch(a.w)
	for _, v := range []string{"green-1", "green-2"} {
		if err := m.listen(ctx, player{pod: a.pods[v]}, way.Listener{Kind: "sniff"}); err != nil {
			return "", err
		}
	}
	ways := adversary.IntoNetwork(a.green, a.victim("green-1", false))
	tunnel := a.tunnelWays()
	controls := []player{a.admin(), {pod: a.pods["green-host"], container: "root"}}
	errs := []error{m.judge(ctx,
		part{"of unknown pods, into green", trials(players, ways), trials(controls, ways), []string{"green-1"}},
		part{"of unknown pods, to the overlay's port", trials(players, tunnel), trials(controls[:1], tunnel), []string{"green-2"}})}
	_, err = m.end(ctx)
	errs = append(errs, err)
	// Nor may they enter their own network: nothing confines them to it yet.
	own := dropICMP(targets(a.pods["amber-1"].Primary...))
	got, err := a.w.check(ctx, early, "nobody", probeTime, own...)
	errs = append(errs, err)
	if i := slices.IndexFunc(got, func(g probe) bool { return g.OK }); i >= 0 {
		errs = append(errs, fmt.Errorf("a pod that the agent does not know reached %s of its network", got[i].Target))
	}
	errs = append(errs, goOn())
	want := map[string]string{}
	for _, t := range own {
		want[t] = a.pods["amber-1"].Namespace + "/" + a.pods["amber-1"].Name
	}
	_, err = a.w.reach(ctx, early, "nobody", want)
	if err != nil {
		errs = append(errs, fmt.Errorf("once the agent goes on: %w", err))
	}
	errs = append(errs, a.w.Lab.Wait(ctx, "an event of the pod without a network", func(ctx context.Context) (bool, string, error) {
		events, err := a.w.Lab.Client().CoreV1().Events("slate").List(ctx, metav1.ListOptions{FieldSelector: "reason=NetworkUnknown,involvedObject.name=" + slate.Name})
		if err != nil {
			return false, "", err
		}
		return len(events.Items) > 0, strings.TrimSpace(a.w.podEvents(ctx, slate)), nil
	}))
	zero := int64(0)
	for _, p := range []*pod{early, slate} {
		errs = append(errs, a.w.Lab.Client().CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	}
	return fmt.Sprintf("%d attempts, none heard", len(players)*(len(ways)+len(tunnel))), errors.Join(errs...)
}
