// SPDX-License-Identifier: Apache-2.0

// Command runtests runs every test of the project, stage by stage, and ends
// with one line that counts them. A stage that fails does not stop the next:
// the count is of everything. It exits 1 when anything failed or when a stage
// that must not skip did.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// stage is one command. goTest commands print go test's JSON events, of which
// each test that has no subtests counts; any other command counts as one.
type stage struct {
	name    string
	args    []string
	goTest  bool
	noSkips bool // in this stage a skip is a failure: its environment was made for it
}

var stages = []stage{
	{name: "lint", args: []string{"make", "--no-print-directory", "lint"}},
	{name: "packages", goTest: true, args: []string{"go", "test", "-json", "-race", "-timeout=25m", "./api/...", "./cmd/...", "./deploy/...", "./pkg/...", "./hack/...", "./test/api/...", "./test/bench/...", "./test/lab/..."}},
	{name: "lab", goTest: true, noSkips: true, args: []string{"go", "test", "-json", "-count=1", "-timeout=50m", "./test/e2e/..."}},
}

type counts struct{ passed, failed, skipped int }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	only := map[string]bool{}
	for _, a := range os.Args[1:] {
		only[a] = true
	}
	var total counts
	for _, s := range stages {
		if len(only) > 0 && !only[s.name] {
			continue
		}
		start := time.Now()
		fmt.Printf("=== %s: %s\n", s.name, strings.Join(s.args, " "))
		c := run(ctx, s)
		fmt.Printf("=== %s: %d passed, %d failed, %d skipped, %s\n", s.name, c.passed, c.failed, c.skipped, time.Since(start).Round(time.Second))
		total.passed += c.passed
		total.failed += c.failed
		total.skipped += c.skipped
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", total.passed, total.failed, total.skipped)
	if total.failed > 0 || total.passed == 0 {
		os.Exit(1)
	}
}

func run(ctx context.Context, s stage) counts {
	cmd := exec.CommandContext(ctx, s.args[0], s.args[1:]...)
	// The stage and all it started are told to end: go test itself waits for a
	// test that takes its lab away, and would leave it behind if it ended first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	cmd.Stderr = os.Stdout
	if !s.goTest {
		cmd.Stdout = os.Stdout
		if err := cmd.Run(); err != nil {
			fmt.Printf("--- FAIL: %s: %v\n", s.name, err)
			return counts{failed: 1}
		}
		return counts{passed: 1}
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Printf("--- FAIL: %s: %v\n", s.name, err)
		return counts{failed: 1}
	}
	c := count(out, os.Stdout, s.noSkips)
	if err := cmd.Wait(); err != nil && c.failed == 0 {
		fmt.Printf("--- FAIL: %s: %v\n", s.name, err)
		c.failed++
	}
	return c
}

// event is what `go test -json` prints, one a line.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
	FailedBuild                   string
}

// count reads events and prints the output of what failed or was skipped.
func count(in io.Reader, out io.Writer, noSkips bool) counts {
	var c counts
	output := map[string]*strings.Builder{}
	parents := map[string]bool{}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(out, "%s", line)
			} else {
				c.add(e, output, parents, out, noSkips)
			}
		}
		if err != nil {
			return c
		}
	}
}

func (c *counts) add(e event, output map[string]*strings.Builder, parents map[string]bool, out io.Writer, noSkips bool) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "run":
		if i := strings.LastIndex(e.Test, "/"); i > 0 {
			parents[e.Package+" "+e.Test[:i]] = true
		}
	case "output", "build-output":
		if output[key] == nil {
			output[key] = &strings.Builder{}
		}
		output[key].WriteString(e.Output)
		if strings.HasPrefix(e.Output, "###") { // progress of a long test
			fmt.Fprint(out, strings.TrimPrefix(e.Output, "### "))
		}
	case "pass", "fail", "skip":
		if e.Action != "pass" && output[key] != nil {
			fmt.Fprintf(out, "%s %s\n%s", e.Package, e.Action, output[key])
		}
		delete(output, key)
		switch {
		case e.Test == "": // the package: its own line only when no test tells why it failed
			fmt.Fprintf(out, "%-5s %s (%.1fs)\n", e.Action, e.Package, e.Elapsed)
			if e.Action == "fail" && c.failed == 0 {
				c.failed++
			}
		case parents[key] && e.Action != "fail":
		case parents[key]:
			// A parent that failed by itself, with all its subtests passing,
			// still shows: the package's fail event counts it.
		case e.Action == "pass":
			c.passed++
		case e.Action == "fail", noSkips:
			c.failed++
		default:
			c.skipped++
		}
	}
}
