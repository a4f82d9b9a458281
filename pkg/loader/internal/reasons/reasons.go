// SPDX-License-Identifier: Apache-2.0

// Package reasons generates pkg/loader's Reason enum from bpf/bh_reasons.h, the list
// of verdicts and reasons. The C programs include the header directly.
package reasons

import (
	"bytes"
	"fmt"
	"go/format"
	"regexp"
	"strings"
)

// Reason is one line of the header.
type Reason struct{ Name, Verdict, Label, Text string }

var line = regexp.MustCompile(`^BH_REASON\((\w+), (PASS|REFUSE), "([a-z-]+)", "([^"]*)"\)$`)

// Parse reads the header. Every line that is neither empty nor a comment must be a
// reason.
func Parse(header []byte) ([]Reason, error) {
	var out []Reason
	seen := map[string]bool{}
	for i, l := range strings.Split(string(header), "\n") {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "/*") || strings.HasPrefix(l, "*") || strings.HasPrefix(l, "BH_REASON(identifier") {
			continue
		}
		m := line.FindStringSubmatch(l)
		if m == nil {
			return nil, fmt.Errorf("bh_reasons.h line %d: not a BH_REASON(NAME, PASS|REFUSE, \"label\", \"text\"): %s", i+1, l)
		}
		if seen[m[1]] || seen[m[3]] {
			return nil, fmt.Errorf("bh_reasons.h line %d: %s or label %q appears twice", i+1, m[1], m[3])
		}
		seen[m[1]], seen[m[3]] = true, true
		out = append(out, Reason{Name: m[1], Verdict: m[2], Label: m[3], Text: m[4]})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("bh_reasons.h: no reasons")
	}
	return out, nil
}

func goName(c string) string {
	var b strings.Builder
	for _, w := range strings.Split(strings.ToLower(c), "_") {
		switch w {
		case "vrf":
			b.WriteString("VRF")
		default:
			b.WriteString(strings.ToUpper(w[:1]) + w[1:])
		}
	}
	return b.String()
}

// Generate returns the Go source generated from a header.
func Generate(header []byte) ([]byte, error) {
	rs, err := Parse(header)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("// SPDX-License-Identifier: Apache-2.0\n\n// Code generated from bpf/bh_reasons.h by internal/reasons/gen; DO NOT EDIT.\n\npackage loader\n\n")
	b.WriteString("// Reason says why a program passed or refused something. It is the counter's index.\ntype Reason uint32\n\nconst (\n")
	for i, r := range rs {
		fmt.Fprintf(&b, "\t// Reason%s: %s.\n\tReason%s", goName(r.Name), r.Text, goName(r.Name))
		if i == 0 {
			b.WriteString(" Reason = iota")
		}
		b.WriteString("\n")
	}
	b.WriteString("\treasonMax\n)\n\nvar reasonInfo = [reasonMax]struct {\n\tlabel, text string\n\tverdict Verdict\n}{\n")
	for _, r := range rs {
		v := "Pass"
		if r.Verdict == "REFUSE" {
			v = "Refuse"
		}
		fmt.Fprintf(&b, "\tReason%s: {%q, %q, %s},\n", goName(r.Name), r.Label, r.Text, v)
	}
	b.WriteString("}\n")
	out, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("format the generated reasons: %w", err)
	}
	return out, nil
}
