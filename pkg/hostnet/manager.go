// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
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
	// OnChange is called after every reconcile that Run started, because Status may
	// have changed. It must not block.
	OnChange func()
}

// Manager reconciles the kernel's state with the last Inputs and with the node's
// cgroups and kubelet.
type Manager struct {
	opts   Options
	log    *slog.Logger
	target Target
	watch  *fsnotify.Watcher // nil: no inotify, only the resync notices changes

	// Tests replace these.
	readLayout func(root string) (Layout, error)                                                     // ReadLayout
	confine    func(proc string, pods map[string]attachedPod) (unconfined map[string]int, err error) // confineEarlySockets

	mu           sync.Mutex // serialises reconciles
	inputs       Inputs
	started      bool // Reconcile was called: before that nothing may be removed
	kubelet      kubeletFinder
	kubeletExits map[int]func()    // stops the exit watch of a kubelet process, by process id
	attached     map[string]uint64 // cgroup ids of attached pods, by pod UID
	recheck      map[string]bool   // pods whose early sockets the next reconcile confines again, by UID
	pods         map[string]Cgroup // all pods of the node, from the last layout
	status       Status
	trigger      chan struct{}

	newPods   *newPods
	guards    *guards
	published atomic.Pointer[Status] // what Status returns: a reconcile takes seconds on a busy node
}

// Status is the outcome of the last reconcile.
type Status struct {
	Problems     []Problem
	EarlySockets map[string]int // number of sockets older than the attachment that it did not confine, by pod UID
	Kubelet      Kubelet
	Attached     int // number of pods with VRF binding
}

// New creates a Manager. kernel is a *loader.Loader.
func New(kernel Kernel, opts Options) (*Manager, error) {
	if opts.CgroupRoot == "" {
		root, err := loader.CgroupMount()
		if err != nil {
			return nil, err
		}
		opts.CgroupRoot = root
	}
	opts.CgroupRoot = filepath.Clean(opts.CgroupRoot) // as the watch returns it
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
		opts: opts, log: opts.Log, target: Target{Kernel: kernel}, readLayout: ReadLayout,
		confine: func(proc string, pods map[string]attachedPod) (map[string]int, error) {
			return confineEarlySockets(proc, pods, listSockets)
		},
		kubelet:      kubeletFinder{proc: opts.ProcRoot, cgroupRoot: opts.CgroupRoot, names: opts.KubeletNames, idOf: loader.CgroupID},
		kubeletExits: map[int]func(){}, attached: map[string]uint64{}, recheck: map[string]bool{}, trigger: make(chan struct{}, 1), newPods: newNewPods(), guards: newGuards(),
	}
	m.target.run = func(o Op, apply func(Op) error) (done bool, err error) {
		if o.ifindex() != 0 {
			return m.guards.run(o, apply)
		}
		return m.newPods.run(o, apply)
	}
	m.status.EarlySockets = map[string]int{}
	m.publish()
	w, err := fsnotify.NewWatcher()
	if err != nil {
		m.log.Warn("cannot watch cgroups; the periodic resync finds changes", "error", err, "resync", opts.Resync)
	} else {
		m.watch = w
	}
	return m, nil
}

// GuardOverlay keeps host-network pods from the overlay's port before the first Reconcile, which
// waits for Open vSwitch and the API server: at boot nothing is pinned, and both may be unavailable for a long time. It does
// nothing where an earlier agent has configured the programs.
func (m *Manager) GuardOverlay() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	config, err := m.target.Config()
	if err != nil {
		return fmt.Errorf("read the eBPF configuration: %w", err)
	}
	if config != (loader.Config{}) {
		return nil
	}
	layout, err := m.readLayout(m.opts.CgroupRoot)
	if err != nil {
		return err
	}
	want, _ := Build(Inputs{}, layout, Kubelet{})
	for _, r := range layout.Roots { // without them no process is known to be a pod's
		if err := m.target.Put(loader.PodRootRow{CgroupID: r.ID}); err != nil {
			return fmt.Errorf("put the row of the pods' cgroup %s: %w", r.Path, err)
		}
	}
	if err := m.target.AttachPacketChecks(); err != nil {
		return err
	}
	if err := m.target.SetConfig(want.Config); err != nil {
		return fmt.Errorf("write the eBPF configuration: %w", err)
	}
	return nil
}

// allowKubelet recognises kubelet before the first Reconcile, which waits for Open vSwitch and the API server: if kubelet
// restarts meanwhile, the rows of an earlier agent do not match it, and the probes of all locked addresses fail. It removes
// nothing. Where nothing is configured yet, nothing is locked.
func (m *Manager) allowKubelet() error {
	config, err := m.target.Config()
	if err != nil {
		return fmt.Errorf("read the eBPF configuration: %w", err)
	}
	if config == (loader.Config{}) {
		return nil
	}
	_, kubelet, err := m.readNode()
	if err != nil {
		return fmt.Errorf("find kubelet: %w", err)
	}
	m.watchKubelet(kubelet)
	m.status.Kubelet = kubelet
	m.publish()
	for _, r := range kubelet.Rows {
		if err := m.target.Put(r); err != nil {
			return fmt.Errorf("put the row of %s: %w", r, err)
		}
	}
	if config.KubeletLevels|kubelet.Levels == config.KubeletLevels {
		return nil
	}
	config.KubeletLevels |= kubelet.Levels
	if err := m.target.SetConfig(config); err != nil {
		return fmt.Errorf("write the eBPF configuration: %w", err)
	}
	return nil
}

// Reconcile applies the inputs to the kernel. It is idempotent. Run uses the inputs
// for later reconciles. The error names each operation that failed; inputs that
// cannot be applied yet are reported by Status. Expect precedes it.
func (m *Manager) Reconcile(ctx context.Context, in Inputs) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	in.Doors = m.guards.newInputs(in.Doors)
	m.inputs, m.started = in, true
	return m.reconcile(ctx)
}

// Status returns the outcome of the last reconcile. It does not wait for one that runs. The caller must not change it.
func (m *Manager) Status() Status { return *m.published.Load() }

// publish makes the current status the one that Status returns. The caller holds mu.
func (m *Manager) publish() {
	s := m.status
	s.EarlySockets = maps.Clone(s.EarlySockets)
	m.published.Store(&s)
}

func (m *Manager) reconcile(ctx context.Context) error {
	defer m.publish()
	m.newPods.reconcileBegins(m.inputs.Pods)
	m.inputs.Doors = m.guards.reconcileBegins(m.inputs.Doors)
	layout, kubelet, err := m.readNode()
	if err != nil {
		return errors.Join(ErrNotEnforced, fmt.Errorf("read the cgroups and kubelet: %w", err)) // what is missing is unknown
	}
	m.watchKubelet(kubelet)
	want, problems := Build(m.inputs, layout, kubelet)
	if len(m.target.DoorPrograms(loader.DoorPort)) == 0 {
		clear(want.Doors) // nothing to attach, but other programs use the rows
	}
	have, err := m.target.Read(ctx)
	if err != nil {
		return errors.Join(ErrNotEnforced, fmt.Errorf("read the eBPF state: %w", err))
	}
	ops := Diff(want, have)
	for _, o := range ops {
		m.log.Debug("reconciling the host network", "operation", o.String())
	}
	done, err := m.target.Apply(ctx, ops)
	if err == nil {
		err = m.target.FinishTakeover() // everything is in place: remove what another version left
	}

	m.pods = layout.Pods
	if len(m.status.Kubelet.Procs) > 0 && len(kubelet.Procs) == 0 {
		m.Resync() // Run then checks for kubelet often
	}
	m.status.Problems, m.status.Kubelet, m.status.Attached = append(problems, m.heldProbes()...), kubelet, len(want.Pods)
	for uid, id := range m.attached {
		if _, ok := want.Pods[uid]; !ok && want.Gone[uid].ID != id {
			delete(m.attached, uid)
			delete(m.recheck, uid)
			delete(m.status.EarlySockets, uid)
		}
	}
	attached := map[string]bool{}
	for _, o := range done {
		attached[o.PodUID] = attached[o.PodUID] || o.Kind == AttachPod
	}
	early := map[string]attachedPod{}
	for uid, cg := range want.Pods {
		row, ok := want.Rows[loader.PodRow{CgroupID: cg.ID}.Key()].(loader.PodRow)
		if !ok {
			continue
		}
		recheck := m.attached[uid] == cg.ID && (m.recheck[uid] || m.status.EarlySockets[uid] > 0)
		if recheck {
			delete(m.recheck, uid)
		}
		// An earlier agent may have attached it, and died before it confined the early sockets.
		if recheck || (attached[uid] || have.Pods[uid].ID == cg.ID) && m.recordAttached(uid, cg) {
			early[uid] = attachedPod{cg.Path, row}
		}
	}
	m.confineEarly(early)
	m.newPods.reconcileEnds(maps.Clone(m.attached), layout.Pods)
	return err
}

// readNode reads the layout and kubelet. It repeats until it adds no watch, so that
// every directory was watched before it was read and no event is missed. A second
// read may not be enough: it can find new directories, which then need a watch.
func (m *Manager) readNode() (Layout, Kubelet, error) {
	for {
		kubelet, err := m.kubelet.find()
		if err != nil {
			return Layout{}, kubelet, err
		}
		m.newPods.setKubelet(m.kubelet.cgroups)
		layout, err := m.readLayout(m.opts.CgroupRoot)
		if err != nil {
			return layout, kubelet, err
		}
		if !m.watchDirs(layout) {
			return layout, kubelet, nil
		}
	}
}

// recordAttached records an attachment, and reports whether it is new and not a repaired one.
func (m *Manager) recordAttached(uid string, cg Cgroup) bool {
	if m.attached[uid] == cg.ID {
		return false
	}
	m.attached[uid] = cg.ID
	delete(m.status.EarlySockets, uid)
	// A server that called bind just before the attachment may be listed only by the next reconcile.
	m.recheck[uid] = true
	return true
}

// confineEarly confines the sockets of pods that are older than their attachments.
func (m *Manager) confineEarly(pods map[string]attachedPod) {
	if len(pods) == 0 {
		return
	}
	unconfined, err := m.confine(m.opts.ProcRoot, pods)
	if err != nil {
		m.log.Warn("cannot confine all sockets that pods opened before their programs were attached", "error", err)
	}
	for uid := range pods {
		n := unconfined[uid]
		if n == 0 {
			delete(m.status.EarlySockets, uid)
			continue
		}
		if m.status.EarlySockets[uid] == 0 {
			m.log.Warn("pod opened sockets before its programs were attached: restart the pod to confine them", "pod", uid, "sockets", n)
		}
		m.status.EarlySockets[uid] = n
	}
}

// PodOf returns the UID of the pod to which a cgroup belongs: the pod's own cgroup or
// one below it.
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

// heldProbes reports the pods whose probes are not redirected because a process outside the
// network listens on the port.
func (m *Manager) heldProbes() []Problem {
	ports, err := m.target.HeldProbes()
	if err != nil {
		m.log.Warn("cannot read the ports of probes", "error", err)
		return nil
	}
	var out []Problem
	for _, p := range m.inputs.Pods {
		for _, port := range p.ProbePorts {
			if p.NetworkID > 0 && !p.Unbound && slices.Contains(ports, port) {
				out = append(out, Problem{p.name(), "ProbePortHeld", fmt.Sprintf("probes and hooks on port %d are not redirected into the pod's network, because a process outside the network listens on that port of the node: choose another port", port)})
			}
		}
	}
	return out
}

// Run reconciles when pod cgroups appear, when kubelet starts or exits, and
// periodically in case an event was lost. Before the first Reconcile it only recognises kubelet. It returns when ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if m.watch != nil {
		defer m.watch.Close()
		wg.Go(func() { m.watchEvents(ctx) })
	}
	defer m.stopWatchingKubelet()
	m.Resync() // kubelet may have restarted while no agent ran
	tick := time.NewTicker(m.opts.Resync)
	defer tick.Stop()
	for {
		// While no kubelet runs, check for it often: its probes fail until it is found.
		var kubeletTick <-chan time.Time
		if m.kubeletExited() {
			kubeletTick = time.After(200 * time.Millisecond)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-kubeletTick:
			if !m.kubeletReturned() {
				continue
			}
		case <-m.trigger:
		case <-tick.C:
		}
		m.mu.Lock()
		var err error
		if m.started {
			err = m.reconcile(ctx)
		} else {
			err = m.allowKubelet()
		}
		m.mu.Unlock()
		if err != nil && !errors.Is(err, context.Canceled) {
			m.log.Error("reconciling the host network failed; retrying", "error", err)
		}
		if m.opts.OnChange != nil {
			m.opts.OnChange()
		}
	}
}

// Resync makes Run reconcile soon.
func (m *Manager) Resync() {
	select {
	case m.trigger <- struct{}{}:
	default:
	}
}
