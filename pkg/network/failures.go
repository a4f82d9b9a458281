// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Failures holds, by network id, why a process on a node failed to build or
// remove a network. Networks without an entry are in their desired state.
type Failures map[int]string

// Limits of the annotation. Failures beyond them get otherFailures as reason.
const (
	failureReasons = 16
	failureText    = 240
	failureRaw     = 64 << 10
	otherFailures  = "see the node's events and log"
)

// failureGroup is the networks that fail for one reason. A node can have
// hundreds of networks, and most failures share a reason.
type failureGroup struct {
	IDs string `json:"ids"` // "3,7-9"
	Why string `json:"why"`
}

// Render returns the annotation's value, "" for no failures.
func (f Failures) Render() (string, error) {
	if len(f) == 0 {
		return "", nil
	}
	byText := map[string][]int{}
	for id, why := range f {
		why = Shorten(strings.ToValidUTF8(strings.ReplaceAll(why, "\n", "; "), "?"), failureText)
		byText[why] = append(byText[why], id)
	}
	texts := slices.SortedFunc(maps.Keys(byText), func(a, b string) int {
		return slices.Min(byText[a]) - slices.Min(byText[b])
	})
	if len(texts) > failureReasons {
		var rest []int
		for _, t := range texts[failureReasons:] {
			rest = append(rest, byText[t]...)
		}
		texts = append(texts[:failureReasons:failureReasons], otherFailures)
		byText[otherFailures] = append(byText[otherFailures], rest...)
	}
	var groups []failureGroup
	for _, t := range texts {
		groups = append(groups, failureGroup{ranges(byText[t]), t})
	}
	raw, err := json.Marshal(groups)
	return string(raw), err
}

// ranges renders ids as "3,7-9".
func ranges(ids []int) string {
	slices.Sort(ids)
	ids = slices.Compact(ids)
	var out []string
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		if out = append(out, strconv.Itoa(ids[i])); j > i {
			out[len(out)-1] += "-" + strconv.Itoa(ids[j])
		}
		i = j + 1
	}
	return strings.Join(out, ",")
}

// ParseFailures parses the annotation's value. A node is not trusted to write
// a valid one: after an error no entry is used.
func ParseFailures(raw string) (Failures, error) {
	if raw == "" {
		return nil, nil
	}
	if len(raw) > failureRaw {
		return nil, fmt.Errorf("%d bytes exceed the limit of %d", len(raw), failureRaw)
	}
	var groups []failureGroup
	if err := json.Unmarshal([]byte(raw), &groups); err != nil {
		return nil, fmt.Errorf("decode the failures: %w", err)
	}
	out := Failures{}
	named := 0
	for _, g := range groups {
		for _, part := range strings.Split(g.IDs, ",") {
			low, high, isRange := strings.Cut(part, "-")
			first, err := strconv.Atoi(low)
			last := first
			if err == nil && isRange {
				last, err = strconv.Atoi(high)
			}
			if err != nil || first < DefaultID || last > MaxID || first > last {
				return nil, errors.New("ids: " + strconv.Quote(part) + " is neither a network id nor a range of network ids")
			}
			if named += last - first + 1; named > MaxID-DefaultID+1 { // repeated ranges would take seconds
				return nil, errors.New("ids: networks are named more than once")
			}
			for id := first; id <= last; id++ {
				out[id] = g.Why
			}
		}
	}
	return out, nil
}
