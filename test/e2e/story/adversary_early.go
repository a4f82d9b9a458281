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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
	"bulkhead/test/lab"
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
func (a *attackSetup) early(ctx context.Context) (string, error) {
	early, manifest := hostNetworkPod("amber", "amber-early", a.near.Name, "amber", serverContainer("amber-early", earlyPort))
	slate, other := hostNetworkPod("slate", "slate-host", a.near.Name, "slate", "")
	ways := adversary.IntoNetwork(a.green, a.victim("green-1", false))
	tunnel := a.tunnelWays()
	own := dropICMP(targets(a.pods["amber-1"].Primary...))
	outside := append(addrTargets("tcp", addrs(a.near), earlyPort), addrTargets("udp", addrs(a.near), earlyPort)...)
	attempts := 0
	err := a.withoutAgent(ctx, func() error {
		if err := a.w.Lab.Apply(ctx, slateNamespace+manifest+"---"+other); err != nil {
			return err
		}
		var actors []actor
		for _, p := range []*pod{early, slate} {
			if err := a.w.ready(ctx, p); err != nil {
				return err
			}
			for _, c := range []string{"root", "nobody"} {
				actors = append(actors, actor{pod: p, container: c})
			}
		}
		m := newRound(a.w)
		for _, v := range []string{"green-1", "green-2"} {
			if err := m.listen(ctx, actor{pod: a.pods[v]}, attack.Listener{Kind: "sniff"}); err != nil {
				return err
			}
		}
		controls := []actor{a.admin(), a.greenHost()}
		errs := []error{m.verify(ctx,
			part{what: "of unknown pods, into green", attacks: trials(actors, ways), controls: trials(controls, ways), victims: []string{"green-1"}},
			part{what: "of unknown pods, to the overlay's port", attacks: trials(actors, tunnel), controls: trials(controls[:1], tunnel), victims: []string{"green-2"}})}
		attempts = len(actors) * (len(ways) + len(tunnel))
		_, err := m.end(ctx)
		errs = append(errs, err)
		// Nor may they enter their own network: nothing confines them to it yet.
		got, err := a.w.check(ctx, early, "nobody", probeTime, own...)
		errs = append(errs, err)
		if i := slices.IndexFunc(got, func(g probe) bool { return g.OK }); i >= 0 {
			errs = append(errs, fmt.Errorf("a pod that the agent does not know reached %s of its network", got[i].Target))
		}
		// Until the agent continues, its server listens at the node's address, like any host-network pod's.
		answers := map[string]string{}
		for _, t := range outside {
			answers[t] = early.Name
		}
		_, err = reach(func(list []string) ([]probe, error) { return nodeProbe(ctx, a.near, probeTime, list...) }, answers)
		return errors.Join(append(errs, err)...)
	})
	errs := []error{err}
	want := map[string]string{}
	for _, t := range own {
		want[t] = a.pods["amber-1"].Namespace + "/" + a.pods["amber-1"].Name
	}
	_, err = a.w.reach(ctx, early, "nobody", want)
	if err != nil {
		errs = append(errs, fmt.Errorf("once the agent continues: %w", err))
	}
	errs = append(errs, a.earlyServerConfined(ctx, outside))
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
	return fmt.Sprintf("%d attempts, none received", attempts), errors.Join(errs...)
}

// withoutAgent has the near node's agent stopped while run runs. kubelet would replace an agent that does
// not answer for a minute and a half, which run may take: the zone controller's /healthz answers in its place.
func (a *attackSetup) withoutAgent(ctx context.Context, run func() error) error {
	const pattern = agentProcess
	agents, err := processes(ctx, a.near, pattern)
	if err != nil || len(agents) == 0 {
		return errors.Join(fmt.Errorf("no agent on %s", a.near.Name), err)
	}
	after := context.WithoutCancel(ctx)
	pids := strings.Join(slices.Sorted(maps.Keys(agents)), " ")
	err = a.script(ctx, fmt.Sprintf("nft 'add table inet %[1]s; add chain inet %[1]s output { type nat hook output priority -100; }; add rule inet %[1]s output ip daddr 127.0.0.1 tcp dport %[2]d dnat ip to 127.0.0.1:%[3]d' && kill -STOP %[4]s",
		standInTable, agentPort, zonePort, pids))
	if err == nil {
		err = run()
	}
	left, listErr := processes(after, a.near, pattern)
	if listErr == nil && !maps.Equal(left, agents) {
		listErr = fmt.Errorf("the stopped agent on %s has been replaced: what was found says nothing", a.near.Name)
	}
	return errors.Join(err, listErr, a.script(after, fmt.Sprintf("kill -CONT %s; nft delete table inet %s", pids, standInTable)))
}

// The ports of /healthz in deploy/install.yaml, and the nftables table that redirects one to the other.
const (
	agentPort    = 9409
	zonePort     = 9410
	standInTable = "story"
)

// earlyServerConfined returns an error unless the server of the pod amber-early, which is
// older than its confinement, answers its own network, and no longer the node.
func (a *attackSetup) earlyServerConfined(ctx context.Context, outside []string) error {
	peer := a.pods["amber-1"]
	answers := map[string]string{}
	for _, addr := range peer.Primary {
		bits := 24
		if addr.Is6() {
			bits = 64
		}
		own := []netip.Addr{network.Management(netip.PrefixFrom(addr, bits).Masked()).Addr()}
		for _, t := range append(addrTargets("tcp", own, earlyPort), addrTargets("udp", own, earlyPort)...) {
			answers[t] = "amber-early"
		}
	}
	if _, err := a.w.reach(ctx, peer, "", answers); err != nil {
		return fmt.Errorf("the server of a pod that the agent came to know late: %w", err)
	}
	for _, n := range []*lab.Node{a.near, a.far} {
		got, err := nodeProbe(ctx, n, 2*time.Second, outside...)
		if err != nil {
			return err
		}
		for _, g := range got {
			if g.OK {
				return fmt.Errorf("the server of a pod that the agent came to know late answers node %s at %s", n.Name, g.Target)
			}
		}
	}
	return nil
}
