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

// Failures say, by network id, what a process on a node has not built or not
// removed. A network that is not named is as it should be.
type Failures map[int]string

// Bounds of the annotation. What does not fit is told without its reason.
const (
	failureReasons = 16
	failureText    = 240
	failureRaw     = 64 << 10
	otherFailures  = "see the node's events and log"
)

// failureGroup is the ids that fail for one reason: of hundreds of networks on
// a node, most that fail do so for the same.
type failureGroup struct {
	IDs string `json:"ids"` // "3,7-9"
	Why string `json:"why"`
}

// Render is the annotation's value, "" for no failures.
func (f Failures) Render() (string, error) {
	if len(f) == 0 {
		return "", nil
	}
	byText := map[string][]int{}
	for id, why := range f {
		why = strings.ToValidUTF8(strings.ReplaceAll(why, "\n", "; "), "?")
		if len(why) > failureText {
			why = strings.ToValidUTF8(why[:failureText], "") + "…"
		}
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

// ranges renders numbers as "3,7-9".
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

// ParseFailures reads the annotation's value. It is a node's word: an error
// means that nothing of it is taken.
func ParseFailures(raw string) (Failures, error) {
	if raw == "" {
		return nil, nil
	}
	if len(raw) > failureRaw {
		return nil, fmt.Errorf("%d bytes are more than %d", len(raw), failureRaw)
	}
	var groups []failureGroup
	if err := json.Unmarshal([]byte(raw), &groups); err != nil {
		return nil, err
	}
	out := Failures{}
	for _, g := range groups {
		for _, part := range strings.Split(g.IDs, ",") {
			low, high, isRange := strings.Cut(part, "-")
			first, err := strconv.Atoi(low)
			last := first
			if err == nil && isRange {
				last, err = strconv.Atoi(high)
			}
			if err != nil || first < DefaultID || last > MaxID || first > last {
				return nil, errors.New("ids: " + strconv.Quote(part) + " is not a network id, or a range of them")
			}
			for id := first; id <= last; id++ {
				out[id] = g.Why
			}
		}
	}
	return out, nil
}
