package build

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMirrorIn(t *testing.T) {
	const want = "http://mirror.example/debian"
	for name, c := range map[string]struct{ path, content, want string }{
		"one line":                          {"sources.list", "# old\ndeb http://security.example/debian-security bookworm-security main\ndeb " + want + " bookworm main contrib\n", want},
		"options":                           {"a.list", "deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] " + want + " bookworm main # why\n", want},
		"source packages and comments only": {"a.list", "deb-src " + want + " bookworm main\n#deb " + want + " bookworm main\n", ""},
		"other vendor":                      {"a.list", "deb https://packages.example/repos/code stable main\n", ""},
		"deb822": {"debian.sources", "Types: deb\nURIs: http://security.example/debian-security\nSuites: bookworm-security\nComponents: main\n\n" +
			"Types: deb deb-src\n# comment\nURIs: " + want + "/\nSuites: bookworm bookworm-updates\nComponents: main\n", want + "/"},
		"deb822 continued":  {"debian.sources", "Types: deb\nURIs:\n " + want + "\nSuites: bookworm\nComponents:\n contrib\n main\n", want},
		"deb822 disabled":   {"debian.sources", "Enabled: no\nTypes: deb\nURIs: " + want + "\nSuites: bookworm\nComponents: main\n", ""},
		"deb822 sources":    {"debian.sources", "Types: deb-src\nURIs: " + want + "\nSuites: bookworm\nComponents: main\n", ""},
		"not a source file": {"debian.sources.disabled", "Types: deb\nURIs: " + want + "\nSuites: bookworm\nComponents: main\n", ""},
	} {
		if got := mirrorIn(c.path, c.content); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestKey(t *testing.T) {
	if first, again := Key("a", "b"), Key("a", "b"); first != again {
		t.Error("equal inputs, different keys")
	}
	seen := map[string][]string{}
	for _, parts := range [][]string{{"a", "b"}, {"ab"}, {"a", "b", ""}, {"b", "a"}, {}} {
		k := Key(parts...)
		if before, ok := seen[k]; ok {
			t.Errorf("%v and %v have the key %s", before, parts, k)
		}
		seen[k] = parts
	}
}

func TestEntryIsMadeOnceAndWhole(t *testing.T) {
	root, calls := t.TempDir(), 0
	fill := func(dir string) error {
		calls++
		return os.WriteFile(filepath.Join(dir, "x"), nil, 0o644)
	}
	broken := errors.New("broken")
	if _, err := entryIn(root, "k", "1", 1, func(dir string) error { fill(dir); return broken }); !errors.Is(err, broken) {
		t.Fatalf("error %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "k", "[^.]*")); len(left) != 0 {
		t.Errorf("a failed build left %v", left)
	}
	// What a builder that was killed left is removed by the next.
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
	if calls != 2 {
		t.Errorf("built %d times, want one failure and one success", calls)
	}
}

func TestPruneKeepsTheNewestAndWhatMayBeInUse(t *testing.T) {
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
	left, err := filepath.Glob(filepath.Join(root, "*"))
	if err != nil || len(left) != 2 || filepath.Base(left[0]) != "new" || filepath.Base(left[1]) != "running" {
		t.Errorf("kept %v, %v; want the newest and the one used an hour ago", left, err)
	}
}

func TestRequiredVersion(t *testing.T) {
	gomod := "module x\n\nrequire (\n\tk8s.io/kubernetes v1.36.3\n\tk8s.io/api v0.36.3 // indirect\n)\nrequire a.b/c v2.0.0\nreplace k8s.io/kubernetes => ../x\n"
	for module, want := range map[string]string{"k8s.io/kubernetes": "v1.36.3", "k8s.io/api": "v0.36.3", "a.b/c": "v2.0.0", "z": ""} {
		if got := requiredVersion(gomod, module); got != want {
			t.Errorf("%s: %q, want %q", module, got, want)
		}
	}
}
