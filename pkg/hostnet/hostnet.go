// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"bulkhead/pkg/loader"
)

// Options of a Manager. The zero value suits an agent that sees the host's
// processes and cgroup tree.
type Options struct {
	CgroupRoot   string // default: the cgroup2 mount
	ProcRoot     string // default /proc
	KubeletNames []string
	Resync       time.Duration // default 30 s
	Log          *slog.Logger
	// OnChange is called after the node, not the caller, changed something:
	// Status may say something new. It must not block.
	OnChange func()
}

// Manager keeps the kernel in step with the last Inputs and with the node's
// cgroups and kubelet.
type Manager struct {
	opts   Options
	log    *slog.Logger
	target Target
	watch  *fsnotify.Watcher // nil: inotify is not available, resync alone

	readLayout func(root string) (Layout, error) // ReadLayout, but for tests

	mu       sync.Mutex // one reconcile at a time
	inputs   Inputs
	started  bool // inputs were given once: before that nothing may be removed
	kubelet  kubeletFinder
	gone     map[int]func() // watched kubelet processes
	attached map[string]uint64
	pods     map[string]Cgroup // of the last look: every pod of the node
	status   Status
	kick     chan struct{}
}

// Status is what there is to report.
type Status struct {
	Problems     []Problem
	EarlySockets map[string]int // by pod UID: sockets older than the attachment
	Kubelet      Kubelet
	Attached     int // pods confined
}

// New makes a Manager. kernel is a *loader.Loader.
func New(kernel Kernel, opts Options) (*Manager, error) {
	if opts.CgroupRoot == "" {
		root, err := loader.CgroupMount()
		if err != nil {
			return nil, err
		}
		opts.CgroupRoot = root
	}
	if opts.ProcRoot == "" {
		opts.ProcRoot = "/proc"
	}
	if opts.KubeletNames == nil {
		opts.KubeletNames = KubeletNames
	}
	if opts.Resync == 0 {
		opts.Resync = 30 * time.Second
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	m := &Manager{
		opts: opts, log: opts.Log, target: Target{kernel}, readLayout: ReadLayout,
		kubelet: kubeletFinder{proc: opts.ProcRoot, cgroupRoot: opts.CgroupRoot, names: opts.KubeletNames, idOf: loader.CgroupID},
		gone:    map[int]func(){}, attached: map[string]uint64{}, kick: make(chan struct{}, 1),
	}
	m.status.EarlySockets = map[string]int{}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		m.log.Warn("cgroups cannot be watched; they are looked at periodically", "err", err, "period", opts.Resync)
	} else {
		m.watch = w
	}
	return m, nil
}

// Reconcile makes the kernel hold what in asks for. It is idempotent, and the
// inputs stay in force for what the watch notices later. The error names each
// operation that failed; what is merely not there yet is in Status.
func (m *Manager) Reconcile(ctx context.Context, in Inputs) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inputs, m.started = in, true
	return m.reconcile(ctx)
}

// Status reports the outcome of the last reconcile.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.status
	s.Problems = slices.Clone(s.Problems)
	s.EarlySockets = map[string]int{}
	for k, v := range m.status.EarlySockets {
		s.EarlySockets[k] = v
	}
	return s
}

func (m *Manager) reconcile(ctx context.Context) error {
	layout, kubelet, err := m.look()
	if err != nil {
		return err
	}
	m.watchKubelet(kubelet)
	want, problems := Build(m.inputs, layout, kubelet)
	if len(m.target.DoorPrograms(loader.DoorPort)) == 0 {
		clear(want.Doors) // their rows still serve the other programs
	}
	have, err := m.target.Read(ctx)
	if err != nil {
		return fmt.Errorf("read what the kernel holds: %w", err)
	}
	ops := Diff(want, have)
	for _, o := range ops {
		m.log.Debug("host network", "op", o.String())
	}
	if err = m.target.Apply(ctx, ops); err == nil {
		err = m.target.Settle() // what another version left is needed no more
	}

	m.pods = layout.Pods
	m.status.Problems, m.status.Kubelet, m.status.Attached = append(problems, m.heldProbes()...), kubelet, len(want.Pods)
	for uid := range m.attached {
		if _, ok := want.Pods[uid]; !ok {
			delete(m.attached, uid)
			delete(m.status.EarlySockets, uid)
		}
	}
	for _, o := range ops {
		if o.Kind == AttachPod {
			m.noteAttached(o.PodUID, want.Pods[o.PodUID], o.Row)
		}
	}
	for uid, cg := range want.Pods {
		m.attached[uid] = cg.ID
	}
	return err
}

// look reads the node until every directory that matters was watched before it
// was read: what appears in between is then seen twice, not never. A directory
// below one that has just been watched may have come before the watch did, so
// once more is not always enough.
func (m *Manager) look() (Layout, Kubelet, error) {
	for {
		kubelet, err := m.kubelet.find()
		if err != nil {
			return Layout{}, kubelet, err
		}
		layout, err := m.readLayout(m.opts.CgroupRoot)
		if err != nil {
			return layout, kubelet, err
		}
		if !m.watchDirs(layout) {
			return layout, kubelet, nil
		}
	}
}

func (m *Manager) noteAttached(uid string, cg Cgroup, row loader.Row) {
	if m.attached[uid] == cg.ID {
		return // a repair, not the first time
	}
	m.attached[uid] = cg.ID
	delete(m.status.EarlySockets, uid)
	pod, ok := row.(loader.PodRow)
	if !ok {
		return
	}
	n, err := earlySockets(cg.Path, pod.Mark)
	if err != nil {
		m.log.Debug("sockets older than the attachment could not all be counted", "pod", uid, "err", err)
	}
	if n > 0 {
		m.status.EarlySockets[uid] = n
		m.log.Warn("pod had sockets before it was attached to its network; restart it to confine them", "pod", uid, "sockets", n)
	}
}

// attachNow is the short way for a cgroup that just appeared: no reading back,
// so that the programs are there before the pod's first container starts.
func (m *Manager) attachNow(uid, path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.inputs.Pods, func(p Pod) bool { return p.UID == uid && !p.Unbound && p.NetworkID > 0 })
	if i < 0 {
		return
	}
	p := m.inputs.Pods[i]
	j := slices.IndexFunc(m.inputs.Networks, func(n Network) bool { return n.ID == p.NetworkID && n.ID > 0 })
	if j < 0 {
		return
	}
	id, err := loader.CgroupID(path)
	if err != nil {
		return
	}
	cg := Cgroup{Path: path, ID: id}
	row := podRow(p, m.inputs.Networks[j], cg)
	if err := m.target.AttachPod(path, uid, row); err != nil {
		m.log.Warn("pod not attached at the birth of its cgroup; trying again", "pod", p.Namespace+"/"+p.Name, "err", err)
		return
	}
	m.noteAttached(uid, cg, row)
}

// Guard attaches the guard to an interface at once, before it carries traffic.
// The next Reconcile must name it too. On a kernel that cannot it does nothing.
func (m *Manager) Guard(row loader.DoorRow) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.target.AttachDoor(row)
}

// PodOf is the UID of the pod that a cgroup belongs to: the pod's own cgroup,
// or one below it.
func (m *Manager) PodOf(cgroup uint64) (uid string, ok bool) {
	m.mu.Lock()
	pods := m.pods
	m.mu.Unlock()
	for uid, cg := range pods {
		ids := map[uint64]bool{}
		if cg.ID == cgroup || subtreeIDs(cg.Path, ids) == nil && ids[cgroup] {
			return uid, true
		}
	}
	return "", false
}

// heldProbes names pods whose probes are not led, because somebody else listens.
func (m *Manager) heldProbes() []Problem {
	ports, err := m.target.HeldProbes()
	if err != nil {
		m.log.Warn("ports of probes cannot be read", "error", err)
		return nil
	}
	var out []Problem
	for _, p := range m.inputs.Pods {
		for _, port := range p.ProbePorts {
			if p.NetworkID > 0 && !p.Unbound && slices.Contains(ports, port) {
				out = append(out, Problem{p.name(), "ProbePortHeld", fmt.Sprintf("its probes and hooks on port %d are not led into its network, because a process outside the network listens on that port of the node: choose another", port)})
			}
		}
	}
	return out
}

// Run follows the node until ctx ends: new pod cgroups, kubelet's comings and
// goings, and, slowly, everything, in case an event was lost.
func (m *Manager) Run(ctx context.Context) error {
	var events chan fsnotify.Event
	var failures chan error
	if m.watch != nil {
		defer m.watch.Close()
		events, failures = m.watch.Events, m.watch.Errors
	}
	defer m.stopWatchingKubelet()
	tick := time.NewTicker(m.opts.Resync)
	defer tick.Stop()
	// While kubelet is away it is looked for often: probes wait for it.
	hurry := time.NewTicker(200 * time.Millisecond)
	defer hurry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-events:
			if !m.relevant(ev) {
				continue
			}
		case err := <-failures:
			m.log.Warn("cgroup watch", "err", err) // an overflow: look at everything
		case <-hurry.C:
			if !m.kubeletBack() {
				continue
			}
		case <-m.kick:
		case <-tick.C:
		}
		m.mu.Lock()
		var err error
		if m.started {
			err = m.reconcile(ctx)
		}
		m.mu.Unlock()
		if err != nil && !errors.Is(err, context.Canceled) {
			m.log.Error("host network out of step; trying again", "err", err)
		}
		if m.opts.OnChange != nil {
			m.opts.OnChange()
		}
	}
}

// relevant filters the node's many cgroup events, and takes the short way for a pod.
func (m *Manager) relevant(ev fsnotify.Event) bool {
	name := filepath.Base(ev.Name)
	if uid, ok := podUID(filepath.Base(filepath.Dir(ev.Name)), name); ok {
		if ev.Has(fsnotify.Create) {
			m.attachNow(uid, ev.Name)
		}
		return m.wants(uid)
	}
	if isKubepods(name) || ev.Has(fsnotify.Create) && (name == "burstable" || name == "besteffort" || isKubepods(filepath.Base(filepath.Dir(ev.Name)))) {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.kubelet.known, ev.Name)
}

func (m *Manager) wants(uid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, attached := m.attached[uid]
	return attached || slices.ContainsFunc(m.inputs.Pods, func(p Pod) bool { return p.UID == uid })
}

// kubeletBack is true when a kubelet that had gone is there again. An agent
// that never saw one leaves the looking to the resync.
func (m *Manager) kubeletBack() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.started || !m.kubelet.seen || len(m.status.Kubelet.Procs) > 0 {
		return false
	}
	procs, err := m.kubelet.processes()
	return err == nil && len(procs) > 0
}

// watchDirs follows the directories pods and kubelet appear in; true when one is new.
func (m *Manager) watchDirs(layout Layout) bool {
	if m.watch == nil {
		return false
	}
	dirs := slices.Clone(layout.Parents)
	for _, p := range layout.Parents {
		dirs = append(dirs, filepath.Dir(p))
	}
	for _, p := range m.kubelet.known {
		dirs = append(dirs, filepath.Dir(p))
	}
	dirs = append(dirs, m.opts.CgroupRoot)
	have := m.watch.WatchList()
	added := false
	for _, d := range dirs {
		if slices.Contains(have, d) {
			continue
		}
		if err := m.watch.Add(d); err != nil {
			m.log.Warn("cgroup cannot be watched; it is looked at periodically", "path", d, "err", err)
			continue
		}
		have, added = append(have, d), true
	}
	return added
}

// watchKubelet asks the kernel to tell when a kubelet ends.
func (m *Manager) watchKubelet(k Kubelet) {
	running := map[int]bool{}
	for _, p := range k.Procs {
		running[p.PID] = true
		if m.gone[p.PID] != nil {
			continue
		}
		stop, err := whenGone(p.PID, m.Resync)
		if err != nil {
			m.log.Debug("kubelet's end cannot be watched; it is looked at periodically", "err", err)
			continue
		}
		m.gone[p.PID] = stop
	}
	for pid, stop := range m.gone {
		if !running[pid] {
			stop()
			delete(m.gone, pid)
		}
	}
}

func (m *Manager) stopWatchingKubelet() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchKubelet(Kubelet{})
}

// Resync asks Run for a reconcile soon.
func (m *Manager) Resync() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}
