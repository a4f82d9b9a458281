// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// sideBySide is how many checks run at once: more would only wait for the
// emulated processors.
const sideBySide = 3

// Select returns the checks that run names: all for "", those of a chapter for a
// number, and otherwise those whose name the regular expression matches. Benchmarks
// have to be named.
func Select(run string) ([]Check, error) {
	if n, err := strconv.Atoi(run); err == nil {
		run = fmt.Sprintf(`^%d\. `, n)
	}
	matches, err := regexp.Compile(run)
	if err != nil {
		return nil, fmt.Errorf("select checks: %w", err)
	}
	all := Checks()
	if run != "" && run != "." {
		all = append(all, benchmarks()...)
	}
	checks := slices.DeleteFunc(all, func(c Check) bool { return !matches.MatchString(c.Name()) })
	if len(checks) == 0 {
		return nil, fmt.Errorf("select checks: %q matches none", run)
	}
	return checks, nil
}

// Run sets up what the checks need, runs them, and deletes everything again;
// that nothing remains is the last result. An interrupted story of a lab that ends with it
// deletes nothing. A node that restarts ends the story: its pods have lost their tools.
// Results are in the order of checks.
func (w *World) Run(ctx context.Context, checks []Check) []Result {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go w.watchNodes(ctx, end)
	results := make([]Result, len(checks))
	last := Check{Chapter: 9, Title: "everything deleted: no link, address, rule, route, port, OVN row, NAD, pin or map row remains", Phase: phaseDeletion, Run: nothingRemains, Timeout: 20 * time.Minute}
	if err := w.begin(ctx); err != nil {
		for i, c := range checks {
			results[i] = Result{Check: c, Err: err}
		}
		return append(results, Result{Check: last, Err: err})
	}
	w.setUpFirst(ctx, checks)
	for phase := range phases {
		slots := make(chan struct{}, sideBySide)
		if phase.serial() {
			slots = make(chan struct{}, 1)
		}
		var running sync.WaitGroup
		for i, c := range checks {
			if c.Phase != phase || ctx.Err() != nil {
				continue
			}
			slots <- struct{}{}
			running.Go(func() {
				results[i] = w.run(ctx, c)
				<-slots
			})
		}
		running.Wait()
	}
	for i, c := range checks {
		if results[i].Check.Run == nil {
			results[i] = Result{Check: c, Err: errors.Join(errors.New("not run"), context.Cause(ctx))}
		}
	}
	if w.LabEnds && ctx.Err() != nil {
		return append(results, Result{Check: last, Err: errors.Join(errors.New("not run"), context.Cause(ctx))})
	}
	w.endProbers()
	return append(results, w.run(context.WithoutCancel(ctx), last))
}

// watchNodes ends the story if a node no longer has the story's tools, which are in memory.
func (w *World) watchNodes(ctx context.Context, end context.CancelCauseFunc) {
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, n := range w.Lab.Nodes() {
			res, err := n.Run(ctx, "test -d "+toolsDir)
			if err == nil && res.ExitCode != 0 {
				end(fmt.Errorf("%s has restarted: see its console in the lab's log directory", n.Name))
			}
		}
	}
}

// run sets up the check's fixtures and runs it within its time.
func (w *World) run(ctx context.Context, c Check) Result {
	var out bytes.Buffer
	own := *w
	own.Out = &out
	if c.Phase.serial() {
		own.Out = w.Out
		fmt.Fprintf(w.Out, "%s\n", c.Name())
	}
	start := time.Now()
	figures, err := "", w.need(ctx, c.Needs...)
	if err == nil {
		timeout := c.Timeout
		if timeout == 0 {
			timeout = 12 * time.Minute
		}
		start = time.Now() // fixtures have times of their own
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		figures, err = c.Run(limited, &own)
	}
	r := Result{Check: c, Figures: figures, Err: err, Took: time.Since(start)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if own.Out != w.Out {
		fmt.Fprintf(w.Out, "%s\n%s", c.Name(), out.String())
	}
	if err != nil {
		fmt.Fprintf(w.Out, "     FAIL: %s\n", strings.ReplaceAll(err.Error(), "\n", "\n     "))
	}
	return r
}
