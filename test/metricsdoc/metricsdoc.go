// SPDX-License-Identifier: Apache-2.0

// Package metricsdoc compares docs/metrics.md with the metrics that a process
// registers. The tests of packages that register metrics use it.
package metricsdoc

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// page is the path from the directory of a package in pkg, where its tests run.
const page = "../../docs/metrics.md"

// own is the prefix of Bulkhead's own metrics.
const own = "bulkhead_"

var (
	// row is a table row whose first cell is a metric: `name` or `name{label,label}`.
	row = regexp.MustCompile("^\\| `([a-z0-9_]+(\\{[a-z_,]+\\})?)` \\|")
	// desc is the text of a prometheus.Desc, which has no methods for its fields.
	desc = regexp.MustCompile(`^Desc\{fqName: "([a-zA-Z0-9_:]+)".* variableLabels: \{([a-z_,]*)\}\}$`)
)

// Check fails the test unless the table of the page's section lists exactly the
// registered metrics of Bulkhead, with their labels.
func Check(t testing.TB, section string, registered ...prometheus.Collector) {
	t.Helper()
	documented, exported := documentedMetrics(t, section), registeredMetrics(t, registered)
	for _, m := range exported {
		if strings.HasPrefix(m, own) && !slices.Contains(documented, m) {
			t.Errorf("metric %s is registered, but section %q of docs/metrics.md does not list it", m, section)
		}
	}
	for _, m := range documented {
		if !slices.Contains(exported, m) {
			t.Errorf("section %q of docs/metrics.md lists metric %s, but no such metric is registered", section, m)
		}
	}
}

// CheckRegistered fails the test unless every metric in the table of the page's
// section is registered.
func CheckRegistered(t testing.TB, section string, registered ...prometheus.Collector) {
	t.Helper()
	exported := registeredMetrics(t, registered)
	for _, m := range documentedMetrics(t, section) {
		if !slices.Contains(exported, m) {
			t.Errorf("section %q of docs/metrics.md lists metric %s, but no such metric is registered", section, m)
		}
	}
}

// CheckRows fails the test unless the rows of the table in the page's section,
// without its header, begin with these texts, in any order.
func CheckRows(t testing.TB, section string, want []string) {
	t.Helper()
	rows := readRows(t, section)
	for _, w := range want {
		if !slices.ContainsFunc(rows, func(r string) bool { return strings.HasPrefix(r, w) }) {
			t.Errorf("section %q of docs/metrics.md has no row %s", section, w)
		}
	}
	for _, r := range rows {
		if !slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(r, w) }) {
			t.Errorf("section %q of docs/metrics.md has a row of something that does not exist: %s", section, r)
		}
	}
}

// documentedMetrics returns the metrics in the table of a section of the page.
func documentedMetrics(t testing.TB, section string) []string {
	t.Helper()
	var out []string
	for _, r := range readRows(t, section) {
		m := row.FindStringSubmatch(r)
		if m == nil {
			t.Errorf("section %q of docs/metrics.md has a row that does not begin with a metric: %s", section, r)
			continue
		}
		out = append(out, m[1])
	}
	return out
}

// readRows returns the rows of the table in a section of the page whose first
// cell is code, which leaves out the header.
func readRows(t testing.TB, section string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, body, found := strings.Cut(string(text), "\n## "+section+"\n")
	if !found {
		t.Fatalf("docs/metrics.md has no section %q", section)
	}
	body, _, _ = strings.Cut(body, "\n## ")
	var out []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "| `") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	if len(out) == 0 {
		t.Fatalf("section %q of docs/metrics.md has no table", section)
	}
	return out
}

// registeredMetrics returns the metrics that the collectors describe, in the
// page's format.
func registeredMetrics(t testing.TB, collectors []prometheus.Collector) []string {
	t.Helper()
	var out []string
	for _, c := range collectors {
		descs := make(chan *prometheus.Desc)
		go func() {
			defer close(descs)
			c.Describe(descs)
		}()
		for d := range descs {
			m := desc.FindStringSubmatch(d.String())
			switch {
			case m == nil:
				t.Errorf("cannot parse %s", d)
			case m[2] == "":
				out = append(out, m[1])
			default:
				out = append(out, fmt.Sprintf("%s{%s}", m[1], m[2]))
			}
		}
	}
	return out
}
