// SPDX-License-Identifier: Apache-2.0

// Package story is what Bulkhead promises, told as checks against a running
// lab: `make demo` prints them as a table, `go test ./test/e2e` runs them as
// tests. Each check is a real observation; none assumes what another found.
package story

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"

	"bulkhead/test/lab"
)

// Check is one line of the story.
type Check struct {
	Chapter int
	Title   string
	Run     func(ctx context.Context, w *World) (detail string, err error)
	// Timeout bounds the check; software emulation is slow.
	Timeout time.Duration
}

// Result is how a check went.
type Result struct {
	Check  Check
	Detail string
	Err    error
	Took   time.Duration
}

// Checks are the story in the order it is told: each chapter builds on what
// the ones before it created.
func Checks() []Check {
	var all []Check
	for _, chapter := range [][]Check{
		clusterChecks(), networkChecks(), reachChecks(), isolationChecks(), probeChecks(),
		hostNetworkChecks(), adversaryChecks(), inspectChecks(), kubectlChecks(), badInputChecks(), faultChecks(), speedChecks(), removalChecks(),
	} {
		all = append(all, chapter...)
	}
	return all
}

// World is what the checks share: the lab and what they have learnt of it.
type World struct {
	Lab      *lab.Lab
	Out      io.Writer // progress and tables
	Families []string  // "ipv4", "ipv6"
	// Full plays everything, where a part chosen by Seed is played otherwise.
	Full bool
	Seed string // the commit that is tested

	dynamic  dynamic.Interface
	baseline map[string]snapshot // each node before any tenant
	pods     map[string]*pod     // by name
	arena    *arena              // of the adversary's checks
}

// NewWorld is the story's beginning: the lab, with the story's tools on its nodes.
func NewWorld(ctx context.Context, l *lab.Lab, out io.Writer) (*World, error) {
	families := []string{"ipv4"}
	if l.Dual() {
		families = append(families, "ipv6")
	}
	d, err := dynamic.NewForConfig(l.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("make a client of the lab's API server: %w", err)
	}
	w := &World{Lab: l, Out: out, Families: families, Full: Full(), Seed: commit(ctx), dynamic: d, baseline: map[string]snapshot{}, pods: map[string]*pod{}}
	return w, w.putTools(ctx)
}

// fullEnv in the environment makes checks that play a sample play everything.
const fullEnv = "BULKHEAD_FULL"

// Full tells whether everything is played, and not a sample.
func Full() bool { return os.Getenv(fullEnv) != "" }

// commit is the commit that is checked out; "" outside a checkout.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// sample chooses one of n parts by the commit and says so.
func (w *World) sample(what string, n int) int {
	h := fnv.New32a()
	h.Write([]byte(what + w.Seed))
	i := int(h.Sum32() % uint32(n))
	fmt.Fprintf(w.Out, "     %s: part %d of %d, chosen by commit %.12s (%s=1 plays all)\n", what, i+1, n, w.Seed, fullEnv)
	return i
}

// Run runs one check within its time.
func (w *World) Run(ctx context.Context, c Check) Result {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = 6 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	detail, err := c.Run(ctx, w)
	return Result{Check: c, Detail: detail, Err: err, Took: time.Since(start)}
}

// Table prints results, one line a check, and tells whether all passed.
func Table(out io.Writer, results []Result) bool {
	ok := true
	fmt.Fprintf(out, "\n%-4s %-78s %-6s %7s  %s\n", "", "CHECK", "RESULT", "TIME", "FIGURES")
	for _, r := range results {
		verdict := "PASS"
		if r.Err != nil {
			verdict, ok = "FAIL", false
		}
		fmt.Fprintf(out, "%-4d %-78s %-6s %6.1fs  %s\n", r.Check.Chapter, r.Check.Title, verdict, r.Took.Seconds(), r.Detail)
		if r.Err != nil {
			fmt.Fprintf(out, "     %s\n", strings.ReplaceAll(r.Err.Error(), "\n", "\n     "))
		}
	}
	return ok
}

// atATime is how many commands run in the lab at once: as many as it has
// emulated processors.
const atATime = 4

// each runs f for every item, a few at a time, and joins the errors, so that
// one report names everything that is wrong.
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
