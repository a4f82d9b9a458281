// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"bulkhead/pkg/loader"
)

// slowKernel is a kernel of which a read takes until the test says so.
type slowKernel struct {
	cgroupKernel
	slow    atomic.Bool
	reading chan struct{} // a slow read has begun
	goOn    chan struct{}
	removed atomic.Int32 // pods' links and rows
}

func (k *slowKernel) Rows() ([]loader.Row, error) {
	if k.slow.Load() {
		k.reading <- struct{}{}
		<-k.goOn
	}
	return k.cgroupKernel.Rows()
}

func (k *slowKernel) DetachPod(uid string) error {
	k.removed.Add(1)
	return k.cgroupKernel.DetachPod(uid)
}

func (k *slowKernel) Delete(r loader.Row) error {
	if _, ok := r.(loader.PodRow); ok {
		k.removed.Add(1)
	}
	return k.cgroupKernel.Delete(r)
}

// newPodsWorld is a running Manager with a slow kernel.
type newPodsWorld struct {
	*testing.T
	m      *Manager
	kernel *slowKernel
	path   string // where the pod's cgroup appears
	rounds atomic.Int32
	in     Inputs // with the pod
}

func newNewPodsWorld(t *testing.T) *newPodsWorld {
	root := cgroupTree(t)
	qos := filepath.Join(root, "kubepods/burstable")
	if err := os.MkdirAll(qos, 0o755); err != nil {
		t.Fatal(err)
	}
	w := &newPodsWorld{T: t, path: filepath.Join(qos, "pod"+uid),
		kernel: &slowKernel{cgroupKernel: cgroupKernel{newFakeKernel()}, reading: make(chan struct{}), goOn: make(chan struct{})},
		in: Inputs{Pods: []Pod{{UID: uid, Namespace: "red", Name: "a", NetworkID: 1}},
			Networks: []Network{{ID: 1, Name: "red", VRFIfindex: 3, Mark: 0x10000, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}}}
	var err error
	if w.m, err = New(w.kernel, Options{CgroupRoot: root, KubeletNames: []string{"no-such-kubelet"}, Log: slog.New(slog.DiscardHandler), OnChange: func() { w.rounds.Add(1) }}); err != nil {
		t.Fatal(err)
	}
	w.m.confine = func(string, map[string]attachedPod) (map[string]int, error) { return nil, nil }
	return w
}

// run runs the Manager until the test ends.
func (w *newPodsWorld) run(in Inputs) {
	w.Helper()
	w.m.Expect(in.Pods, in.Networks)
	if err := w.m.Reconcile(w.Context(), in); err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.m.Run(ctx) }()
	w.Cleanup(func() { cancel(); <-done })
}

// during calls f while a reconcile that has read the cgroups waits for the kernel, and returns after that reconcile.
func (w *newPodsWorld) during(f func()) {
	w.Helper()
	w.kernel.slow.Store(true)
	w.m.Resync()
	<-w.kernel.reading
	f()
	before := w.rounds.Load()
	w.kernel.slow.Store(false)
	w.kernel.goOn <- struct{}{}
	eventually(w.T, "the reconcile ends", func() bool { return w.rounds.Load() > before })
}

func (w *newPodsWorld) create() (id uint64) {
	w.Helper()
	if err := os.Mkdir(w.path, 0o755); err != nil {
		w.Fatal(err)
	}
	id, err := loader.CgroupID(w.path)
	if err != nil {
		w.Fatal(err)
	}
	return id
}

// has reports whether the pod is attached with its row.
func (w *newPodsWorld) has(id uint64) bool {
	w.kernel.mu.Lock()
	defer w.kernel.mu.Unlock()
	_, row := w.kernel.rows[loader.PodRow{CgroupID: id}.Key()]
	return w.kernel.pods[uid].CgroupID == id && row
}

// settled waits until the Manager reports the pod as attached, and checks that it was never removed.
func (w *newPodsWorld) settled(id uint64) {
	w.Helper()
	eventually(w.T, "the Manager knows the pod", func() bool { return w.m.Status().Attached == 1 })
	if !w.has(id) || w.kernel.removed.Load() > 0 {
		w.Errorf("attached %t, removed %d times", w.has(id), w.kernel.removed.Load())
	}
}

// A pod whose cgroup appears is attached although a reconcile runs, and that reconcile, which has not seen the
// cgroup, does not remove it.
func TestRootNewPodDuringReconcile(t *testing.T) {
	w := newNewPodsWorld(t)
	w.run(w.in)
	var id uint64
	w.during(func() {
		id = w.create()
		eventually(t, "pod attached while a reconcile runs", func() bool { return w.has(id) })
	})
	w.settled(id)
}

// The same if the agent learns of the pod after its cgroup has appeared, and if the next inputs were read before it did.
func TestRootNewPodExpectedLate(t *testing.T) {
	w := newNewPodsWorld(t)
	without := w.in
	without.Pods = nil
	w.run(without)
	var id uint64
	w.during(func() {
		id = w.create()
		eventually(t, "cgroup noticed", func() bool {
			w.m.newPods.mu.Lock()
			defer w.m.newPods.mu.Unlock()
			return w.m.newPods.created[uid] != ""
		})
		if w.has(id) {
			t.Error("a pod that nobody expects is attached")
		}
		w.m.Expect(w.in.Pods, w.in.Networks)
		if !w.has(id) {
			t.Error("not attached at once")
		}
	})
	if err := w.m.Reconcile(t.Context(), without); err != nil || !w.has(id) {
		t.Errorf("after a reconcile with older inputs: attached %t, %v", w.has(id), err)
	}
	if err := w.m.Reconcile(t.Context(), w.in); err != nil {
		t.Fatal(err)
	}
	w.settled(id)
}

// A pod whose inputs come while a reconcile runs is attached at once, although its Reconcile waits for that one.
func TestRootNewPodOfWaitingInputs(t *testing.T) {
	w := newNewPodsWorld(t)
	w.run(Inputs{})
	done := make(chan error, 1)
	var id uint64
	w.during(func() {
		w.m.Expect(w.in.Pods, w.in.Networks)
		go func() { done <- w.m.Reconcile(context.Background(), w.in) }()
		eventually(t, "inputs known", func() bool { return w.m.newPods.manages(uid) })
		id = w.create()
		eventually(t, "pod attached while a reconcile runs", func() bool { return w.has(id) })
	})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.settled(id)
}

// A pod that ends while the reconcile runs leaves nothing.
func TestRootNewPodGone(t *testing.T) {
	w := newNewPodsWorld(t)
	w.run(w.in)
	w.during(func() {
		id := w.create()
		eventually(t, "pod attached while a reconcile runs", func() bool { return w.has(id) })
		if err := os.Remove(w.path); err != nil {
			t.Fatal(err)
		}
		w.kernel.mu.Lock()
		w.kernel.pods[uid] = loader.Attachment{PodUID: uid} // as the kernel says of links whose cgroup is gone
		w.kernel.mu.Unlock()
	})
	without := w.in
	without.Pods = nil
	if err := w.m.Reconcile(t.Context(), without); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing left", func() bool {
		w.m.Resync()
		w.kernel.mu.Lock()
		defer w.kernel.mu.Unlock()
		for k := range w.kernel.rows {
			if k.Map == (loader.PodRow{}).Key().Map {
				return false
			}
		}
		return len(w.kernel.pods) == 0
	})
}

// Nothing is attached before the programs are configured.
func TestNewPodsReady(t *testing.T) {
	n := newNewPods()
	pods, networks := []Pod{{UID: "a", NetworkID: 1}, {UID: "b", NetworkID: 1, Unbound: true}, {UID: "c", NetworkID: NetworkUnknown}}, []Network{{ID: 1}}
	n.expect(pods, networks)
	if _, _, ok := n.begin("a", Cgroup{"/a", 7}); ok {
		t.Error("attached before a reconcile")
	}
	n.reconcileEnds(nil, map[string]Cgroup{"c": {"/c", 8}})
	if waiting := n.expect(pods, networks); len(waiting) != 1 || waiting["a"] != "/a" {
		t.Errorf("waiting: %v", waiting)
	}
	for uid, want := range map[string]bool{"a": true, "b": false, "c": false, "d": false} {
		if _, _, ok := n.begin(uid, Cgroup{"/" + uid, 7}); ok != want {
			t.Errorf("pod %s: attached %t, want %t", uid, ok, want)
		}
	}
	n.deleted("b")
	if len(n.created) != 2 { // c and d
		t.Errorf("created: %v", n.created)
	}
}

// A pod that was attached before any Reconcile had it, and that then moves to another network or ends: one Reconcile with the
// newest inputs converges, since no other one may follow.
func TestRootNewPodChangesBeforeReconcile(t *testing.T) {
	for _, ends := range []bool{false, true} {
		w := newNewPodsWorld(t) // Run does not run: it would reconcile in between
		defer w.m.watch.Close()
		reconcile := func(in Inputs) {
			t.Helper()
			w.m.Expect(in.Pods, in.Networks)
			if err := w.m.Reconcile(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		}
		in := Inputs{Networks: append(w.in.Networks, Network{ID: 2, Name: "blue", VRFIfindex: 4, Mark: 0x20000})}
		reconcile(in)
		id := w.create()
		w.m.Expect(w.in.Pods, in.Networks)
		w.m.attachNewPod(uid, w.path)
		if !w.has(id) {
			t.Fatal("not attached")
		}
		key := loader.PodRow{CgroupID: id}.Key()
		if ends {
			if err := os.Remove(w.path); err != nil {
				t.Fatal(err)
			}
			w.kernel.pods[uid] = loader.Attachment{PodUID: uid} // as the kernel says of links whose cgroup is gone
			reconcile(in)
			if row, left := w.kernel.rows[key]; left || len(w.kernel.pods) > 0 {
				t.Errorf("the pod has ended: row %v, attachments %v", row, w.kernel.pods)
			}
			continue
		}
		in.Pods = []Pod{{UID: uid, Namespace: "red", Name: "a", NetworkID: 2}}
		reconcile(in)
		if row, _ := w.kernel.rows[key].(loader.PodRow); row.NetworkID != 2 {
			t.Errorf("the pod has moved to network 2: row %v", row)
		}
	}
}

// The cgroup of a pod whose network is not known yet is remembered until it is.
func TestNewPodsNetworkUnknown(t *testing.T) {
	n := newNewPods()
	n.reconcileEnds(nil, nil)
	pods := []Pod{{UID: "a", NetworkID: 1}}
	n.expect(pods, nil)
	if _, _, ok := n.begin("a", Cgroup{"/a", 7}); ok {
		t.Error("attached without its network")
	}
	if waiting := n.expect(pods, []Network{{ID: 1}}); waiting["a"] != "/a" {
		t.Errorf("waiting: %v", waiting)
	}
	if _, row, ok := n.begin("a", Cgroup{"/a", 7}); !ok || row.NetworkID != 1 {
		t.Errorf("attached %t with %v", ok, row)
	}
}
