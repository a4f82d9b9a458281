// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"testing"

	"bulkhead/test/sampling"
)

// A stage's result is recorded for the files that it read, as they were checked out while it ran, and for no others.
func TestPassedStages(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv(sampling.SeedEnv, "") // `make test` sets it
	t.Chdir(t.TempDir())
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=x", "-c", "user.email=x@example.com"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
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
	recorded := func(p passedStages, stage stage, want bool) {
		t.Helper()
		if _, ok, err := p.get(stage); ok != want || err != nil {
			t.Errorf("stage %s: recorded %t (%v), want %t", stage.name, ok, err, want)
		}
	}
	all := func(name string) stage { return stage{name: name} }
	code := stage{name: "code", reads: isCode}
	git("init", "-q")
	write("file.go", "1")
	write("README.md", "1")
	git("add", ".")
	git("commit", "-qm", "1")

	first := open()
	if err := first.put(all("passed"), counts{Passed: 1}); err != nil {
		t.Fatal(err)
	}
	if err := first.put(all("failed"), counts{Passed: 1, Failed: 1}); err != nil {
		t.Fatal(err)
	}
	recorded(open(), all("passed"), true)
	recorded(open(), all("failed"), false)
	if err := first.put(code, counts{Passed: 1}); err != nil {
		t.Fatal(err)
	}
	recorded(open(), stage{name: "code", args: []string{"-other"}, reads: isCode}, false)

	write("file.go", "2")
	if err := first.put(all("edited"), counts{Passed: 1}); err == nil {
		t.Error("an edit during the stage is not noticed")
	}
	uncommitted := open()
	if err := uncommitted.put(all("passed"), counts{Passed: 1}); err != nil {
		t.Error(err)
	}
	recorded(uncommitted, all("passed"), false)

	git("commit", "-qam", "2")
	if err := first.put(all("committed"), counts{Passed: 1}); err == nil {
		t.Error("a commit during the stage is not noticed")
	}
	recorded(open(), all("passed"), false)
	git("revert", "--no-edit", "HEAD")
	for stage, want := range map[string]bool{"passed": true, "edited": false, "committed": false} {
		recorded(open(), all(stage), want)
	}

	// Words for readers change nothing for a stage that does not read them, nor the choice of its samples.
	sample := stage{name: "sample", reads: isCode, ownSample: true}
	seed := open().seed(t.Context(), sample)
	write("README.md", "2")
	git("commit", "-qam", "3")
	recorded(open(), all("passed"), false)
	recorded(open(), code, true)
	if got := open().seed(t.Context(), sample); got != seed {
		t.Errorf("the seed %s becomes %s", seed, got)
	}
	write("file.go", "3")
	git("commit", "-qam", "4")
	recorded(open(), code, false)
	if got := open().seed(t.Context(), sample); got == seed {
		t.Errorf("the seed %s stays", seed)
	}
	t.Setenv(sampling.SeedEnv, "chosen")
	if got := open().seed(t.Context(), sample); got != "chosen" {
		t.Errorf("the seed is %s, not that of the environment", got)
	}
}
