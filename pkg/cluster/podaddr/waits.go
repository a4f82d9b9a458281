// SPDX-License-Identifier: Apache-2.0

package podaddr

import "container/list"

// waits knows which pods wait for what, in the order in which they came. It is
// not safe for concurrent use.
type waits struct {
	enqueue func(pod string)
	pods    map[topic]*list.List // of waiter, the first came first
	topics  map[string]map[topic]*list.Element
	turn    map[string]map[topic]uint64 // pods that were woken alone, and when they came
	came    uint64
}

type waiter struct {
	pod  string
	came uint64
}

func newWaits() *waits {
	return &waits{enqueue: func(string) {}, pods: map[topic]*list.List{}, topics: map[string]map[topic]*list.Element{}, turn: map[string]map[topic]uint64{}}
}

// expect adds what a pod is about to look for, so that what comes while it
// looks is not missed.
func (w *waits) expect(pod string, topics ...topic) {
	for _, t := range topics {
		if _, ok := w.topics[pod][t]; ok {
			continue
		}
		if w.pods[t] == nil {
			w.pods[t] = list.New()
		}
		if w.topics[pod] == nil {
			w.topics[pod] = map[topic]*list.Element{}
		}
		if came, ok := w.turn[pod][t]; ok {
			w.topics[pod][t] = insert(w.pods[t], waiter{pod, came})
			continue
		}
		w.came++
		w.topics[pod][t] = w.pods[t].PushBack(waiter{pod, w.came})
	}
}

// insert puts one who found nothing back into its place, which is near the
// front.
func insert(l *list.List, new waiter) *list.Element {
	for e := l.Front(); e != nil; e = e.Next() {
		if of(e).came > new.came {
			return l.InsertBefore(new, e)
		}
	}
	return l.PushBack(new)
}

func of(e *list.Element) waiter { return e.Value.(waiter) } //nolint:forcetypeassert // nothing else is in there

// settle says what the pod waits for after it has looked, and gives the turn
// that it had to the next where there is more to be had.
func (w *waits) settle(pod string, topics ...topic) {
	stays := map[topic]bool{}
	for _, t := range topics {
		stays[t] = true
	}
	for t, e := range w.topics[pod] {
		if !stays[t] {
			w.remove(pod, t, e)
		}
	}
	w.expect(pod, topics...)
	had := w.turn[pod]
	delete(w.turn, pod)
	for t := range had {
		if !stays[t] {
			w.wakeNext(t)
		}
	}
}

func (w *waits) remove(pod string, t topic, e *list.Element) {
	w.pods[t].Remove(e)
	if w.pods[t].Len() == 0 {
		delete(w.pods, t)
	}
	delete(w.topics[pod], t)
	if len(w.topics[pod]) == 0 {
		delete(w.topics, pod)
	}
}

// awaited tells whether anybody waits for t.
func (w *waits) awaited(t topic) bool { return w.pods[t] != nil }

// wake lets all who wait for t look again.
func (w *waits) wake(t topic) {
	if l := w.pods[t]; l != nil {
		for e := l.Front(); e != nil; e = e.Next() {
			w.enqueue(of(e).pod)
		}
	}
}

// wakeNext lets the first who waits for t look again. If it finds enough, or
// does not want it any more, the next has its turn.
func (w *waits) wakeNext(t topic) {
	l := w.pods[t]
	if l == nil {
		return
	}
	e := l.Front()
	first := of(e)
	w.remove(first.pod, t, e)
	if w.turn[first.pod] == nil {
		w.turn[first.pod] = map[topic]uint64{}
	}
	w.turn[first.pod][t] = first.came
	w.enqueue(first.pod)
}
