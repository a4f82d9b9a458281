// SPDX-License-Identifier: Apache-2.0

// Package story checks what Bulkhead promises against a running lab. `make demo`
// prints the checks as a table, `go test ./test/e2e` runs them as tests. A check
// names the fixtures that it needs, so that each runs alone as well as with all
// others.
package story

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"

	"bulkhead/test/lab"
	"bulkhead/test/sampling"
)

// Check is one line of the story.
type Check struct {
	Chapter int
	Title   string
	Phase   Phase
	Needs   []*fixture
	Run     func(ctx context.Context, w *World) (figures string, err error)
	// Timeout bounds the check without its fixtures; 0 is twelve minutes.
	Timeout time.Duration
	// Group, if not nil, is the checks with which it is in a sample or not. All others
	// are in every sample.
	Group *group
}

// Name is how the check is selected and printed.
func (c Check) Name() string { return fmt.Sprintf("%d. %s", c.Chapter, c.Title) }

// Phase says when a check runs and beside which others.
type Phase int

// The phases in their order. Checks of a phase run side by side, unless the
// phase is serial.
const (
	phaseObjects   Phase = iota // reads API objects and what a node shows
	phaseReach                  // pods reach each other
	phaseProbes                 // kubelet's probes pass, on nodes that do nothing else
	phaseIsolation              // networks do not reach each other
	phaseRefusals               // serial: measures how fast refusals are
	phaseHost                   // host-network pods
	phaseFaults                 // serial: kills processes, measures times
	phaseDeletion               // serial
	phaseAdversary              // serial: the adversary's checks stop agents and remove mechanisms
	phases
)

func (p Phase) serial() bool {
	return p == phaseRefusals || p >= phaseFaults
}

// Result is how a check went.
type Result struct {
	Check   Check
	Figures string
	Err     error
	Took    time.Duration
}

// Checks are all checks, by chapter, without the benchmarks.
func Checks() []Check {
	var all []Check
	for _, chapter := range [][]Check{
		clusterChecks(), networkChecks(), reachChecks(), layer2Checks(), secondaryChecks(), multusChecks(), migrationChecks(), serviceChecks(), ingressChecks(), sctpChecks(), gatewayChecks(), healthChecks(), hostPortChecks(), bgpChecks(), isolationChecks(), probeChecks(), openPortChecks(),
		hostNetworkChecks(), hostServiceChecks(), adversaryChecks(), inspectChecks(), kubectlChecks(), badInputChecks(), faultChecks(), faultPointChecks(), masqueradeChecks(), removalChecks(),
	} {
		all = append(all, chapter...)
	}
	return all
}

// World is what checks share: the lab and its fixtures. Each check has a copy with
// an Out of its own.
type World struct {
	Lab      *lab.Lab
	Out      io.Writer // progress and tables
	Families []string  // "ipv4", "ipv6"
	// Full runs everything; otherwise a part chosen by Seed runs.
	Full bool
	Seed string
	// LabEnds: the lab is deleted after the story, so that an interrupted one leaves
	// there what it has created.
	LabEnds bool

	dynamic dynamic.Interface
	*shared
}

type shared struct {
	mu        sync.Mutex
	pods      map[string]*pod // by name
	setUps    map[*fixture]*setUp
	baseline  map[string]snapshot // by node, before the first fixture
	adversary *attackSetup
	probers   map[proberOf]*prober
	asking    chan struct{} // see inTurn
}

// NewWorld connects to the lab and puts the story's tools on its nodes.
func NewWorld(ctx context.Context, l *lab.Lab, out io.Writer) (*World, error) {
	d, err := dynamic.NewForConfig(l.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("make a client of the lab's API server: %w", err)
	}
	w := &World{Lab: l, Out: out, Families: l.Families(), Full: sampling.Full(), Seed: sampling.Seed(ctx), dynamic: d,
		shared: &shared{pods: map[string]*pod{}, setUps: map[*fixture]*setUp{}, probers: map[proberOf]*prober{}, asking: make(chan struct{}, sideBySide)}}
	return w, w.putTools(ctx)
}

// pod is a pod that a fixture has created. The error is a bug in a check that does
// not need the fixture.
func (w *World) pod(name string) (*pod, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[name]
	if p == nil {
		return nil, fmt.Errorf("no fixture of this check creates pod %s", name)
	}
	return p, nil
}

// podsNamed returns several pods of the fixtures, as pod does.
func (w *World) podsNamed(names ...string) ([]*pod, error) {
	out := make([]*pod, len(names))
	for i, name := range names {
		var err error
		if out[i], err = w.pod(name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (w *World) addPods(pods ...*pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range pods {
		w.pods[p.Name] = p
	}
}

// Table prints results, one line per check, and reports whether all passed.
func Table(out io.Writer, results []Result) bool {
	ok := true
	fmt.Fprintf(out, "\n%-4s %-78s %-6s %7s  %s\n", "", "CHECK", "RESULT", "TIME", "FIGURES")
	for _, r := range results {
		verdict := "PASS"
		if r.Err != nil {
			verdict, ok = "FAIL", false
		}
		fmt.Fprintf(out, "%-4d %-78s %-6s %6.1fs  %s\n", r.Check.Chapter, r.Check.Title, verdict, r.Took.Seconds(), r.Figures)
		if r.Err != nil {
			fmt.Fprintf(out, "     %s\n", strings.ReplaceAll(r.Err.Error(), "\n", "\n     "))
		}
	}
	return ok
}

// atATime is how many commands run in the lab at once: one per emulated processor.
const atATime = 4

// each runs f for every item, a few at a time, and joins the errors.
func each[T any](items []T, f func(T) error) error {
	errs := make([]error, len(items))
	slots := make(chan struct{}, atATime)
	var wg sync.WaitGroup
	for i, item := range items {
		wg.Add(1)
		slots <- struct{}{}
		go func() {
			defer wg.Done()
			errs[i] = f(item)
			<-slots
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}
