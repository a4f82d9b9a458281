// SPDX-License-Identifier: Apache-2.0

package kube

import "time"

// EventRepeat is how often a problem that lasts has an event again: the API server deletes events after an hour.
const EventRepeat = 30 * time.Minute

// ProblemEvents records the last event about each object. It is not safe for concurrent use.
type ProblemEvents[K comparable] struct{ last map[K]problemEvent }

type problemEvent struct {
	text string
	at   time.Time
}

// Due reports whether an object's problem needs an event now, and records that it is sent: a new problem does, and one
// that has lasted for EventRepeat since its last event. An object without a problem, "", is forgotten.
func (e *ProblemEvents[K]) Due(key K, problem string, now time.Time) bool {
	last, had := e.last[key]
	switch {
	case problem == "":
		delete(e.last, key)
		return false
	case had && last.text == problem && now.Sub(last.at) < EventRepeat:
		return false
	case e.last == nil:
		e.last = map[K]problemEvent{}
	}
	e.last[key] = problemEvent{problem, now}
	return true
}

// Len is the number of objects with problems.
func (e *ProblemEvents[K]) Len() int { return len(e.last) }
