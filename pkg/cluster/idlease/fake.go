// SPDX-License-Identifier: Apache-2.0

package idlease

import (
	"context"
	"sync"
)

// Memory is a HighWater in memory, for tests. The zero value is empty.
type Memory struct {
	mu    sync.Mutex
	marks map[string]int64
	Err   error // Get and Raise return it, if set
}

// Get implements HighWater.
func (m *Memory) Get(_ context.Context, kind string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.marks[kind], m.Err
}

// Raise implements HighWater.
func (m *Memory) Raise(_ context.Context, kind string, to, ahead int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Err != nil || m.marks[kind] >= to {
		return m.Err
	}
	if m.marks == nil {
		m.marks = map[string]int64{}
	}
	m.marks[kind] = to + ahead
	return nil
}

// Drop implements HighWater.
func (m *Memory) Drop(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.marks, kind)
}

// DropPorts implements HighWater.
func (m *Memory) DropPorts(exists func(networkName string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dropPorts(m.marks, exists)
}
