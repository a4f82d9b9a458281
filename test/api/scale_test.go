// SPDX-License-Identifier: Apache-2.0

package api

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

var (
	scaleNetworks = flag.Int("scale", 100, "networks of TestScale")
	scaleNodes    = flag.Int("scale-nodes", 50, "nodes of TestScale")
)

// Many networks at once: how fast, at what cost in processor and memory, and
// that no two have one id. The controller is a process of its own, so that
// what is measured is its own; raise -scale for figures.
func TestScale(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle()
	name := func(i int) string { return fmt.Sprintf("scale-%d", i) }
	w.parallel(*scaleNodes, func(i int) client.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name(i)}}
	})
	w.parallel(*scaleNetworks, func(i int) client.Object {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: map[string]string{"team": name(i), network.LabelPrimaryUDN: ""}}}
	})
	begin := time.Now()
	w.parallel(*scaleNetworks, func(i int) client.Object { return newCUDN(name(i), name(i), "10.120.0.0/16") })
	server := float64(*scaleNetworks) / time.Since(begin).Seconds()

	start := time.Now()
	proc := startControllerProcess(t)
	// A watch tells, so that the waiting costs the API server little.
	watch, err := w.Watch(w.ctx, &udnv1.ClusterUserDefinedNetworkList{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	ready := map[string]bool{}
	for deadline := time.After(10 * time.Minute); len(ready) < *scaleNetworks; {
		select {
		case e, ok := <-watch.ResultChan():
			if !ok {
				t.Fatalf("the watch ended with %d of %d networks ready", len(ready), *scaleNetworks)
			}
			if c, ok := e.Object.(*udnv1.ClusterUserDefinedNetwork); ok && meta.IsStatusConditionTrue(c.Status.Conditions, udnv1.ConditionNetworkCreated) {
				ready[c.Name] = true
			}
		case <-deadline:
			t.Fatalf("%d of %d networks are ready", len(ready), *scaleNetworks)
		}
	}
	took := time.Since(start)
	var nads nadv1.NetworkAttachmentDefinitionList
	if err := w.List(w.ctx, &nads); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, n := range nads.Items {
		ids[n.Annotations[network.AnnotationNetworkID]] = true
	}
	if len(ids) != *scaleNetworks {
		t.Errorf("%d ids for %d networks", len(ids), *scaleNetworks)
	}
	peak := peakMemory(t, proc.Process.Pid)
	if err := proc.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = proc.Wait() // its status is of no interest
	cpu := proc.ProcessState.UserTime() + proc.ProcessState.SystemTime()
	t.Logf("%d networks, %d nodes: %.1f s, %.0f networks/s, %.1f ms of CPU each (start included), %s; "+
		"the API server alone took %.0f writes/s from 8 clients, of which a network needs 3", *scaleNetworks, *scaleNodes,
		took.Seconds(), float64(*scaleNetworks)/took.Seconds(), cpu.Seconds()*1000/float64(*scaleNetworks), peak, server)
	for i := range *scaleNetworks { // namespaces stay: their end takes Kubernetes minutes
		w.remove(newCUDN(name(i), name(i), "10.120.0.0/16"))
	}
	for i := range *scaleNodes {
		w.remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name(i)}})
	}
	w.settle()
}

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

func peakMemory(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			return "peak resident " + strings.TrimSpace(v)
		}
	}
	return ""
}

// Networks come and go, each under a name of its own: ids are used again, and
// nothing of a network stays in memory.
func TestChurn(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle()
	const lanes, cycles = 10, 30
	// Twice as many as there are at a time: an id is free a moment after its
	// network is gone. With fewer ids than networks in all, one that is not
	// given back ends the test.
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
	highest := 0
	turn := func(cycle int) {
		var cudns []*udnv1.ClusterUserDefinedNetwork
		for i := range lanes {
			c := newCUDN(fmt.Sprintf("churn-%d-%d", i, cycle), fmt.Sprintf("churn-%d", i), "10.121.0.0/16")
			w.create(c)
			cudns = append(cudns, c)
		}
		for i, c := range cudns {
			w.created(c)
			id, err := strconv.Atoi(w.nad(fmt.Sprintf("churn-%d", i), c.Name).Annotations[network.AnnotationNetworkID])
			if err != nil {
				t.Errorf("id of %s: %v", c.Name, err)
			}
			highest = max(highest, id)
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
	t.Logf("%d networks made and deleted, %d at a time: ids up to %d; heap %d KiB after a third, %d KiB at the end; goroutines %d, %d",
		lanes*cycles, lanes, highest, before>>10, after>>10, goroutines, goroutinesAfter)
	if highest > 2*lanes {
		t.Errorf("ids went up to %d with %d networks at a time", highest, lanes)
	}
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
