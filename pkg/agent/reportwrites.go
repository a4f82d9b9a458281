// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"time"
)

// pace spaces writes: the first comes at once, and the time to the next one doubles while there is always something to write.
type pace struct {
	last time.Time
	gap  time.Duration // the least time from last to the next write
}

// The least and the greatest time between two writes of the report.
const shortestGap, longestGap = time.Second, 30 * time.Second

// next returns how long a write must wait. If it need not, next counts it as made.
func (p *pace) next(now time.Time) (wait time.Duration) {
	since := now.Sub(p.last)
	switch {
	case since < p.gap:
		return p.gap - since
	case since >= 2*p.gap: // nothing was waiting
		p.gap = shortestGap
	default:
		p.gap = min(2*p.gap, longestGap)
	}
	p.last = now
	return 0
}

// newProblems returns the problems that the last report did not have. The others are those that do not degrade the node, which
// count as reported.
func (r *reporter) newProblems(problems []Problem) (degrading, others []Problem) {
	if r.reported == nil {
		r.reported = map[Problem]bool{}
	}
	for _, p := range problems {
		switch {
		case r.reported[p]:
		case p.degrades():
			degrading = append(degrading, p)
		default:
			others = append(others, p)
			r.reported[p] = true
		}
	}
	return degrading, others
}

// sendEvents makes events of problems.
func (r *reporter) sendEvents(problems []Problem) {
	var ofNode []Problem
	for _, p := range problems {
		if pod, ok := r.cache.Pod(p.pod); ok {
			r.api.PodEvent(pod, p.Reason, p.Message)
			continue
		}
		ofNode = append(ofNode, p)
	}
	for _, p := range summarise(ofNode) {
		r.api.Event(p.degrades(), p.Reason, p.Message)
	}
}

// markReported records the problems of a report.
func (r *reporter) markReported(problems []Problem) {
	r.reported = map[Problem]bool{}
	for _, p := range problems {
		r.reported[p] = true
	}
}

// mostEvents is how many events of one reason a report has. client-go drops events of an object when there are many, also
// those of other reasons.
const mostEvents = 3

// summarise returns the problems without those beyond mostEvents of one reason. The last that stays says how many there are.
func summarise(problems []Problem) (out []Problem) {
	count, last := map[string]int{}, map[string]int{}
	for _, p := range problems {
		if count[p.Reason]++; count[p.Reason] <= mostEvents {
			last[p.Reason] = len(out)
			out = append(out, p)
		}
	}
	for reason, n := range count {
		if n > mostEvents {
			out[last[reason]].Message += fmt.Sprintf("; and %d more problems of this kind: see bulkheadctl status", n-mostEvents)
		}
	}
	return out
}
