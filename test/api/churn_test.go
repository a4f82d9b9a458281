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

// createParallel creates n objects, several at a time.
func (w fixture) createParallel(n int, object func(i int) client.Object) {
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

// Networks with different names are created and deleted: their ids are released,
// and the controller keeps nothing of them in memory.
func TestChurn(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	const lanes, cycles = 10, 30
	// Twice as many as exist at a time, but fewer than in total: the test fails
	// if ids are not released.
	cfg, err := config.Parse(fmt.Sprintf("[default]\nmax-networks = %d\n[kubernetes]\nlease-duration = 2s\nlease-renew-deadline = 1s\n", 2*lanes))
	if err != nil {
		t.Fatal(err)
	}
	for i := range lanes {
		team := fmt.Sprintf("churn-%d", i)
		defer w.remove(w.namespace(team, true, "team="+team))
	}
	m := startCrashController(cfg, 0, false) // records no writes, unlike startController
	defer m.stop(t)
	previous := map[string]string{}
	runCycle := func(cycle int) {
		var cudns []*udnv1.ClusterUserDefinedNetwork
		for i := range lanes {
			c := newCUDN(fmt.Sprintf("churn-%d-%d", i, cycle), fmt.Sprintf("churn-%d", i), "10.121.0.0/16")
			w.create(c)
			cudns = append(cudns, c)
		}
		for i, c := range cudns {
			w.waitCreated(c)
			id := w.nad(fmt.Sprintf("churn-%d", i), c.Name).Annotations[network.AnnotationNetworkID]
			if id == "" || previous[id] != "" {
				t.Errorf("network %s has id %q, which network %s had", c.Name, id, previous[id])
			}
			previous[id] = c.Name
			w.remove(c)
		}
		for _, c := range cudns {
			w.waitGone(c)
		}
	}
	memory := func() (bytes uint64, goroutines int) {
		var m runtime.MemStats
		for range 3 { // finalizers and pools release memory only after the first
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, runtime.NumGoroutine()
	}
	for cycle := range cycles / 3 {
		runCycle(cycle)
	}
	before, goroutines := memory()
	for cycle := cycles / 3; cycle < cycles; cycle++ {
		runCycle(cycle)
	}
	after, goroutinesAfter := memory()
	t.Logf("%d networks created and deleted, %d at a time: heap %d KiB after a third, %d KiB at the end; goroutines %d, %d",
		lanes*cycles, lanes, before>>10, after>>10, goroutines, goroutinesAfter)
	// A network's objects take several KiB: the limit is less than a tenth of
	// what 200 leaked networks would take.
	if after > before+64<<10 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	if goroutinesAfter > goroutines+lanes {
		t.Errorf("goroutines grew from %d to %d", goroutines, goroutinesAfter)
	}
}

// No goroutine remains after the cluster controller has stopped.
func TestNoGoroutineLeak(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean() // opens the connections that this process keeps to the API server
	team := "leak"
	defer w.remove(w.namespace(team, true, "team="+team))
	before := goleak.IgnoreCurrent()
	c := startController(t, testConfig(t))
	n := newCUDN(team, team, "10.122.0.0/16")
	w.create(n)
	w.waitCreated(n)
	w.remove(n)
	w.waitGone(n)
	c.stop()
	// controller-runtime's metadata watch leaks a goroutine per stopped watch: it
	// blocks on sending its last event.
	filteredWatch := goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop")
	if err := goleak.Find(before, filteredWatch); err != nil {
		t.Error(err)
	}
}
