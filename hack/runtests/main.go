// SPDX-License-Identifier: Apache-2.0

// Command runtests runs the project's tests in stages and prints the number of
// passed, failed and skipped tests. It runs the remaining stages after a failed one.
// It exits 1 if a test failed, or was skipped and is not in allowedSkips.
//
//	runtests [-full] [STAGE...]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	full := flag.Bool("full", false, "run everything, where samples run otherwise; resume a run of the same tree")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	total, err := runStages(ctx, *full, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "runtests:", err)
		os.Exit(2)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", total.Passed, total.Failed, total.Skipped)
	if total.Failed > 0 || total.Passed == 0 {
		os.Exit(1)
	}
}

func runStages(ctx context.Context, full bool, only []string) (total counts, err error) {
	all, err := stages(full)
	if err != nil {
		return total, err
	}
	for _, name := range only {
		if !slices.ContainsFunc(all, func(s stage) bool { return s.name == name }) {
			return total, fmt.Errorf("there is no stage %q", name)
		}
	}
	var passed passedStages
	if full {
		if passed, err = openPassed(); err != nil {
			return total, err
		}
	}
	for _, s := range all {
		if len(only) > 0 && !slices.Contains(only, s.name) {
			continue
		}
		c, done, err := passed.get(s.name)
		if err != nil {
			return total, err
		}
		if done {
			fmt.Printf("=== %s: %d passed, %d failed, %d skipped, in an earlier run of this tree\n", s.name, c.Passed, c.Failed, c.Skipped)
			total.add(c)
			continue
		}
		start := time.Now()
		fmt.Printf("=== %s: %s\n", s.name, short(s.args))
		c = s.run(ctx)
		fmt.Printf("=== %s: %d passed, %d failed, %d skipped, %s\n", s.name, c.Passed, c.Failed, c.Skipped, time.Since(start).Round(time.Second))
		total.add(c)
		if err := passed.put(s.name, c); err != nil {
			return total, err
		}
	}
	return total, nil
}

// short returns a command line without its list of packages.
func short(args []string) string {
	line := strings.Join(args, " ")
	if i := strings.Index(line, " bulkhead/"); i > 0 && len(line) > 200 {
		line = line[:i] + " bulkhead/..."
	}
	return line
}
