// SPDX-License-Identifier: Apache-2.0

// Package program builds the programs that tests start.
package program

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// Build builds the static program of a package of this module and returns its path; env adds to
// the environment, such as GOARCH. It reads the state of each source file of the module that the
// program is built from: go test's cache repeats a result only while these files stay as they are.
func Build(t testing.TB, pkg string, env ...string) string {
	t.Helper()
	env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	run := func(args ...string) string {
		cmd := exec.Command("go", args...)
		cmd.Env, cmd.Stderr = env, os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %s: %v", strings.Join(args, " "), err)
		}
		return string(out)
	}
	const files = `{{if and .Module .Module.Main}}{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$dir}}/{{.}}
{{end}}{{end}}`
	sources := strings.Fields(run("list", "-deps", "-f", files, pkg))
	if len(sources) == 0 {
		t.Fatalf("package %s has no source files", pkg)
	}
	for _, f := range sources {
		if _, err := os.Stat(f); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(t.TempDir(), path.Base(pkg))
	run("build", "-o", binary, pkg)
	return binary
}
