// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/lab"
)

// fixture is what checks need and share: it is set up once, by the first check
// that needs it, and deleted at the end.
type fixture struct {
	name  string
	needs []*fixture
	// late fixtures are set up when their first check runs, not at the start.
	late  bool
	setUp func(ctx context.Context, w *World) error
	// namespaces and cudns are what setUp creates, and its checks.
	namespaces, cudns []string
	// undo, if any, undoes what deleting those does not.
	undo func(ctx context.Context, w *World) error
}

var (
	fixturePlain      = &fixture{name: "pods of the cluster default network", setUp: setUpPlain, namespaces: []string{"plain"}}
	fixtureNetworks   = &fixture{name: "the networks of red and blue", setUp: setUpNetworks, namespaces: []string{"red-a", "red-b", "blue"}, cudns: []string{"red"}}
	fixtureTenants    = &fixture{name: "pods of red and blue", needs: []*fixture{fixtureNetworks}, setUp: setUpTenants}
	fixtureLayer2     = &fixture{name: "violet's network and pods", setUp: setUpLayer2, namespaces: []string{"violet"}}
	fixtureLayer2Host = &fixture{name: "a host-network pod of violet", needs: []*fixture{fixtureLayer2}, setUp: setUpLayer2Host}
	fixtureSecondary  = &fixture{name: "secondary networks and pods on them", setUp: setUpSecondary, namespaces: []string{"storage"}, cudns: []string{"quay", "dock"}, undo: undoSecondary}
	fixtureServices   = &fixture{name: "services", needs: []*fixture{fixturePlain, fixtureTenants, fixtureLayer2}, setUp: setUpServices}
	fixtureSCTP       = &fixture{name: "SCTP services", needs: []*fixture{fixturePlain, fixtureTenants, fixtureLayer2}, setUp: setUpSCTP}
	fixtureIngress    = &fixture{name: "pods of an ingress namespace", late: true, setUp: setUpIngress, namespaces: []string{lab.IngressNamespace}}
	fixtureRedHost    = &fixture{name: "a host-network pod of red", needs: []*fixture{fixtureTenants}, setUp: setUpRedHost}
	fixtureOthers     = &fixture{name: "networks of other topologies, bad networks and bad NADs", needs: []*fixture{fixtureNetworks}, setUp: setUpOthers,
		namespaces: []string{"inputs", "small", "routeless", "beside"}, cudns: []string{"floor", "small", "routeless", "beside"}}
	fixtureBusy      = &fixture{name: "a network to delete", late: true, setUp: setUpBusy, namespaces: []string{"indigo"}}
	fixtureBrief     = &fixture{name: "what a check with faults creates", late: true, setUp: func(context.Context, *World) error { return nil }, namespaces: []string{"brief"}}
	fixtureMultus    = &fixture{name: "Multus on a node", late: true, setUp: setUpMultus, namespaces: []string{"sand"}, undo: undoMultus}
	fixtureFRR       = &fixture{name: "FRR and frr-k8s", late: true, setUp: setUpFRR, undo: undoFRR}
	fixtureBGP       = &fixture{name: "a network without an overlay", needs: []*fixture{fixtureFRR}, late: true, setUp: setUpBGP, namespaces: []string{"sky"}, cudns: []string{"sky"}}
	fixtureSwift     = &fixture{name: "networks to compare, with Geneve and without an overlay", needs: []*fixture{fixtureFRR}, late: true, setUp: setUpThroughput, namespaces: []string{withGeneve, withoutOverlay}, cudns: []string{withoutOverlay}}
	fixtureLite      = &fixture{name: "networks in their own VRFs, with a router each", needs: []*fixture{fixtureFRR}, late: true, setUp: setUpLite, namespaces: []string{"lite1", "lite2", "lite3"}, cudns: []string{"lite1", "lite2", "lite3"}, undo: undoLite}
	fixtureMist      = &fixture{name: "a network whose routes a router outside passes on", needs: []*fixture{fixtureFRR}, late: true, setUp: setUpMist, namespaces: []string{"mist"}, cudns: []string{"mist"}, undo: undoMist}
	fixtureFerry     = &fixture{name: "a virtual machine's network", late: true, setUp: setUpFerry, namespaces: []string{"ferry"}, cudns: []string{"pier"}, undo: undoFerry}
	fixtureAdversary = &fixture{name: "the adversary's tenants", late: true, setUp: setUpAdversary, namespaces: []string{"green", "amber", "grey", "slate", "teal", lab.IngressNamespace}, cudns: []string{"berth", "hulk", "mole"}, undo: undoAdversary}

	fixtures = []*fixture{fixturePlain, fixtureNetworks, fixtureTenants, fixtureLayer2, fixtureLayer2Host, fixtureServices, fixtureSCTP, fixtureSecondary, fixtureIngress, fixtureRedHost, fixtureOthers, fixtureBusy, fixtureBrief, fixtureMultus, fixtureSwift, fixtureLite, fixtureMist, fixtureBGP, fixtureFRR, fixtureFerry, fixtureAdversary}
)

func needs(f ...*fixture) []*fixture { return f }

// setUp is a fixture's one set-up in a World.
type setUp struct {
	once sync.Once
	err  error
}

// need sets up the fixtures and those that they need, side by side, and waits
// until all are there.
func (w *World) need(ctx context.Context, list ...*fixture) error {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, f := range list {
		wg.Go(func() { errs[i] = w.needOne(ctx, f) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (w *World) needOne(ctx context.Context, f *fixture) error {
	w.mu.Lock()
	s := w.setUps[f]
	if s == nil {
		s = &setUp{}
		w.setUps[f] = s
	}
	w.mu.Unlock()
	s.once.Do(func() {
		if s.err = w.need(ctx, f.needs...); s.err != nil {
			return
		}
		start := time.Now()
		limited, cancel := context.WithTimeout(ctx, 15*time.Minute)
		defer cancel()
		if s.err = f.setUp(limited, w); s.err != nil {
			s.err = fmt.Errorf("set up %s: %w", f.name, s.err)
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		fmt.Fprintf(w.Out, "   %s (%.1f s)\n", f.name, time.Since(start).Seconds())
	})
	return s.err
}

// setUpFirst sets up all fixtures of the checks that are not late. Errors
// belong to the checks.
func (w *World) setUpFirst(ctx context.Context, checks []Check) {
	var first []*fixture
	for _, c := range checks {
		for _, f := range c.Needs {
			if !f.late && !slices.Contains(first, f) {
				first = append(first, f)
			}
		}
	}
	_ = w.need(ctx, first...)
}

// begin deletes what an interrupted run has left in the lab, and records every
// node's state.
func (w *World) begin(ctx context.Context) error {
	stale, err := w.existing(ctx)
	if err != nil {
		return err
	}
	if len(stale) > 0 {
		fmt.Fprintf(w.Out, "   deleting what an earlier run has left: %s\n", strings.Join(stale, ", "))
		if err := w.deleteFixtures(ctx, fixtures); err != nil {
			return err
		}
		w.baseline, err = w.steady(ctx, false)
		return err
	}
	w.baseline, err = w.states(ctx, false)
	return err
}

// existing are the namespaces and cluster networks of fixtures that the API has.
func (w *World) existing(ctx context.Context) ([]string, error) {
	var out []string
	namespaces, err := w.Lab.Client().CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	networks, err := w.dynamic.Resource(cudns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, f := range fixtures {
		for _, ns := range namespaces.Items {
			if slices.Contains(f.namespaces, ns.Name) {
				out = append(out, "namespace "+ns.Name)
			}
		}
		for _, n := range networks.Items {
			if slices.Contains(f.cudns, n.GetName()) {
				out = append(out, "ClusterUserDefinedNetwork "+n.GetName())
			}
		}
	}
	return out, nil
}

// deleteFixtures deletes what fixtures have created, all at once, and waits
// until the API has none of it.
func (w *World) deleteFixtures(ctx context.Context, list []*fixture) error {
	var namespaces, networks []string
	for _, f := range list {
		if f.undo != nil {
			if err := f.undo(ctx, w); err != nil {
				return err
			}
		}
		namespaces, networks = append(namespaces, f.namespaces...), append(networks, f.cudns...)
	}
	for _, name := range networks {
		if err := w.dynamic.Resource(cudns).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete ClusterUserDefinedNetwork %s: %w", name, err)
		}
	}
	if err := w.deleteNamespaces(ctx, namespaces...); err != nil {
		return err
	}
	return w.Lab.Wait(ctx, "the networks of the fixtures to be gone", func(ctx context.Context) (bool, string, error) {
		left, err := w.existing(ctx)
		return len(left) == 0, strings.Join(left, ", "), err
	})
}

// deleteNamespaces deletes namespaces and waits until they are gone. All their pods are deleted
// first: while a namespace has some, the namespace controller checks it again after twice the time.
func (w *World) deleteNamespaces(ctx context.Context, names ...string) error {
	namespaces := w.Lab.Client().CoreV1().Namespaces()
	for _, step := range []func(name string) error{
		func(name string) error { return w.stopPods(ctx, name) },
		func(name string) error { return w.podsGone(ctx, name, "") },
		func(name string) error {
			if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete namespace %s: %w", name, err)
			}
			return nil
		},
		func(name string) error {
			return w.Lab.Wait(ctx, "namespace "+name+" to be gone", func(ctx context.Context) (bool, string, error) {
				obj, err := namespaces.Get(ctx, name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return true, "", nil
				}
				if err != nil {
					return false, "", err
				}
				return false, fmt.Sprint(obj.Status.Conditions), nil
			})
		},
	} {
		if err := each(names, step); err != nil {
			return err
		}
	}
	return nil
}

// steady returns every node's state once it no longer changes: the agent removes what an earlier check's
// pods have left a moment after the API has none of them. ids is as in states.
func (w *World) steady(ctx context.Context, ids bool) (map[string]snapshot, error) {
	before, err := w.states(ctx, ids)
	if err != nil {
		return nil, err
	}
	return before, w.Lab.Wait(ctx, "the nodes' states to change no more", func(ctx context.Context) (bool, string, error) {
		now, err := w.states(ctx, ids)
		if err != nil {
			return false, "", err
		}
		var changes []string
		for node := range now {
			changes = append(changes, difference(before[node], now[node])...)
		}
		maps.Copy(before, now)
		return len(changes) == 0, strings.Join(changes, "\n"), nil
	})
}

// nothingRemains deletes all fixtures and compares every node with its state
// before the first.
func nothingRemains(ctx context.Context, w *World) (string, error) {
	var made []*fixture
	w.mu.Lock()
	for _, f := range fixtures {
		if w.setUps[f] != nil {
			made = append(made, f)
		}
	}
	w.setUps = map[*fixture]*setUp{}
	w.mu.Unlock()
	start := time.Now()
	// Before the deletion too: it leaves nothing to audit.
	if err := w.nothingCorrected(ctx); err != nil {
		return "", err
	}
	if err := w.deleteFixtures(ctx, made); err != nil {
		return "", err
	}
	remaining, err := w.dynamic.Resource(nads).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	if len(remaining.Items) > 0 {
		return "", fmt.Errorf("%d NADs remain", len(remaining.Items))
	}
	deleted := time.Since(start)
	if err := w.asBefore(ctx, w.baseline, false); err != nil {
		return "", err
	}
	if err := w.nothingCorrected(ctx); err != nil {
		return "", err
	}
	figures := []string{fmt.Sprintf("API objects gone after %.0f s", deleted.Seconds())}
	for _, n := range w.Lab.Nodes() {
		if err := w.baseline[n.Name].complete(); err != nil {
			return "", fmt.Errorf("the recorded state of node %s: %w", n.Name, err)
		}
		figures = append(figures, fmt.Sprintf("%s: %d items compared", n.Name, len(w.baseline[n.Name])))
	}
	return strings.Join(figures, ", "), nil
}
