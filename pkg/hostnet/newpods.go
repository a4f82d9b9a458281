// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"

	"bulkhead/pkg/loader"
)

// newPods attaches pods as soon as their cgroups appear, beside a reconcile that runs: a pod's first container starts
// tens of milliseconds after its cgroup, and a reconcile takes seconds on a busy node. Its lock is
// held for moments only.
type newPods struct {
	// attaching is held while one pod is attached, or a reconcile runs one operation on a pod: the later one has the newer
	// inputs, or leaves the pod alone.
	attaching sync.Mutex

	mu       sync.Mutex
	ready    bool              // a reconcile has configured the programs
	pods     map[string]Pod    // those that are to be attached, by UID
	networks map[int]Network   // by id
	created  map[string]string // cgroups of pods that are not in pods, or whose networks are not in networks, by UID: their paths
	kubelet  []string          // kubelet's cgroups
	attached map[string]uint64 // cgroup ids of pods that a reconcile has attached, by UID
	// early are pods that were attached here, until a reconcile begins that knows of them: one that read the
	// cgroups before, or has older inputs, must not remove them.
	early map[string]earlyPod
}

type earlyPod struct {
	cgroup  uint64
	network int // id
}

// maxCreated limits created, whose entries end with their cgroups: a node has fewer pods. If events were lost, it
// begins anew.
const maxCreated = 4096

func newNewPods() *newPods {
	return &newPods{pods: map[string]Pod{}, networks: map[int]Network{}, created: map[string]string{}, early: map[string]earlyPod{}}
}

// expect sets the pods to attach and returns those whose cgroups exist already.
func (n *newPods) expect(pods []Pod, networks []Network) (waiting map[string]string) {
	byUID, byID := make(map[string]Pod, len(pods)), make(map[int]Network, len(networks))
	for _, p := range pods {
		if !p.Unbound && p.NetworkID > 0 {
			byUID[p.UID] = p
		}
	}
	for _, x := range networks {
		if x.ID > 0 {
			byID[x.ID] = x
		}
	}
	waiting = map[string]string{}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods, n.networks = byUID, byID
	if !n.ready {
		return waiting
	}
	for uid, path := range n.created {
		if _, ok := byUID[uid]; ok {
			waiting[uid] = path
			delete(n.created, uid)
		}
	}
	return waiting
}

// begin returns the row of a pod whose cgroup has appeared, and notes that the pod is being attached. ok is false if it is
// not to be attached now.
func (n *newPods) begin(uid string, cg Cgroup) (p Pod, row loader.PodRow, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, expected := n.pods[uid]
	network, known := n.networks[p.NetworkID]
	if !expected || !known || !n.ready {
		if len(n.created) >= maxCreated {
			clear(n.created)
		}
		n.created[uid] = cg.Path
		return p, row, false
	}
	n.early[uid] = earlyPod{cg.ID, p.NetworkID}
	return p, podRow(p, network, cg), true
}

// deleted forgets a cgroup.
func (n *newPods) deleted(uid string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.created, uid)
}

// reconcileBegins is called before a reconcile reads the cgroups; its inputs have these pods. It may change an early pod
// that its inputs have on the same network, and one that is no longer expected there. Other inputs are older
// than what is expected: a Reconcile with newer ones follows.
func (n *newPods) reconcileBegins(pods []Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, e := range n.early {
		if p, ok := n.pods[uid]; !ok || p.NetworkID != e.network || slices.ContainsFunc(pods, func(p Pod) bool { return p.UID == uid && p.NetworkID == e.network }) {
			delete(n.early, uid)
		}
	}
}

// reconcileEnds sets what a reconcile has attached, and adds the cgroups of other pods that it has read: some appeared
// before their directory was watched.
func (n *newPods) reconcileEnds(attached map[string]uint64, pods map[string]Cgroup) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attached, n.ready = attached, true
	for uid, cg := range pods {
		if _, ok := attached[uid]; !ok && len(n.created) < maxCreated {
			n.created[uid] = cg.Path
		}
	}
}

// setKubelet sets kubelet's cgroups.
func (n *newPods) setKubelet(cgroups []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kubelet = slices.Clone(cgroups)
}

func (n *newPods) isKubelet(cgroup string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.kubelet, cgroup)
}

// manages reports whether a pod is attached or is to be.
func (n *newPods) manages(uid string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, attached := n.attached[uid]
	_, early := n.early[uid]
	_, expected := n.pods[uid]
	return attached || early || expected
}

// run runs an operation of a reconcile with apply, unless it is on a pod that was attached since the reconcile began: another
// reconcile follows. done is false if it was not run.
func (n *newPods) run(o Op, apply func(Op) error) (done bool, err error) {
	row, isPod := o.Row.(loader.PodRow)
	if o.PodUID == "" && !isPod {
		return true, apply(o)
	}
	n.attaching.Lock()
	defer n.attaching.Unlock()
	if n.isEarly(o.PodUID, row.CgroupID) {
		return false, nil
	}
	return true, apply(o)
}

func (n *newPods) isEarly(uid string, cgroup uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.early[uid]; ok {
		return true
	}
	for _, e := range n.early {
		if cgroup != 0 && e.cgroup == cgroup {
			return true
		}
	}
	return false
}

// Expect tells the Manager of the node's pods and networks as soon as they are known: a pod whose cgroup appears, or has
// appeared, is attached at once, although a reconcile with the other inputs comes later. It does not wait for a reconcile
// that runs. Each call must have newer pods than the last one.
func (m *Manager) Expect(pods []Pod, networks []Network) {
	for uid, path := range m.newPods.expect(pods, networks) {
		m.attachNewPod(uid, path)
	}
}

// attachNewPod attaches a pod when its cgroup is created. The reconcile that follows confines the sockets
// that the pod has opened before.
func (m *Manager) attachNewPod(uid, path string) {
	id, err := loader.CgroupID(path)
	if err != nil {
		return // it is gone
	}
	m.newPods.attaching.Lock()
	defer m.newPods.attaching.Unlock()
	p, row, ok := m.newPods.begin(uid, Cgroup{Path: path, ID: id})
	if !ok {
		return
	}
	if err := m.target.AttachPod(path, uid, row); err != nil {
		m.log.Warn("pod not attached when its cgroup was created; retrying", "pod", p.Namespace+"/"+p.Name, "error", err)
	}
}

// watchEvents handles the events of cgroups until ctx ends, beside a reconcile that runs.
func (m *Manager) watchEvents(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case ev, ok := <-m.watch.Events:
			if !ok {
				return
			}
			if m.handleEvent(ev) {
				m.Resync()
			}
		case err, ok := <-m.watch.Errors:
			if !ok {
				return
			}
			m.log.Warn("cgroup watch failed; reconciling everything", "error", err) // such as an overflow
			m.Resync()
		}
	}
}

// handleEvent reports whether a cgroup event needs a reconcile: most events of a node
// do not. It attaches a new pod at once.
func (m *Manager) handleEvent(ev fsnotify.Event) bool {
	name := filepath.Base(ev.Name)
	if uid, ok := podUID(filepath.Base(filepath.Dir(ev.Name)), name); ok {
		switch {
		case ev.Has(fsnotify.Create):
			m.attachNewPod(uid, ev.Name)
		case ev.Has(fsnotify.Remove):
			m.newPods.deleted(uid)
		}
		return m.newPods.manages(uid)
	}
	if isKubepods(name) || ev.Has(fsnotify.Create) && (name == "burstable" || name == "besteffort" || isKubepods(filepath.Base(filepath.Dir(ev.Name)))) {
		return true
	}
	return m.newPods.isKubelet(ev.Name)
}
