// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"path/filepath"
	"slices"
)

// kubeletExited reports whether kubelet has exited since the agent found it. If the agent
// never found a kubelet, only the resync searches for it.
func (m *Manager) kubeletExited() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kubelet.found && len(m.status.Kubelet.Procs) == 0
}

// kubeletReturned reports whether kubelet runs again.
func (m *Manager) kubeletReturned() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	procs, err := m.kubelet.processes()
	return err == nil && len(procs) > 0
}

// watchDirs watches the directories in which cgroups of pods and of kubelet appear.
// It reports whether it added a watch.
func (m *Manager) watchDirs(layout Layout) bool {
	if m.watch == nil {
		return false
	}
	dirs := slices.Clone(layout.Parents)
	for _, p := range layout.Parents {
		dirs = append(dirs, filepath.Dir(p))
	}
	for _, p := range m.kubelet.cgroups {
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
			m.log.Warn("cannot watch the cgroup; the periodic resync finds changes", "path", d, "error", err)
			continue
		}
		have, added = append(have, d), true
	}
	return added
}

// watchKubelet watches for the exit of kubelet's processes.
func (m *Manager) watchKubelet(k Kubelet) {
	running := map[int]bool{}
	for _, p := range k.Procs {
		running[p.PID] = true
		if m.kubeletExits[p.PID] != nil {
			continue
		}
		stop, err := watchExit(p.PID, m.Resync)
		if err != nil {
			m.log.Debug("cannot watch for kubelet's exit; the periodic resync finds it", "error", err)
			continue
		}
		m.kubeletExits[p.PID] = stop
	}
	for pid, stop := range m.kubeletExits {
		if !running[pid] {
			stop()
			delete(m.kubeletExits, pid)
		}
	}
}

func (m *Manager) stopWatchingKubelet() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchKubelet(Kubelet{})
}
