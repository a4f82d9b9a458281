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

// openMaps opens each pinned map that has the expected layout. Otherwise it creates
// a new map and fills it from the old one, whose pin stays until pinAll. It
// returns the names of the maps to pin. It records in l.unfilled the maps that
// may lack rows which attached programs use; FinishTakeover pins those.
func (l *Loader) openMaps(specs []*ebpf.CollectionSpec) ([]string, error) {
	var changed []string
	var used map[string]*ebpf.Map
	usedMap := func(name string) *ebpf.Map {
		if used == nil {
			used = l.usedMaps()
		}
		m := used[name]
		delete(used, name)
		return m
	}
	defer func() {
		for _, m := range used {
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
			old, pinned := l.oldMap(name, usedMap)
			if old != nil && spec.Compatible(old) == nil {
				l.maps[name] = old
				if !pinned {
					changed = append(changed, name)
				}
				continue
			}
			m, complete, err := l.newMap(name, spec, old)
			if err != nil {
				return nil, err
			}
			l.maps[name] = m
			if complete {
				changed = append(changed, name)
			} else {
				l.unfilled = append(l.unfilled, name)
			}
		}
	}
	return changed, nil
}

// oldMap returns the pinned map or, if its pin is missing or unusable, the map that
// pinned or attached programs use.
func (l *Loader) oldMap(name string, usedMap func(string) *ebpf.Map) (m *ebpf.Map, pinned bool) {
	path := l.pin("maps", name)
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err == nil {
		return m, true
	}
	if !errors.Is(err, os.ErrNotExist) {
		l.log.Warn("pinned map cannot be opened; replacing the pin", "pin", path, "error", err)
	}
	if m = usedMap(name); m != nil {
		l.log.Info("found the map through the programs that use it", "pin", path)
	}
	return m, false
}

// newMap creates a map and fills it from old, which it closes. complete is false
// if attached programs may need rows that the new map lacks.
func (l *Loader) newMap(name string, spec *ebpf.MapSpec, old *ebpf.Map) (m *ebpf.Map, complete bool, err error) {
	if m, err = ebpf.NewMap(spec); err != nil {
		if old != nil {
			old.Close()
		}
		return nil, false, fmt.Errorf("create map %s: %w", name, err)
	}
	complete = !needsRows(m)
	if old == nil {
		return m, complete || !l.anyAttached(), nil
	}
	defer old.Close()
	copied, err := copyMap(m, old)
	l.log.Info("eBPF map has another layout; created a new one", "map", name, "change", spec.Compatible(old), "copied", copied, "error", err)
	if err == nil {
		return m, complete || copied, nil
	}
	m.Close() // the rows copied so far may leave no room for the desired ones
	if m, err = ebpf.NewMap(spec); err != nil {
		return nil, false, fmt.Errorf("create map %s: %w", name, err)
	}
	return m, complete, nil
}

// needsRows reports whether programs decide by rows that user space writes into
// the map.
func needsRows(m *ebpf.Map) bool {
	return !slices.Contains([]ebpf.MapType{ebpf.RingBuf, ebpf.SkStorage, ebpf.PerCPUArray, ebpf.LRUHash}, m.Type())
}

// copyMap copies entries. New fields are only appended to values, so the common
// prefix of a value means the same in both maps. If the key size changed, rows
// cannot be copied and the first reconcile writes them.
func copyMap(to, from *ebpf.Map) (copied bool, err error) {
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
		return nil // the array has fewer entries than the old one
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

// Config is the configuration of the programs besides rows.
type Config struct {
	PodLevels     uint32 // bit n: pod cgroups exist at level n of the cgroup tree
	PodRootLevels uint32 // bit n: a directory that holds all pods is at level n
	KubeletLevels uint32 // bit n: kubelet's cgroup is at level n
	ProbeLock     bool   // enforce the locked addresses
	Guard         bool   // check packets and devices
	TunnelPort    uint32
	// MarkFirst and MarkLast are the range of the networks' marks.
	MarkFirst, MarkLast uint32
	// OwnFirst and OwnLast are the range of the TCP ports of the agent and the controllers.
	OwnFirst, OwnLast uint16
}

// Config reads the current configuration.
func (l *Loader) Config() (Config, error) {
	c, err := l.readConfig()
	return Config{PodLevels: c.PodLevels, PodRootLevels: c.PodrootLevels, KubeletLevels: c.KubeletLevels, ProbeLock: c.ProbeLock != 0,
		Guard: c.Guard != 0, TunnelPort: c.TunnelPort, MarkFirst: c.MarkFirst, MarkLast: c.MarkLast,
		OwnFirst: c.OwnFirst, OwnLast: c.OwnLast}, err
}

// SetConfig replaces the configuration. A program that runs meanwhile may see some fields of each.
func (l *Loader) SetConfig(want Config) error {
	c, err := l.readConfig()
	if err != nil {
		return err
	}
	c.PodLevels, c.PodrootLevels, c.KubeletLevels = want.PodLevels, want.PodRootLevels, want.KubeletLevels
	c.ProbeLock, c.Guard = flag(want.ProbeLock), flag(want.Guard)
	c.TunnelPort, c.MarkFirst, c.MarkLast = want.TunnelPort, want.MarkFirst, want.MarkLast
	c.OwnFirst, c.OwnLast = want.OwnFirst, want.OwnLast
	return l.writeConfig(c)
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
