// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

type counts struct{ Passed, Failed, Skipped int }

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.Passed, c.Failed, c.Skipped)
}

func (c *counts) add(d counts) {
	c.Passed, c.Failed, c.Skipped = c.Passed+d.Passed, c.Failed+d.Failed, c.Skipped+d.Skipped
}

// event is one line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
	FailedBuild                   string
}

// counter counts the events of a stage. A test counts unless it has subtests,
// which count themselves.
type counter struct {
	counts
	out     io.Writer
	output  map[string]*strings.Builder // by package and test
	parents map[string]bool
	took    []duration // of tests and subtests
}

// duration is how long a test took, in seconds.
type duration struct {
	key     string
	seconds float64
}

// count reads events and prints the output of tests that failed or were skipped.
// A skip that allowedSkips does not list is a failure, and so is a stream in
// which no test passed.
func count(in io.Reader, out io.Writer) counts {
	c := counter{out: out, output: map[string]*strings.Builder{}, parents: map[string]bool{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(out, "%s", line)
			} else {
				c.event(e)
			}
		}
		if err != nil {
			break
		}
	}
	if c.Passed == 0 && c.Failed == 0 {
		fmt.Fprintln(out, "--- FAIL: no test ran")
		c.Failed++
	}
	c.printSlowest()
	return c.counts
}

// mostSlow is how many tests printSlowest prints, of those that take at least slow seconds.
const mostSlow, slow = 10, 10

// printSlowest prints where a stage's time goes.
func (c *counter) printSlowest() {
	slices.SortFunc(c.took, func(a, b duration) int { return cmp.Compare(b.seconds, a.seconds) })
	for i, d := range c.took {
		if i == mostSlow || d.seconds < slow {
			break
		}
		fmt.Fprintf(c.out, "slow  %.0fs %s\n", d.seconds, d.key)
	}
}

func (c *counter) event(e event) {
	key := e.Package + " " + e.Test
	if e.Test == "" && e.Action == "skip" {
		delete(c.output, key) // a package without test files
		return
	}
	switch e.Action {
	case "run":
		if i := strings.LastIndex(e.Test, "/"); i > 0 {
			c.parents[e.Package+" "+e.Test[:i]] = true
		}
	case "output", "build-output":
		if c.output[key] == nil {
			c.output[key] = &strings.Builder{}
		}
		c.output[key].WriteString(e.Output)
		if strings.HasPrefix(e.Output, "###") { // progress of a long test
			fmt.Fprint(c.out, strings.TrimPrefix(e.Output, "### "))
		}
	case "pass", "fail", "skip":
		c.end(e, key)
	}
}

// end counts a test or a package that has ended.
func (c *counter) end(e event, key string) {
	if e.Action != "pass" && c.output[key] != nil {
		fmt.Fprintf(c.out, "%s %s\n%s", e.Package, e.Action, c.output[key])
	}
	delete(c.output, key)
	if e.Test != "" {
		c.took = append(c.took, duration{key, e.Elapsed})
	}
	switch {
	case e.Test == "":
		c.endUnfinished(e)
		fmt.Fprintf(c.out, "%-5s %s (%.1fs)\n", e.Action, e.Package, e.Elapsed)
		if e.Action == "fail" && c.Failed == 0 { // else its tests were counted
			c.Failed++
		}
	case c.parents[key]:
		// A parent that fails by itself fails its package, which counts.
	case e.Action == "pass":
		c.Passed++
	case e.Action == "skip" && allowedSkips[key] != "":
		c.Skipped++
	case e.Action == "skip":
		fmt.Fprintf(c.out, "--- FAIL: %s was skipped, and allowedSkips does not list it\n", key)
		c.Failed++
	default:
		c.Failed++
	}
}

// endUnfinished counts and prints the tests that a package has begun and not ended: its process
// was killed, or a time-out ended it, and the goroutines are in such a test's output.
func (c *counter) endUnfinished(e event) {
	if e.Action != "fail" {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(c.output)) {
		pkg, test, _ := strings.Cut(key, " ")
		if pkg != e.Package || test == "" {
			continue
		}
		fmt.Fprintf(c.out, "%s did not end\n%s", key, c.output[key])
		delete(c.output, key)
		if !c.parents[key] {
			c.Failed++
		}
	}
}
