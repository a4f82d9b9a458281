// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"bulkhead/test/sampling"
)

// stage is one command. goTest commands print go test's JSON events, of which
// each test without subtests counts; any other command counts as one.
type stage struct {
	name      string
	args      []string
	goTest    bool
	full      bool // tests run everything, and not samples
	ownSample bool // its samples are not those of the other stages: ownSeed chooses them
	beside    bool // runs at the same time as the stage before
	// reads tells whether the stage's result can depend on a file of the repository, nil if on each.
	reads func(path string) bool
}

// isCode reports whether a file is more than text for readers.
func isCode(path string) bool { return path != "LICENSE" && filepath.Ext(path) != ".md" }

// inLab reports whether a lab's tests can depend on a file. The tests of packages are among them: some run on nodes.
func inLab(path string) bool {
	return isCode(path) && !strings.HasPrefix(path, "hack/runtests/") && !strings.HasPrefix(path, "test/api/") &&
		(!strings.HasPrefix(path, "test/bench/") || strings.HasPrefix(path, "test/bench/proc/"))
}

// labPackage needs a lab; all other packages run on the test machine.
const (
	labPackage = "bulkhead/test/e2e"
	apiPackage = "bulkhead/test/api"
)

// withoutRace are packages that the race detector makes take twice to five times as long: they
// start many processes. Only test-full uses it there.
var withoutRace = []string{apiPackage, "bulkhead/pkg/loader", "bulkhead/pkg/ovn"}

// atATime is how many tests of a package run at once: those that allow it mostly wait, for
// OVN or for the kernel.
const atATime = "-parallel=4"

// stages returns the stages of `make test` or, with full, of `make test-full`.
func stages(full bool) ([]stage, error) {
	out, err := exec.Command("go", "list", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	packages := slices.DeleteFunc(strings.Fields(string(out)), func(p string) bool { return p == labPackage || p == apiPackage })
	test := func(name, timeout string, args ...string) stage {
		command := []string{"go", "test", "-json", "-timeout=" + timeout}
		if full {
			command = append(command, "-count=1") // no results of the cache
		}
		return stage{name: name, goTest: true, full: full, args: append(command, args...)}
	}
	lint := stage{name: "lint", args: []string{"make", "--no-print-directory", "lint"}}
	if !full {
		slow := test("slow-packages", "40m", append([]string{"-p=3", atATime}, withoutRace...)...)
		slow.beside = true // their tests mostly wait
		packages = slices.DeleteFunc(packages, func(p string) bool { return slices.Contains(withoutRace, p) })
		return []stage{
			lint,
			test("packages", "40m", append([]string{"-race"}, packages...)...),
			slow,
			test("lab", "60m", "-count=1", labPackage),
		}, nil
	}
	api := test("api", "90m", "-race", apiPackage)
	api.beside = true
	arm64 := stage{name: "arm64", args: []string{"make", "--no-print-directory", "build-arm64"}, reads: isCode}
	list := []stage{lint, arm64, test("packages", "90m", append([]string{"-race", atATime}, packages...)...), api}
	// Six labs together cover every pairing of IP families, node count and gateway mode. The first
	// lab runs all checks. The second runs those that its options can affect. Two stages share the
	// checks of each of these labs. The other four labs each run a sample. Only the first runs the
	// kernel's tests.
	for i, o := range []struct{ families, nodes, gateway string }{
		{"dual", "2", "shared"}, {"dual", "3", "local"}, {"ipv4", "2", "local"}, {"ipv4", "3", "shared"}, {"ipv6", "2", "shared"}, {"ipv6", "3", "local"},
	} {
		name := "lab-" + o.families + "-" + o.nodes + "-" + o.gateway
		args := []string{"-count=1", labPackage, "-families=" + o.families, "-nodes=" + o.nodes, "-gateway=" + o.gateway}
		if i > 0 {
			args = append(args, "-again")
		}
		if i >= 2 {
			s := test(name, "90m", args...)
			s.full, s.ownSample, s.reads = false, true, inLab
			list = append(list, s)
			continue
		}
		for _, part := range []string{"1", "2"} {
			s := test(name+"-part"+part, "120m", append(slices.Clone(args), "-part="+part, "-parts=2")...)
			s.reads = inLab
			list = append(list, s)
		}
	}
	return append(list, stage{name: "fuzz", args: []string{"make", "--no-print-directory", "fuzz", "FUZZTIME=20s"}, reads: isCode}), nil
}

// run runs the stage with the samples that the seed chooses, prints to output and counts its tests.
func (s stage) run(ctx context.Context, seed string, output io.Writer) counts {
	cmd := exec.CommandContext(ctx, s.args[0], s.args[1:]...)
	if s.full {
		cmd.Env = append(os.Environ(), sampling.FullEnv+"=1")
	}
	if s.goTest && !s.full {
		// In the environment the seed is part of what go test's cache compares.
		cmd.Env = append(os.Environ(), sampling.SeedEnv+"="+seed)
	}
	// Interrupt the whole process group: go test waits for a test that deletes its
	// lab, and would leave the lab behind if it ended first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	cmd.Stderr = output
	if !s.goTest {
		cmd.Stdout = output
		if err := cmd.Run(); err != nil {
			fmt.Fprintf(output, "--- FAIL: %s: %v\n", s.name, err)
			return counts{Failed: 1}
		}
		return counts{Passed: 1}
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintf(output, "--- FAIL: %s: %v\n", s.name, err)
		return counts{Failed: 1}
	}
	c := count(out, output)
	if err := cmd.Wait(); err != nil && c.Failed == 0 {
		fmt.Fprintf(output, "--- FAIL: %s: %v\n", s.name, err)
		c.Failed++
	}
	return c
}
