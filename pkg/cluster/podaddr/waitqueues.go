// SPDX-License-Identifier: Apache-2.0

package podaddr

import "container/list"

// waitQueues holds, for each topic, the waiting pods in the order in which they
// started to wait. It is not safe for concurrent use.
type waitQueues struct {
	enqueue  func(pod string)
	byTopic  map[topic]*list.List // of waiter, sorted by seq
	byPod    map[string]map[topic]*list.Element
	notified map[string]map[topic]uint64 // seq of pods that notifyNext has dequeued, until their next update
	seq      uint64
}

type waiter struct {
	pod string
	seq uint64
}

func newWaitQueues() *waitQueues {
	return &waitQueues{enqueue: func(string) {}, byTopic: map[topic]*list.List{}, byPod: map[string]map[topic]*list.Element{}, notified: map[string]map[topic]uint64{}}
}

// add makes a pod wait for topics. Reconcile calls it before it reads its inputs,
// so that it does not miss changes meanwhile.
func (w *waitQueues) add(pod string, topics ...topic) {
	for _, t := range topics {
		if _, ok := w.byPod[pod][t]; ok {
			continue
		}
		if w.byTopic[t] == nil {
			w.byTopic[t] = list.New()
		}
		if w.byPod[pod] == nil {
			w.byPod[pod] = map[topic]*list.Element{}
		}
		if seq, ok := w.notified[pod][t]; ok {
			w.byPod[pod][t] = insertBySeq(w.byTopic[t], waiter{pod, seq})
			continue
		}
		w.seq++
		w.byPod[pod][t] = w.byTopic[t].PushBack(waiter{pod, w.seq})
	}
}

// insertBySeq puts a pod that could not proceed when it was notified back at its previous position,
// which is near the front.
func insertBySeq(l *list.List, new waiter) *list.Element {
	for e := l.Front(); e != nil; e = e.Next() {
		if waiterOf(e).seq > new.seq {
			return l.InsertBefore(new, e)
		}
	}
	return l.PushBack(new)
}

func waiterOf(e *list.Element) waiter { return e.Value.(waiter) } //nolint:forcetypeassert // the lists contain nothing else

// update replaces the topics that a pod waits for after its reconcile. For each
// topic that it was notified of and no longer waits for, the next pod is
// notified, because more may be available.
func (w *waitQueues) update(pod string, topics ...topic) {
	keep := map[topic]bool{}
	for _, t := range topics {
		keep[t] = true
	}
	for t, e := range w.byPod[pod] {
		if !keep[t] {
			w.remove(pod, t, e)
		}
	}
	w.add(pod, topics...)
	notified := w.notified[pod]
	delete(w.notified, pod)
	for t := range notified {
		if !keep[t] {
			w.notifyNext(t)
		}
	}
}

func (w *waitQueues) remove(pod string, t topic, e *list.Element) {
	w.byTopic[t].Remove(e)
	if w.byTopic[t].Len() == 0 {
		delete(w.byTopic, t)
	}
	delete(w.byPod[pod], t)
	if len(w.byPod[pod]) == 0 {
		delete(w.byPod, pod)
	}
}

// hasWaiters reports whether a pod waits for t.
func (w *waitQueues) hasWaiters(t topic) bool { return w.byTopic[t] != nil }

// notifyAll enqueues all pods that wait for t.
func (w *waitQueues) notifyAll(t topic) {
	if l := w.byTopic[t]; l != nil {
		for e := l.Front(); e != nil; e = e.Next() {
			w.enqueue(waiterOf(e).pod)
		}
	}
}

// notifyNext enqueues the first pod that waits for t. When that pod no longer
// waits for t, update notifies the next one.
func (w *waitQueues) notifyNext(t topic) {
	l := w.byTopic[t]
	if l == nil {
		return
	}
	e := l.Front()
	first := waiterOf(e)
	w.remove(first.pod, t, e)
	if w.notified[first.pod] == nil {
		w.notified[first.pod] = map[topic]uint64{}
	}
	w.notified[first.pod][t] = first.seq
	w.enqueue(first.pod)
}
