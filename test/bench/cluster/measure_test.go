// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bulkhead/test/bench/report"
	"maps"
	"strings"
	"testing"
	"time"
)

func TestParseMetric(t *testing.T) {
	const page = `# HELP apiserver_request_total Counter of apiserver requests.
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="nodes",verb="LIST"} 3
apiserver_request_total{code="201",resource="a\"b,c",verb="POST"} 1.5e+06
apiserver_request_total_created 9
apiserver_request_total 4
`
	got, err := parseMetric(strings.NewReader(page), "apiserver_request_total")
	if err != nil || len(got) != 3 {
		t.Fatalf("%d samples, %v", len(got), err)
	}
	if want := map[string]string{"code": "201", "resource": `a\"b,c`, "verb": "POST"}; !maps.Equal(got[1].labels, want) || got[1].value != 1.5e6 {
		t.Errorf("second sample is %v", got[1])
	}
	if len(got[2].labels) != 0 || got[2].value != 4 {
		t.Errorf("third sample is %v", got[2])
	}
	for _, bad := range []string{`m{a="b`, `m{a="b"} x`, `m `, `m{a="\`} {
		if _, err := parseMetric(strings.NewReader(bad), "m"); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzParseMetric(f *testing.F) {
	f.Add(`m{a="b",c="d\""} 3`)
	f.Fuzz(func(_ *testing.T, page string) { _, _ = parseMetric(strings.NewReader(page), "m") })
}

func TestWrites(t *testing.T) {
	before := writes{"PATCH nodes": 5, "PUT leases": 1}
	count, rest := writes{"PATCH nodes": 5, "PUT leases": 4, "APPLY x/status": 6, "POST events refused with 409": 2}.since(before).split()
	if got := count.per(3); got != "2 APPLY x/status" {
		t.Errorf("writes that count: %s", got)
	}
	if rest.total() != 5 {
		t.Errorf("other writes: %s", rest.per(1))
	}
}

// Values that were not measured miss their targets; they are not zero.
func TestUnmeasured(t *testing.T) {
	if _, err := countWrites(nil); err == nil {
		t.Error("writes are counted without the metric")
	}
	for _, page := range []string{"", `controller_runtime_reconcile_total{controller="network"} 3`} {
		if q, err := parseQueue(page); err == nil {
			t.Errorf("queue %+v is read from %q", q, page)
		}
	}
	r := &result{networks: 500, create: phase{networks: 500, took: time.Second, writes: writes{"POST nads": 1500}}}
	if n := report.Missed(figures(r, nil)); n != 2 {
		t.Errorf("%d targets missed, want 2: CPU and memory were not measured", n)
	}
}

func TestFigures(t *testing.T) {
	phaseOf := func(n int, took time.Duration) phase {
		return phase{networks: n, took: took, cpu: usage{controllerProc: time.Duration(n) * time.Millisecond}, writes: writes{"POST nads": 3 * n}}
	}
	small := &result{networks: 500, create: phaseOf(500, 2*time.Second), peak: 90 << 20}
	big := &result{networks: 5000, create: phaseOf(5000, 24*time.Second), peak: 200 << 20}
	if n := report.Missed(figures(small, big)); n != 0 {
		t.Errorf("%d targets missed, want none", n)
	}
	if n := report.Missed(figures(small, nil)); n != 0 {
		t.Errorf("%d targets missed without the large size, want none", n)
	}
	small.create.took, small.peak = 4*time.Second, 101<<20
	big.create.took, big.peak = 60*time.Second, 301<<20
	for _, r := range []*result{small, big} {
		r.create.cpu[controllerProc] *= 5
		r.create.writes["PATCH nodes"] = 1
		r.restart.writes = writes{"PATCH nodes": 1}
	}
	if n := report.Missed(figures(small, big)); n != 10 {
		t.Errorf("%d targets missed, want all 10", n)
	}
}
