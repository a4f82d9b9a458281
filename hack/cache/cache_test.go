// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestKey(t *testing.T) {
	if first, again := Key("a", "b"), Key("a", "b"); first != again {
		t.Error("equal inputs, different keys")
	}
	seen := map[string][]string{}
	for _, inputs := range [][]string{{"a", "b"}, {"ab"}, {"a", "b", ""}, {"b", "a"}, {}} {
		k := Key(inputs...)
		if before, ok := seen[k]; ok {
			t.Errorf("%v and %v have the key %s", before, inputs, k)
		}
		seen[k] = inputs
	}
}

func TestEntryIsBuiltOnceAndCompletely(t *testing.T) {
	root, calls := t.TempDir(), 0
	fill := func(dir string) error {
		calls++
		return os.WriteFile(filepath.Join(dir, "x"), nil, 0o644)
	}
	broken := errors.New("broken")
	if _, err := entryIn(root, "k", "1", 1, func(dir string) error { fill(dir); return broken }); !errors.Is(err, broken) {
		t.Fatalf("error %v", err)
	}
	if leftover, _ := filepath.Glob(filepath.Join(root, "k", "[^.]*")); len(leftover) != 0 {
		t.Errorf("a failed build left %v", leftover)
	}
	// A directory that a killed builder left.
	if err := os.MkdirAll(filepath.Join(root, "k", "tmp-dead"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		dir, err := entryIn(root, "k", "1", 1, fill)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "x")); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "k", "tmp-dead")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the killed builder's directory is still there: %v", err)
	}
	if calls != 2 {
		t.Errorf("built %d times, want one failure and one success", calls)
	}
}

func TestRemoveMakesEntryBuildAgain(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	calls := 0
	for range 2 {
		if err := Remove("k", "1"); err != nil {
			t.Fatal(err)
		}
		if _, err := Entry("k", "1", 1, func(string) error { calls++; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 2 {
		t.Errorf("built %d times, want 2", calls)
	}
}

func TestPruneKeepsTheNewestAndTheRecentlyUsed(t *testing.T) {
	root, now := t.TempDir(), time.Now()
	for name, age := range map[string]time.Duration{"new": 0, "running": time.Hour, "old": 48 * time.Hour} {
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	prune(root, 1, now.Add(-inUse))
	kept, err := filepath.Glob(filepath.Join(root, "*"))
	if err != nil || len(kept) != 2 || filepath.Base(kept[0]) != "new" || filepath.Base(kept[1]) != "running" {
		t.Errorf("kept %v, %v; want the newest and the one used an hour ago", kept, err)
	}
}
