// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"testing"
)

// A stage's result is recorded for the tree that was checked out while it ran, and for no other.
func TestPassedStages(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Chdir(t.TempDir())
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=x", "-c", "user.email=x@example.com"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile("file", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	open := func() passedStages {
		t.Helper()
		p, err := openPassed()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	recorded := func(p passedStages, stage string, want bool) {
		t.Helper()
		if _, ok, err := p.get(stage); ok != want || err != nil {
			t.Errorf("stage %s: recorded %t (%v), want %t", stage, ok, err, want)
		}
	}
	git("init", "-q")
	write("1")
	git("add", ".")
	git("commit", "-qm", "1")

	first := open()
	if err := first.put("passed", counts{Passed: 1}); err != nil {
		t.Fatal(err)
	}
	if err := first.put("failed", counts{Passed: 1, Failed: 1}); err != nil {
		t.Fatal(err)
	}
	recorded(open(), "passed", true)
	recorded(open(), "failed", false)

	write("2")
	if err := first.put("edited", counts{Passed: 1}); err == nil {
		t.Error("an edit during the stage is not noticed")
	}
	uncommitted := open()
	if err := uncommitted.put("passed", counts{Passed: 1}); err != nil {
		t.Error(err)
	}
	recorded(uncommitted, "passed", false)

	git("commit", "-qam", "2")
	if err := first.put("committed", counts{Passed: 1}); err == nil {
		t.Error("a commit during the stage is not noticed")
	}
	recorded(open(), "passed", false)
	git("revert", "--no-edit", "HEAD")
	for stage, want := range map[string]bool{"passed": true, "edited": false, "committed": false} {
		recorded(open(), stage, want)
	}
}
