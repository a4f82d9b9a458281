// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// parallel creates n objects, several at a time.
func (w world) parallel(n int, object func(i int) client.Object) {
	w.t.Helper()
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			for i := k; i < n; i += 8 {
				if err := w.Create(w.ctx, object(i)); err != nil {
					w.t.Errorf("create object %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// Networks come and go, each under a name of its own: ids are used again, and
// nothing of a network stays in memory.
func TestChurn(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle()
	const lanes, cycles = 10, 30
	// Twice as many as there are at a time: with fewer than networks in all, an
	// id that is not given back ends the test.
	cfg, err := config.Parse(fmt.Sprintf("[default]\nmax-networks = %d\n[kubernetes]\nlease-duration = 2s\nlease-renew-deadline = 1s\n", 2*lanes))
	if err != nil {
		t.Fatal(err)
	}
	for i := range lanes {
		team := fmt.Sprintf("churn-%d", i)
		defer w.remove(w.namespace(team, true, "team="+team))
	}
	m := startMortal(cfg, 0, false) // which remembers no writes
	defer m.stop(t)
	had := map[string]string{}
	turn := func(cycle int) {
		var cudns []*udnv1.ClusterUserDefinedNetwork
		for i := range lanes {
			c := newCUDN(fmt.Sprintf("churn-%d-%d", i, cycle), fmt.Sprintf("churn-%d", i), "10.121.0.0/16")
			w.create(c)
			cudns = append(cudns, c)
		}
		for i, c := range cudns {
			w.created(c)
			id := w.nad(fmt.Sprintf("churn-%d", i), c.Name).Annotations[network.AnnotationNetworkID]
			if id == "" || had[id] != "" {
				t.Errorf("%s has the id %q, which %s had", c.Name, id, had[id])
			}
			had[id] = c.Name
			w.remove(c)
		}
		for _, c := range cudns {
			w.waitGone(c)
		}
	}
	memory := func() (bytes uint64, goroutines int) {
		var m runtime.MemStats
		for range 3 { // what finalizers and pools hold goes after the first
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, runtime.NumGoroutine()
	}
	for cycle := range cycles / 3 {
		turn(cycle)
	}
	before, goroutines := memory()
	for cycle := cycles / 3; cycle < cycles; cycle++ {
		turn(cycle)
	}
	after, goroutinesAfter := memory()
	t.Logf("%d networks made and deleted, %d at a time: heap %d KiB after a third, %d KiB at the end; goroutines %d, %d",
		lanes*cycles, lanes, before>>10, after>>10, goroutines, goroutinesAfter)
	// A network's objects take several KiB: this is less than a tenth of what
	// 200 forgotten ones would.
	if after > before+64<<10 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	if goroutinesAfter > goroutines+lanes {
		t.Errorf("goroutines grew from %d to %d", goroutines, goroutinesAfter)
	}
}

// Nothing runs on after the cluster role has ended.
func TestNoGoroutineLeft(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle() // leaves the connections that this process keeps to the API server
	team := "leak"
	defer w.remove(w.namespace(team, true, "team="+team))
	before := goleak.IgnoreCurrent()
	c := startController(t, testConfig(t))
	n := newCUDN(team, team, "10.122.0.0/16")
	w.create(n)
	w.created(n)
	w.remove(n)
	w.waitGone(n)
	c.stop()
	// controller-runtime's watch of metadata, stopped with an event in hand, offers
	// that for ever: one for each watch that this process ever stopped.
	offering := goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop")
	if err := goleak.Find(before, offering); err != nil {
		t.Error(err)
	}
}
