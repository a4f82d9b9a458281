// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"os"
	"path/filepath"
	"testing"

	"bulkhead/hack/oci"
)

// write writes files below dir; a content that starts with @ is a symbolic
// link's target.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if content != "" && content[0] == '@' {
			err = os.Symlink(content[1:], file)
		} else {
			err = os.WriteFile(file, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestResolveStaysInside(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"usr/lib/x.so.1.2": "", "lib": "@usr/lib", "usr/lib/x.so": "@/lib/x.so.1",
		"usr/lib/x.so.1": "@../../../../lib/x.so.1.2", "etc/loop": "@loop",
	})
	got, err := Resolve(root, "/lib/x.so")
	if want := filepath.Join(root, "usr/lib/x.so.1.2"); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := Resolve(root, "/etc/loop"); err == nil {
		t.Error("a loop of links was resolved")
	}
}

// staticELF is an ELF file without program headers: no loader, no libraries.
const staticELF = "\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00\x01\x00\x00\x00" +
	"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x40\x00\x38\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func TestProgramsBringTheirPackages(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"root/usr/bin/tool-1": staticELF, "root/usr/bin/tool": "@tool-1", "root/usr/bin/orphan": staticELF,
		"root/usr/share/doc/tools/copyright": "MIT", "root/usr/share/doc/other/copyright": "MIT",
		"control/tools.control": "Package: tools\n", "control/tools.list": "/usr\n/usr/bin/tool-1\n",
		"control/other.control": "Package: other\n", "control/other.list": "/usr\n",
	})
	tree := TreeIn(dir)
	files, err := tree.Programs("/usr/bin/tool")
	if err != nil {
		t.Fatal(err)
	}
	want := []oci.File{
		{Path: "/usr/bin/tool", Source: tree.Root + "/usr/bin/tool-1"},
		{Path: "/usr/share/doc/tools/copyright", Source: tree.Root + "/usr/share/doc/tools/copyright", Mode: 0o644},
		{Path: "/var/lib/dpkg/status.d/tools", Source: dir + "/control/tools.control", Mode: 0o644},
	}
	if len(files) != len(want) {
		t.Fatalf("got %+v, want %+v", files, want)
	}
	for n, f := range files {
		if f.Path != want[n].Path || f.Source != want[n].Source || f.Mode != want[n].Mode {
			t.Errorf("got %+v, want %+v", f, want[n])
		}
	}
	for _, program := range []string{"/usr/bin/missing", "/usr/bin/orphan", "/usr/share/doc/tools/copyright"} {
		if _, err := tree.Programs(program); err == nil {
			t.Errorf("%s: accepted", program)
		}
	}
}
