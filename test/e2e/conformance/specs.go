// SPDX-License-Identifier: Apache-2.0

// Package conformance runs the network specs of Kubernetes' own conformance tests
// against the lab's cluster default network.
package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"bulkhead/test/lab"
	"bulkhead/test/sampling"
)

// focus selects the specs: a regular expression of their names.
const focus = `\[sig-network\].*\[Conformance\]`

// exclusion is specs that do not pass in the lab, and why.
type exclusion struct {
	name   *regexp.Regexp
	reason string
}

var exclusions = []exclusion{
	{regexp.MustCompile(`Service endpoints latency`), "measures how soon 200 services have endpoints, against limits for nodes that are not emulated"},
}

// excluded returns why a spec is not run, or "".
func excluded(spec string) string {
	for _, e := range exclusions {
		if e.name.MatchString(spec) {
			return e.reason
		}
	}
	return ""
}

// Excluded reports whether a spec is listed as one that does not pass in the lab.
func Excluded(spec string) bool { return excluded(spec) != "" }

// sampleSize is how many specs make test runs: about two minutes on two quiet cores.
const sampleSize = 5

// Sample returns sampleSize of the specs that are not excluded, which the seed chooses.
func Sample(specs []string, seed string) []string {
	specs = slices.DeleteFunc(slices.Clone(specs), func(s string) bool { return excluded(s) != "" })
	slices.SortFunc(specs, func(a, b string) int { return cmp.Compare(sampling.Hash(a+seed), sampling.Hash(b+seed)) })
	return specs[:min(len(specs), sampleSize)]
}

// report is the part of ginkgo's JSON report that counts: one per suite.
type report struct {
	SpecReports []specReport
}

type specReport struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	Failure                 struct{ Message string }
}

func (r specReport) name() string {
	return strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
}

// Specs lists the names of the specs that focus selects, in the suite's order.
func Specs(ctx context.Context, l *lab.Lab) ([]string, error) {
	if l.Conformance() == "" {
		return nil, errors.New("the lab was started without Kubernetes' tests: start it with `bin/lab up --conformance`")
	}
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return nil, fmt.Errorf("create a directory for a report: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "specs.json")
	cmd := exec.CommandContext(ctx, filepath.Join(l.Conformance(), "e2e.test"), "--provider=skeleton", "--ginkgo.dry-run", "--ginkgo.focus="+focus, "--ginkgo.json-report="+file)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("list Kubernetes' tests: %w: %s", err, out)
	}
	reports, err := read(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range reports {
		// A dry run passes what it would run.
		if r.LeafNodeType == "It" && r.State == "passed" {
			names = append(names, r.name())
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no spec of Kubernetes' tests matches %s", focus)
	}
	return names, nil
}

// read returns the specs of a report.
func read(file string) ([]specReport, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the report of Kubernetes' tests: %w", err)
	}
	var suites []report
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("parse the report of Kubernetes' tests: %w", err)
	}
	var all []specReport
	for _, s := range suites {
		all = append(all, s.SpecReports...)
	}
	return all, nil
}
