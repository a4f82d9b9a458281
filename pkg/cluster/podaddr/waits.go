// SPDX-License-Identifier: Apache-2.0

package podaddr

import "container/list"

// waits knows which pods wait for what, in the order in which they came. It is
// not safe for concurrent use.
type waits struct {
	enqueue func(pod string)
	pods    map[topic]*list.List // of pod keys
	topics  map[string]map[topic]*list.Element
	turn    map[string]map[topic]struct{} // pods that were woken alone
}

func newWaits() *waits {
	return &waits{enqueue: func(string) {}, pods: map[topic]*list.List{}, topics: map[string]map[topic]*list.Element{}, turn: map[string]map[topic]struct{}{}}
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
		w.topics[pod][t] = w.pods[t].PushBack(pod)
	}
}

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
		if stays[t] {
			w.pods[t].MoveToFront(w.topics[pod][t])
		} else {
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

// wake lets all who wait for t look again.
func (w *waits) wake(t topic) {
	if l := w.pods[t]; l != nil {
		for e := l.Front(); e != nil; e = e.Next() {
			w.enqueue(e.Value.(string)) //nolint:forcetypeassert // nothing else is in there
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
	pod := e.Value.(string) //nolint:forcetypeassert // nothing else is in there
	w.remove(pod, t, e)
	if w.turn[pod] == nil {
		w.turn[pod] = map[topic]struct{}{}
	}
	w.turn[pod][t] = struct{}{}
	w.enqueue(pod)
}
