// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Failures
		want string
		back Failures // nil: equal to in
	}{
		{"none", nil, "", nil},
		{"one network", Failures{7: "no VRF"}, `[{"ids":"7","why":"no VRF"}]`, nil},
		{"several networks, one reason", Failures{3: "no VRF", 7: "no VRF", 8: "no VRF", 9: "no VRF"}, `[{"ids":"3,7-9","why":"no VRF"}]`, nil},
		{"two reasons", Failures{9: "a", 2: "b", 10: "a"}, `[{"ids":"2","why":"b"},{"ids":"9-10","why":"a"}]`, nil},
		{"newline", Failures{1: "a\nb"}, `[{"ids":"1","why":"a; b"}]`, Failures{1: "a; b"}},
	} {
		raw, err := c.in.Render()
		if err != nil || raw != c.want {
			t.Errorf("%s: %s, %v; want %s", c.name, raw, err, c.want)
		}
		back := c.back
		if back == nil {
			back = c.in
		}
		if got, err := ParseFailures(raw); err != nil || !maps.Equal(got, back) {
			t.Errorf("%s: parsed as %v, %v", c.name, got, err)
		}
	}
	for _, raw := range []string{"x", `[{"ids":"","why":"a"}]`, `[{"ids":"-1"}]`, `[{"ids":"2-1"}]`, `[{"ids":"1-99999999"}]`, `[{"ids":"10001"}]`, `[{"ids":"0-10000,1"}]`, `[{"ids":"1-5001","why":"a"},{"ids":"1-5001","why":"b"}]`, strings.Repeat(" ", failureRaw+1)} {
		if got, err := ParseFailures(raw); err == nil {
			t.Errorf("%.40q: parsed as %v, want an error", raw, got)
		}
	}
}

// The annotation stays small with any number of failures, and lists every network.
func TestFailuresLimit(t *testing.T) {
	f := Failures{}
	for id := 1; id <= 1000; id++ {
		f[id] = fmt.Sprint(id, strings.Repeat(" long", 100))
	}
	raw, err := f.Render()
	if err != nil || len(raw) > 8<<10 {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	got, err := ParseFailures(raw)
	if err != nil || len(got) != len(f) || got[1000] != otherFailures {
		t.Errorf("%d networks, %v: %q", len(got), err, got[1000])
	}
}

func FuzzParseFailures(f *testing.F) {
	f.Add(`[{"ids":"3,7-9","why":"no VRF"}]`)
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := ParseFailures(raw)
		if err != nil {
			return
		}
		for id := range got {
			if id < 0 || id > MaxID {
				t.Fatalf("id %d", id)
			}
		}
	})
}
