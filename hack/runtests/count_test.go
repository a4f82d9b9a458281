// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	events := `{"Action":"run","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"A/x"}
{"Action":"pass","Package":"p","Test":"A/x"}
{"Action":"output","Package":"p","Test":"A/y","Output":"why it failed\n"}
{"Action":"run","Package":"p","Test":"A/y"}
{"Action":"fail","Package":"p","Test":"A/y"}
{"Action":"fail","Package":"p","Test":"A","Elapsed":12.2}
{"Action":"run","Package":"bulkhead/pkg/loader","Test":"TestRootLSM"}
{"Action":"skip","Package":"bulkhead/pkg/loader","Test":"TestRootLSM"}
{"Action":"fail","Package":"p"}
`
	var out strings.Builder
	if got, want := count(strings.NewReader(events), &out), (counts{1, 1, 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !strings.Contains(out.String(), "why it failed") {
		t.Errorf("the reason is missing from %q", out.String())
	}
	if !strings.Contains(out.String(), "slow  12s p A\n") || strings.Count(out.String(), "slow ") != 1 {
		t.Errorf("the slow test is missing, or others are named: %q", out.String())
	}
	// A time-out ends no test, and other packages' failures do not hide it.
	out.Reset()
	hangs := `{"Action":"fail","Package":"p","Test":"A"}
{"Action":"run","Package":"q","Test":"B"}
{"Action":"run","Package":"q","Test":"B/x"}
{"Action":"output","Package":"q","Test":"B","Output":"=== RUN   B\n"}
{"Action":"output","Package":"q","Test":"B/x","Output":"goroutine 1 [select]:\n"}
{"Action":"fail","Package":"p"}
{"Action":"fail","Package":"q"}
`
	if got, want := count(strings.NewReader(hangs), &out), (counts{Failed: 2}); got != want {
		t.Errorf("a test that does not end: got %+v, want %+v", got, want)
	}
	if !strings.Contains(out.String(), "q B/x did not end\ngoroutine 1") {
		t.Errorf("the output of the test that does not end is missing from %q", out.String())
	}
	for name, events := range map[string]string{
		"a package that does not build": `{"Action":"fail","Package":"p","FailedBuild":"p"}`,
		"a skip that is not allowed":    `{"Action":"skip","Package":"p","Test":"B"}`,
		"a pattern that matches no test": `{"Action":"output","Package":"p","Output":"testing: warning: no tests to run\n"}
{"Action":"pass","Package":"p"}`,
		"no event": ``,
	} {
		if got := count(strings.NewReader(events+"\n"), &out); got != (counts{Failed: 1}) {
			t.Errorf("%s: %+v, want one failure", name, got)
		}
	}
}

// The command writes standard error, which os/exec reads, while its events are counted.
func TestStageOutput(t *testing.T) {
	s := stage{name: "s", goTest: true, args: []string{"sh", "-c", `
echo '{"Action":"output","Package":"p","Test":"A","Output":"why it failed\n"}'
echo '{"Action":"fail","Package":"p","Test":"A"}'
echo '{"Action":"pass","Package":"p","Test":"B"}'
echo '{"Action":"fail","Package":"p"}'
sleep 0.2
echo "from standard error" >&2`}}
	var out buffer
	if got, want := s.run(t.Context(), "", &out), (counts{Passed: 1, Failed: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, want := range []string{"why it failed", "fail  p (0.0s)", "from standard error"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing from %q", want, out.String())
		}
	}
}

// Every part of a lab whose checks are dealt to parts is a stage, and no other.
func TestStagesHaveAllParts(t *testing.T) {
	list, err := stages(true)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string][]string{}
	for _, s := range list {
		lab, part, ok := strings.Cut(s.name, "-part")
		if !ok {
			continue
		}
		if !slices.Contains(s.args, "-part="+part) || !slices.Contains(s.args, "-parts=2") {
			t.Errorf("stage %s runs %q", s.name, s.args)
		}
		parts[lab] = append(parts[lab], part)
	}
	if len(parts) != 2 {
		t.Errorf("labs in parts: %v, want two", parts)
	}
	for lab, got := range parts {
		if !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("%s has the parts %v", lab, got)
		}
	}
}

// A renamed test keeps its entry in allowedSkips only if the entry is renamed too.
func TestAllowedSkipsExist(t *testing.T) {
	for key := range allowedSkips {
		pkg, test, _ := strings.Cut(key, " ")
		test, _, _ = strings.Cut(test, "/")
		files, err := filepath.Glob(filepath.Join("../..", strings.TrimPrefix(pkg, "bulkhead/"), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(text), "\nfunc "+test+"(")
		}
		if !found {
			t.Errorf("package %s has no test %s", pkg, test)
		}
	}
}

// TestNodeOnly: a test of the firewall that skips where the kernel has no VRF devices, or cgroup v2
// elsewhere, may be skipped. This fails on a machine that has both, where nothing is skipped.
func TestNodeOnly(t *testing.T) {
	files, err := filepath.Glob("../../pkg/firewall/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, function := range strings.Split(string(text), "\nfunc ")[1:] {
			name, body, _ := strings.Cut(function, "(")
			if !strings.HasPrefix(name, "Test") || !strings.Contains(body, " podRoot(t)") && !strings.Contains(body, " newForwarder(t)") {
				continue
			}
			found++
			if allowedSkips["bulkhead/pkg/firewall "+name] == "" {
				t.Errorf("allowedSkips lacks %s of %s", name, file)
			}
		}
	}
	if found == 0 {
		t.Error("no test of the firewall needs a node: their helpers have other names now")
	}
}

// TestOnNode: each test that is skipped here because it runs on a node is among those that do.
func TestOnNode(t *testing.T) {
	list, err := os.ReadFile("../../test/e2e/kernel_test.go")
	if err != nil {
		t.Fatal(err)
	}
	tests := 0
	for name, reason := range allowedSkips {
		if reason != onNode && reason != noCgroup {
			continue
		}
		tests++
		_, test, _ := strings.Cut(name, " ")
		if !strings.Contains(string(list), `"`+test+`"`) {
			t.Errorf("kernelTests in test/e2e lacks %s", name)
		}
	}
	if tests == 0 {
		t.Error("no test runs on a node")
	}
}
