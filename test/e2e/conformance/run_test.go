// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestJudge(t *testing.T) {
	const name = "[sig-network] Services should serve [Conformance]"
	spec := func(text, state, message string) specReport {
		r := specReport{ContainerHierarchyTexts: []string{"[sig-network] Services"}, LeafNodeType: "It", LeafNodeText: text, State: state}
		r.Failure.Message = message
		return r
	}
	const own = "should serve [Conformance]"
	before := specReport{LeafNodeType: "SynchronizedBeforeSuite", State: Passed}
	broken := specReport{LeafNodeType: "SynchronizedBeforeSuite", State: Failed}
	broken.Failure.Message = "no nodes"
	other := spec("should not", Skipped, "")
	for what, c := range map[string]struct {
		reports      []specReport
		err          error
		outcome, why string
	}{
		"passed":              {[]specReport{before, other, spec(own, Passed, "")}, nil, Passed, ""},
		"failed":              {[]specReport{before, other, spec(own, Failed, "timed out")}, errors.New("exit status 1"), Failed, "It failed: timed out"},
		"skipped itself":      {[]specReport{before, other, spec(own, Skipped, "needs a cloud")}, nil, Skipped, "needs a cloud"},
		"not selected":        {[]specReport{before, other, spec(own, Skipped, "")}, nil, Failed, "It skipped: "},
		"suite is broken":     {[]specReport{broken, other, spec(own, Skipped, "")}, errors.New("exit status 1"), Failed, "SynchronizedBeforeSuite failed: no nodes\nIt skipped: "},
		"no report":           {nil, nil, Failed, "the report does not contain it"},
		"passed, but failure": {[]specReport{before, spec(own, Passed, "")}, errors.New("signal: killed"), Failed, "signal: killed"},
	} {
		if outcome, why := judge(name, c.reports, c.err); outcome != c.outcome || why != c.why {
			t.Errorf("%s: %s %q, want %s %q", what, outcome, why, c.outcome, c.why)
		}
	}
}

func TestExcluded(t *testing.T) {
	if why := excluded("[sig-network] Service endpoints latency should not be very high [Conformance]"); why == "" {
		t.Error("a spec on the list of exclusions has no reason")
	}
	if why := excluded("[sig-network] Services should serve a basic endpoint from pods [Conformance]"); why != "" {
		t.Errorf("a spec that is not on the list of exclusions is left out: %s", why)
	}
}

func TestSample(t *testing.T) {
	all := []string{"Service endpoints latency should not be very high"}
	for i := range 40 {
		all = append(all, fmt.Sprintf("spec %d", i))
	}
	sample := Sample(all, "a")
	if len(sample) != sampleSize || slices.Contains(sample, all[0]) {
		t.Errorf("sample of seed a: %v", sample)
	}
	if again := Sample(all, "a"); !slices.Equal(sample, again) {
		t.Errorf("one seed chose %v and %v", sample, again)
	}
	if other := Sample(all, "b"); slices.Equal(sample, other) {
		t.Errorf("two seeds chose %v", sample)
	}
}
