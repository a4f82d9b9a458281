// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"bulkhead/test/lab"
)

// Outcomes of a spec.
const (
	Passed  = "passed"
	Failed  = "failed"
	Skipped = "skipped"
)

// Result is what became of a spec.
type Result struct {
	Spec, Outcome string
	// Why is the failure, or the reason of the skip.
	Why  string
	Took time.Duration
	// Log is the file with the spec's output, if it ran.
	Log string
}

// Run runs specs, each in a process of its own, and prints a line as each ends. They run
// one after another: some give a pod one minute to start and to answer, which an emulated
// node needs for itself where it starts several pods at once.
func Run(ctx context.Context, l *lab.Lab, specs []string, out io.Writer) ([]Result, error) {
	if l.Conformance() == "" {
		return nil, errors.New("this lab was started without Kubernetes' tests: start one with bin/lab up --conformance")
	}
	logs := filepath.Join(l.LogDir(), "conformance")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, fmt.Errorf("create a directory for logs: %w", err)
	}
	var results []Result
	for i, spec := range specs {
		r := runSpec(ctx, l, spec, filepath.Join(logs, fmt.Sprintf("%02d", i+1)))
		results = append(results, r)
		fmt.Fprintf(out, "%-7s %6.1fs  %s\n", r.Outcome, r.Took.Seconds(), r.Spec)
		if r.Why != "" {
			fmt.Fprintf(out, "        %s\n", strings.ReplaceAll(strings.TrimSpace(r.Why), "\n", "\n        "))
		}
	}
	return results, nil
}

// runSpec runs one spec; its output and report are files that begin with prefix.
func runSpec(ctx context.Context, l *lab.Lab, spec, prefix string) Result {
	r := Result{Spec: spec, Outcome: Failed, Log: prefix + ".log"}
	if why := excluded(spec); why != "" {
		return Result{Spec: spec, Outcome: Skipped, Why: why}
	}
	begun := time.Now()
	err := execute(ctx, l, spec, prefix)
	r.Took = time.Since(begun)
	reports, reading := read(prefix + ".json")
	if reading != nil {
		r.Why = fmt.Sprintf("%v; %v", err, reading)
	} else {
		r.Outcome, r.Why = judge(spec, reports, err)
	}
	if r.Outcome == Failed {
		r.Why += "\nsee " + r.Log
	}
	return r
}

// judge returns a spec's outcome and the reason of it, from the report of the run and the
// error that the run returned. What the report does not say has failed.
func judge(spec string, reports []specReport, err error) (outcome, why string) {
	var failures []string
	found := false
	for _, s := range reports {
		it := s.LeafNodeType == "It"
		switch {
		case it && s.name() != spec && s.Failure.Message == "":
			// Not selected.
		case it && s.name() == spec && s.State == Skipped && s.Failure.Message != "":
			outcome, why = Skipped, s.Failure.Message
		case s.State == Passed:
			found = found || it
		default:
			// Also of the nodes around a spec, such as BeforeSuite.
			failures = append(failures, fmt.Sprintf("%s %s: %s", s.LeafNodeType, s.State, s.Failure.Message))
		}
	}
	switch {
	case len(failures) > 0:
		return Failed, strings.Join(failures, "\n")
	case outcome == Skipped:
		return outcome, why
	case err != nil:
		return Failed, err.Error()
	case !found:
		return Failed, "the report does not contain it"
	}
	return Passed, ""
}

// execute runs the test program with one spec in the lab's network.
func execute(ctx context.Context, l *lab.Lab, spec, prefix string) error {
	log, err := os.Create(prefix + ".log")
	if err != nil {
		return fmt.Errorf("create a log: %w", err)
	}
	defer log.Close()
	kubectl, env := l.Kubectl()
	cmd := exec.CommandContext(ctx, filepath.Join(l.Conformance(), "e2e.test"),
		"--provider=skeleton", fmt.Sprintf("--num-nodes=%d", len(l.Nodes())), "--kubectl-path="+kubectl,
		"--ginkgo.focus="+regexp.QuoteMeta(spec)+"$", "--ginkgo.json-report="+prefix+".json", "--ginkgo.v", "--ginkgo.no-color", "--disable-log-dump")
	temp, err := os.MkdirTemp("", "conformance-") // the tests leave files there
	if err != nil {
		return fmt.Errorf("create a directory for temporary files: %w", err)
	}
	defer os.RemoveAll(temp)
	cmd.Dir, cmd.Env = filepath.Dir(prefix), append(env, "TMPDIR="+temp)
	cmd.Stdout, cmd.Stderr = log, log
	// An interrupted spec deletes its namespace.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	if err := l.InNetwork(cmd.Start); err != nil {
		return fmt.Errorf("start Kubernetes' tests: %w", err)
	}
	return cmd.Wait()
}

// Counts returns how many specs passed, failed and were skipped.
func Counts(results []Result) (passed, failed, skipped int) {
	for _, r := range results {
		switch r.Outcome {
		case Passed:
			passed++
		case Skipped:
			skipped++
		default:
			failed++
		}
	}
	return passed, failed, skipped
}
