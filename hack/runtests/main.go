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
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	full := flag.Bool("full", false, "run everything, where samples run otherwise; resume an earlier run, of the same files")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	total, err := runStages(ctx, *full, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "runtests:", err)
		os.Exit(2)
	}
	fmt.Println(total)
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
	for _, list := range sideBySide(all) {
		var left []stage
		for _, s := range list {
			if len(only) > 0 && !slices.Contains(only, s.name) {
				continue
			}
			c, done, err := passed.get(s)
			if err != nil {
				return total, err
			}
			if done {
				fmt.Printf("=== %s: %s, in an earlier run, of the same files\n", s.name, c)
				total.add(c)
				continue
			}
			left = append(left, s)
		}
		for i, c := range runBeside(ctx, left, passed) {
			total.add(c)
			if err := passed.put(left[i], c); err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

// sideBySide groups the stages that run at the same time.
func sideBySide(all []stage) [][]stage {
	var out [][]stage
	for _, s := range all {
		if s.beside && len(out) > 0 {
			out[len(out)-1] = append(out[len(out)-1], s)
			continue
		}
		out = append(out, []stage{s})
	}
	return out
}

// runBeside runs stages at the same time, and prints the output of each after that of
// the one before.
func runBeside(ctx context.Context, list []stage, passed passedStages) []counts {
	results := make([]counts, len(list))
	outputs := make([]buffer, len(list))
	var running sync.WaitGroup
	for i, s := range list {
		running.Go(func() {
			var out io.Writer = &outputs[i]
			if i == 0 {
				out = os.Stdout
			}
			start := time.Now()
			fmt.Fprintf(out, "=== %s: %s\n", s.name, short(s.args))
			results[i] = s.run(ctx, passed.seed(ctx, s), out)
			fmt.Fprintf(out, "=== %s: %s, %s\n", s.name, results[i], time.Since(start).Round(time.Second))
		})
	}
	running.Wait()
	for i := range outputs {
		fmt.Print(outputs[i].String())
	}
	return results
}

// buffer collects the output of a stage, which its command's standard error and the
// counter of its tests write at the same time. A bytes.Buffer loses lines then: its
// ReadFrom, which os/exec calls, drops what was written while it waited.
type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// short returns a command line without its list of packages.
func short(args []string) string {
	line := strings.Join(args, " ")
	if i := strings.Index(line, " bulkhead/"); i > 0 && len(line) > 200 {
		line = line[:i] + " bulkhead/..."
	}
	return line
}
