// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestDiskContainsTheTree(t *testing.T) {
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin") // a user's may lack them
	tree, image := t.TempDir(), filepath.Join(t.TempDir(), "disk.img")
	large := bytes.Repeat([]byte("0123456789abcdef"), 3<<20/16)
	if err := os.MkdirAll(filepath.Join(tree, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"a/b/large": large, "a/program": []byte("#!/bin/sh\n"), "empty": nil} {
		if err := os.WriteFile(filepath.Join(tree, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(tree, "a/program"), os.ModeSetuid|0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("b/large", filepath.Join(tree, "a/link")); err != nil {
		t.Fatal(err)
	}
	// Many small files could use up the inodes.
	for range 300 {
		f, err := os.CreateTemp(filepath.Join(tree, "a"), "x")
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if err := Disk(context.Background(), tree, image, os.Stderr); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("e2fsck", "-f", "-n", image).CombinedOutput(); err != nil {
		t.Fatalf("e2fsck found errors: %v\n%s", err, out)
	}
	debugfs := func(request string) string {
		out, err := exec.Command("debugfs", "-R", request, image).Output()
		if err != nil {
			t.Fatalf("%s: %v", request, err)
		}
		return string(out)
	}
	if got := debugfs("cat /a/b/large"); got != string(large) {
		t.Errorf("a file of %d bytes is %d other bytes in the image", len(large), len(got))
	}
	if got := debugfs("stat /a/program"); !strings.Contains(got, "Mode:  04755") {
		t.Errorf("the mode was not kept:\n%s", got)
	}
	if got := debugfs("stat /a/link"); !strings.Contains(got, `Fast link dest: "b/large"`) {
		t.Errorf("the link was not kept:\n%s", got)
	}
	if got := strings.Count(debugfs("ls -p /a"), "/x"); got != 300 {
		t.Errorf("the image has %d of 300 files", got)
	}
}

func TestDiskErrorNamesTheTree(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	if err := Disk(context.Background(), missing, missing+".img", os.Stderr); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("error %v does not name the tree", err)
	}
}
