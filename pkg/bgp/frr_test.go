// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	"sigs.k8s.io/yaml"

	"bulkhead/test/native"
)

// What the goldens add to FRR's configuration as text, past the API of frr-k8s, is accepted by
// the parser of the real FRR.
func TestRawLines(t *testing.T) {
	tree, err := native.FindTree()
	if err != nil {
		t.Skip(err)
	}
	parse := func(text string) (string, error) {
		file := filepath.Join(t.TempDir(), "frr.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		argv := tree.Argv("vtysh", "-C", "-f", file)
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		return string(out), err
	}
	goldens, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(goldens) == 0 {
		t.Fatalf("goldens: %v, %v", goldens, err)
	}
	parsed := 0
	for _, golden := range goldens {
		data, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(data), "---\n") {
			var c frrv1.FRRConfiguration
			if err := yaml.Unmarshal([]byte(document), &c); err != nil || c.Spec.Raw.Config == "" {
				continue // the last one is none
			}
			if out, err := parse(c.Spec.Raw.Config); err != nil {
				t.Errorf("%s: %v: %s\n%s", golden, err, out, c.Spec.Raw.Config)
			}
			parsed++
			wrong := strings.Replace(c.Spec.Raw.Config, " neighbor ", " neighbour ", 1)
			if out, err := parse(wrong); err == nil {
				t.Errorf("%s: a mistake is accepted: %s\n%s", golden, out, wrong)
			}
		}
	}
	if parsed < 5 {
		t.Errorf("%d configurations have raw lines", parsed)
	}
}
