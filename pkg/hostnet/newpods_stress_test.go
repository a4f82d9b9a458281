// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"bulkhead/pkg/loader"
)

// stressKernel is a fake kernel whose links die with their cgroups, and that reports when a pod that must stay
// is removed.
type stressKernel struct {
	cgroupKernel
	t     *testing.T
	stays func(uid string) bool
	path  func(uid string) string

	slow  atomic.Bool
	steps chan struct{} // of the others
	ended chan struct{} // they have made their last one
}

// wait lets the others make some steps while a reconcile reads.
func (k *stressKernel) wait() {
	for range 3 {
		if k.slow.Load() {
			select {
			case <-k.steps:
			case <-k.ended:
			}
		}
	}
}

func (k *stressKernel) Rows() ([]loader.Row, error) {
	k.wait() // the cgroups were read before
	return k.cgroupKernel.Rows()
}

func (k *stressKernel) Config() (loader.Config, error) {
	k.wait() // the rest was read before
	return k.cgroupKernel.Config()
}

func (k *stressKernel) Attachments() ([]loader.Attachment, error) {
	as, err := k.cgroupKernel.Attachments()
	for i, a := range as {
		if id, err := loader.CgroupID(k.path(a.PodUID)); a.PodUID != "" && (err != nil || id != a.CgroupID) {
			as[i].CgroupID = 0
		}
	}
	return as, err
}

func (k *stressKernel) DetachPod(uid string) error {
	if k.stays(uid) {
		k.t.Errorf("pod %s is detached", uid)
	}
	return k.cgroupKernel.DetachPod(uid)
}

func (k *stressKernel) Delete(r loader.Row) error {
	if row, ok := r.(loader.PodRow); ok {
		k.mu.Lock()
		for uid, a := range k.pods {
			if a.CgroupID == row.CgroupID && k.stays(uid) {
				k.t.Errorf("the row of pod %s is deleted", uid)
			}
		}
		k.mu.Unlock()
	}
	return k.cgroupKernel.Delete(r)
}

// Cgroups come and go, pods are learned of, move and end, and reconciles run with inputs that grow old meanwhile: a pod
// that stays is never removed once it is attached, and in the end the kernel has what Build says.
func TestRootNewPodsStress(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { stressNewPods(t, seed) })
	}
}

func stressNewPods(t *testing.T, seed uint64) {
	const pods, steady, steps = 40, 30, 300 // the first of the pods are steady: they come and stay
	root := cgroupTree(t)
	qos := filepath.Join(root, "kubepods/burstable")
	if err := os.MkdirAll(qos, 0o755); err != nil {
		t.Fatal(err)
	}
	uidOf := func(i int) string { return fmt.Sprintf("0f1e2d3c-0000-4000-8000-%012d", i) }
	path := func(uid string) string { return filepath.Join(qos, "pod"+uid) }
	kernel := &stressKernel{cgroupKernel: cgroupKernel{newFakeKernel()}, t: t, path: path, steps: make(chan struct{}), ended: make(chan struct{}),
		stays: func(uid string) bool { return uid < uidOf(steady) }}
	m, err := New(kernel, Options{CgroupRoot: root, KubeletNames: []string{"no-such-kubelet"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	m.confine = func(string, map[string]attachedPod) (map[string]int, error) { return nil, nil }

	var mu sync.Mutex // of the inputs, which expect publishes in order, as the agent does
	in := Inputs{Networks: []Network{{ID: 1, Name: "red", VRFIfindex: 3, Mark: 0x10000}, {ID: 2, Name: "blue", VRFIfindex: 4, Mark: 0x20000}}}
	expect := func(change func()) Inputs {
		mu.Lock()
		defer mu.Unlock()
		change()
		out := in
		out.Pods = slices.Clone(in.Pods)
		m.Expect(out.Pods, out.Networks)
		return out
	}
	reconcile := func() {
		if err := m.Reconcile(context.Background(), expect(func() {})); err != nil {
			// A cgroup that goes while its pod is attached is an error, and the next reconcile tries again.
			t.Log(err)
		}
	}
	reconcile()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	defer func() { cancel(); <-done }()

	kernel.slow.Store(true)
	var others, agent sync.WaitGroup
	each := func(wg *sync.WaitGroup, n uint64, step func(r *rand.Rand, i int)) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, n))
			for range steps {
				step(r, r.IntN(pods))
				if wg == &others {
					select {
					case kernel.steps <- struct{}{}:
					default: // no reconcile waits
					}
				}
			}
		})
	}
	each(&others, 1, func(r *rand.Rand, i int) {
		if r.IntN(2) == 0 { // kubelet
			if os.Mkdir(path(uidOf(i)), 0o755) != nil && i >= steady {
				os.Remove(path(uidOf(i)))
			}
			return
		}
		expect(func() { // the informers
			j := slices.IndexFunc(in.Pods, func(p Pod) bool { return p.UID == uidOf(i) })
			switch {
			case j < 0:
				in.Pods = append(slices.Clone(in.Pods), Pod{UID: uidOf(i), Namespace: "ns", Name: fmt.Sprint(i), NetworkID: 1 + r.IntN(2)})
			case i < steady || r.IntN(2) == 0:
				in.Pods = slices.Clone(in.Pods)
				in.Pods[j].NetworkID = 3 - in.Pods[j].NetworkID
			default:
				in.Pods = slices.Delete(slices.Clone(in.Pods), j, j+1)
			}
		})
	})
	each(&agent, 2, func(r *rand.Rand, _ int) { // the agent
		if r.IntN(3) == 0 {
			m.Resync()
			return
		}
		reconcile()
	})
	others.Wait()
	close(kernel.ended)
	agent.Wait()
	last := expect(func() {})
	eventually(t, "the last Reconcile succeeds", func() bool { return m.Reconcile(context.Background(), last) == nil })
	var ops []Op
	defer func() {
		if t.Failed() {
			t.Log("left to do: ", ops)
		}
	}()
	eventually(t, "the kernel has what Build says", func() bool {
		m.Resync()
		layout, err := ReadLayout(root)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := Build(last, layout, Kubelet{})
		have, err := (&Target{Kernel: kernel}).Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ops = Diff(want, have)
		return len(ops) == 0
	})
	if len(last.Pods) == 0 || m.Status().Attached == 0 {
		t.Errorf("%d pods are wanted, %d attached: nothing was tested", len(last.Pods), m.Status().Attached)
	}
}
