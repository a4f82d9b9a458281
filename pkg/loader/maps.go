// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// openMaps opens each pinned map whose layout is the wanted one; otherwise it
// makes a new one and fills it from the old, whose pin stays until pinAll. It
// returns the names of those that are new, and notes which of them lack rows that
// an attached program may judge by now: these are pinned by Settle.
func (l *Loader) openMaps(specs []*ebpf.CollectionSpec) ([]string, error) {
	var changed []string
	var held map[string]*ebpf.Map
	inForce := func(name string) *ebpf.Map {
		if held == nil {
			held = l.mapsInForce()
		}
		m := held[name]
		delete(held, name)
		return m
	}
	defer func() {
		for _, m := range held {
			m.Close()
		}
	}()
	for _, cs := range specs {
		for name, spec := range cs.Maps {
			if !strings.HasPrefix(name, ourPrefix) {
				return nil, fmt.Errorf("object declares map %s: only bh_* maps are shared and pinned", name)
			}
			if m := l.maps[name]; m != nil {
				if err := spec.Compatible(m); err != nil {
					return nil, fmt.Errorf("map %s differs between objects: %w", name, err)
				}
				continue
			}
			old, pinned := l.oldMap(name, inForce)
			if old != nil && spec.Compatible(old) == nil {
				l.maps[name] = old
				if !pinned {
					changed = append(changed, name)
				}
				continue
			}
			m, whole, err := l.newMap(name, spec, old)
			if err != nil {
				return nil, err
			}
			l.maps[name] = m
			if whole {
				changed = append(changed, name)
			} else {
				l.unfilled = append(l.unfilled, name)
			}
		}
	}
	return changed, nil
}

// oldMap is the pinned map, or where that cannot be had the one that pinned or
// attached programs use.
func (l *Loader) oldMap(name string, inForce func(string) *ebpf.Map) (m *ebpf.Map, pinned bool) {
	path := l.pin("maps", name)
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err == nil {
		return m, true
	}
	if !errors.Is(err, os.ErrNotExist) {
		l.log.Warn("pinned map cannot be used; pinning another in its place", "pin", path, "err", err)
	}
	if m = inForce(name); m != nil {
		l.log.Info("map found by the programs that use it", "pin", path)
	}
	return m, false
}

// newMap makes a map and fills it from old, which it closes.
func (l *Loader) newMap(name string, spec *ebpf.MapSpec, old *ebpf.Map) (m *ebpf.Map, whole bool, err error) {
	if m, err = ebpf.NewMap(spec); err != nil {
		if old != nil {
			old.Close()
		}
		return nil, false, fmt.Errorf("create map %s: %w", name, err)
	}
	whole = needsNoRows(m)
	if old == nil {
		return m, whole || !l.attached(), nil
	}
	defer old.Close()
	carried, err := copyMap(m, old)
	l.log.Info("eBPF map has another layout; filled a new one from the old", "map", name, "change", spec.Compatible(old), "carried", carried, "err", err)
	if err == nil {
		return m, whole || carried, nil
	}
	m.Close() // half of the rows may leave no room for those that are wanted
	if m, err = ebpf.NewMap(spec); err != nil {
		return nil, false, fmt.Errorf("create map %s: %w", name, err)
	}
	return m, whole, nil
}

// needsNoRows tells that nothing is judged by what a map holds, or that nobody
// could write it.
func needsNoRows(m *ebpf.Map) bool {
	return slices.Contains([]ebpf.MapType{ebpf.RingBuf, ebpf.SkStorage, ebpf.PerCPUArray, ebpf.LRUHash}, m.Type())
}

// copyMap carries entries over. Fields are only ever appended to values, so
// the common prefix of a value means the same in both; where the key changed,
// rows cannot be carried over and the first reconcile writes them.
func copyMap(to, from *ebpf.Map) (carried bool, err error) {
	if to.Type() == ebpf.RingBuf || to.Type() == ebpf.SkStorage || to.Type() != from.Type() || to.KeySize() != from.KeySize() {
		return false, nil
	}
	key := make([]byte, from.KeySize())
	if to.Type() == ebpf.PerCPUArray {
		if from.ValueSize() != to.ValueSize() {
			return false, nil
		}
		var val [][]byte
		for it := from.Iterate(); it.Next(&key, &val); {
			if err := put(to, key, val); err != nil {
				return false, err
			}
		}
		return true, nil
	}
	val := make([]byte, from.ValueSize())
	it := from.Iterate()
	for it.Next(&key, &val) {
		nv := make([]byte, to.ValueSize())
		copy(nv, val)
		if err := put(to, key, nv); err != nil {
			return false, err
		}
	}
	return true, it.Err()
}

func put(m *ebpf.Map, key, val any) error {
	err := m.Put(key, val)
	if errors.Is(err, ebpf.ErrKeyNotExist) || (m.Type() == ebpf.Array && err != nil) {
		return nil // an array that shrank
	}
	return err
}

func (l *Loader) readConfig() (vrfbindBhConfig, error) {
	var c vrfbindBhConfig
	if err := l.maps["bh_config"].Lookup(uint32(0), &c); err != nil {
		return c, fmt.Errorf("read map bh_config: %w", err)
	}
	return c, nil
}

func (l *Loader) writeConfig(c vrfbindBhConfig) error {
	if err := l.maps["bh_config"].Put(uint32(0), &c); err != nil {
		return fmt.Errorf("write map bh_config: %w", err)
	}
	return nil
}

// Config is what the programs need to know besides rows.
type Config struct {
	PodLevels     uint32 // bit n: pods live at level n of the cgroup tree
	PodRootLevels uint32 // bit n: a directory that holds all pods is at level n
	KubeletLevels uint32
	ProbeLock     bool // enforce the locked addresses
	Guard         bool // judge packets and devices
	TunnelPort    uint32
	// Marks of networks, the first one's and the last possible one's.
	MarkFirst, MarkLast uint32
}

// Config reads the configuration in force.
func (l *Loader) Config() (Config, error) {
	c, err := l.readConfig()
	return Config{PodLevels: c.PodLevels, PodRootLevels: c.PodrootLevels, KubeletLevels: c.KubeletLevels, ProbeLock: c.ProbeLock != 0,
		Guard: c.Guard != 0, TunnelPort: c.TunnelPort, MarkFirst: c.MarkFirst, MarkLast: c.MarkLast}, err
}

// SetConfig replaces it. The kernel swaps the one row as a whole.
func (l *Loader) SetConfig(want Config) error {
	c, err := l.readConfig()
	if err != nil {
		return err
	}
	c.PodLevels, c.PodrootLevels, c.KubeletLevels = want.PodLevels, want.PodRootLevels, want.KubeletLevels
	c.ProbeLock, c.Guard = flag(want.ProbeLock), flag(want.Guard)
	c.TunnelPort, c.MarkFirst, c.MarkLast = want.TunnelPort, want.MarkFirst, want.MarkLast
	return l.writeConfig(c)
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
