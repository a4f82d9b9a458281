package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func archive(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = append(body, h.Linkname...)
	}
}

func TestWriteIsALoadableArchive(t *testing.T) {
	source := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(source, []byte("tool"), 0o755); err != nil {
		t.Fatal(err)
	}
	i := Image{Name: "lab/x:1", Entrypoint: []string{"/bin/tool"}, Files: []File{
		{Path: "/bin/tool", Source: source}, {Path: "/bin/sh", Link: "tool"}, {Path: "/etc/passwd", Data: []byte("root"), Mode: 0o644},
	}}
	var a, b bytes.Buffer
	if err := i.Write(&a); err != nil {
		t.Fatal(err)
	}
	// The order in which files are named makes no difference.
	i.Files[0], i.Files[2] = i.Files[2], i.Files[0]
	if err := i.Write(&b); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("the same files make different bytes")
	}
	outer := archive(t, a.Bytes())
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(outer["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest[0].RepoTags[0] != "lab/x:1" {
		t.Errorf("tag %v", manifest[0].RepoTags)
	}
	layer := outer[manifest[0].Layers[0]]
	sum := sha256.Sum256(layer)
	if config := string(outer[manifest[0].Config]); !strings.Contains(config, "sha256:"+hex.EncodeToString(sum[:])) || !strings.Contains(config, "/bin/tool") {
		t.Errorf("config %s does not name the layer and the entry point", config)
	}
	inner := archive(t, layer)
	for name, want := range map[string]string{"bin/tool": "tool", "bin/sh": "tool", "etc/passwd": "root", "tmp/": "", "bin/": ""} {
		if got, ok := inner[name]; !ok || string(got) != want {
			t.Errorf("%s: %q, there %v, want %q", name, got, ok, want)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, i := range map[string]Image{
		"no name":        {},
		"relative path":  {Name: "x", Files: []File{{Path: "a"}}},
		"path upwards":   {Name: "x", Files: []File{{Path: "/a/../b"}}},
		"twice":          {Name: "x", Files: []File{{Path: "/a"}, {Path: "/a"}}},
		"missing source": {Name: "x", Files: []File{{Path: "/a", Source: "/nonexistent/a"}}},
	} {
		if err := i.Write(io.Discard); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestResolveStaysInside(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"usr/lib", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "usr/lib/x.so.1.2"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"lib": "usr/lib", "usr/lib/x.so": "/lib/x.so.1", "usr/lib/x.so.1": "../../../../lib/x.so.1.2", "etc/loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Resolve(root, "/lib/x.so")
	if want := filepath.Join(root, "usr/lib/x.so.1.2"); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := Resolve(root, "/etc/loop"); err == nil {
		t.Error("a loop of links was resolved")
	}
}

func TestMergeKeepsTheFirst(t *testing.T) {
	got := Merge([]File{{Path: "/a", Link: "1"}}, []File{{Path: "/a", Link: "2"}, {Path: "/b"}})
	if len(got) != 2 || got[0].Link != "1" {
		t.Errorf("got %v", got)
	}
}
