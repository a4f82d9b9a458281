// SPDX-License-Identifier: Apache-2.0

// Package e2e runs the story's checks as tests, in a lab of its own.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"bulkhead/test/e2e/conformance"
	"bulkhead/test/e2e/story"
	"bulkhead/test/lab"
	"bulkhead/test/sampling"
)

// progress marks lines that the test runner shows while the test runs.
type progress struct{}

func (progress) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		fmt.Printf("### %s\n", strings.TrimSuffix(line, "\n"))
	}
	return len(b), nil
}

var (
	nodes    = flag.Int("nodes", 2, "the lab's nodes")
	families = flag.String("families", "dual", "the lab's IP families: ipv4, ipv6 or dual")
	gateway  = flag.String("gateway", "shared", "the lab's gateway mode: shared or local")
	part     = flag.Int("part", 1, "which part of the checks is run, of -parts")
	parts    = flag.Int("parts", 1, "how many parts the checks are dealt to, each for a lab of its own; the last also has the tests of Kubernetes and of the kernel")
	again    = flag.Bool("again", false, "another lab runs everything: leave out the kernel's tests, sample those of Kubernetes and, where everything is run, leave out the checks that neither nodes nor the gateway mode change")
)

// endTime is how long the results, the logs and the lab's end may take.
const endTime = 5 * time.Minute

func TestStory(t *testing.T) {
	if testing.Short() {
		t.Skip("the story needs a lab: it is not for -short")
	}
	// go test ends a test by its own default after ten minutes, and would leave the lab running.
	if deadline, ok := t.Deadline(); ok && time.Until(deadline) < 45*time.Minute {
		t.Fatal("the story and its lab take an hour on a slow machine: run make test, make demo, or go test -timeout=60m")
	}
	if *part < 1 || *part > *parts {
		t.Fatalf("-part=%d: there are parts 1 to %d", *part, *parts)
	}
	ctx, stop := story.Interruptible()
	t.Cleanup(stop)                       // after the lab's end
	if deadline, ok := t.Deadline(); ok { // at which go test would end this process, and leave the lab
		limited, cancel := context.WithDeadlineCause(ctx, deadline.Add(-endTime), errors.New("the test's time is over: go test -timeout"))
		t.Cleanup(cancel)
		ctx = limited
	}
	checks, besides := story.Checks(), story.Besides{Conformance: *part == *parts, Kernel: *part == *parts && !*again}
	switch {
	case !sampling.Full():
		checks, besides = story.Sample(checks, besides, sampling.Seed(ctx), progress{})
	case *again:
		checks = story.WithoutOnce(checks, progress{})
	}
	checks = story.Part(checks, *part, *parts)
	start := time.Now()
	l, err := lab.Up(ctx, lab.Options{Nodes: *nodes, Families: *families, Gateway: *gateway, Install: true, Conformance: besides.Conformance}, progress{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Errorf("end the lab: %v", err)
		}
	})
	fmt.Printf("### lab up in %s\n", time.Since(start).Round(time.Second))

	w, err := story.NewWorld(ctx, l, progress{})
	if err != nil {
		t.Fatal(err)
	}
	w.LabEnds = true
	results := w.Run(ctx, checks)
	for _, r := range results {
		t.Run(r.Check.Name(), func(t *testing.T) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
	if besides.Conformance {
		testConformance(ctx, t, l, w.Full && !*again, w.Seed)
	}
	// Last: they create pods' cgroups on the node, which its agent sees. Every sample has some.
	packages := kernelTests
	if !besides.Kernel {
		packages = oneKernelPackage(w.Seed)
	}
	if *part == *parts && !*again {
		t.Run("0 kernel", func(t *testing.T) { testKernel(ctx, t, l.Nodes(), packages, w.Full, w.Seed) })
	}
	story.Table(progress{}, results)
	if t.Failed() {
		l.CollectLogs(context.WithoutCancel(ctx))
		t.Logf("logs of every process: %s", l.LogDir())
	}
}

// testConformance runs Kubernetes' own tests, or the sample of them that the seed chooses.
func testConformance(ctx context.Context, t *testing.T, l *lab.Lab, everything bool, seed string) {
	specs, err := conformance.Specs(ctx, l)
	if err != nil {
		t.Error(err)
		return
	}
	chosen := "all"
	if !everything {
		specs = conformance.Sample(specs, seed)
		chosen = "chosen by SEED=" + seed
	}
	fmt.Printf("### conformance: %d specs, %s\n", len(specs), chosen)
	results, err := conformance.Run(ctx, l, specs, progress{})
	if err != nil {
		t.Error(err)
		return
	}
	for _, r := range results {
		if r.Outcome == conformance.Skipped && conformance.Excluded(r.Spec) {
			continue // listed, with its reason
		}
		t.Run("conformance "+r.Spec, func(t *testing.T) {
			if r.Outcome != conformance.Passed {
				t.Errorf("%s: %s", r.Outcome, r.Why)
			}
		})
	}
}
