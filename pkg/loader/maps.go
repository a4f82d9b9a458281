// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
)

// openMaps opens each pinned map whose layout is the wanted one; otherwise it
// makes a new one and fills it from the old, whose pin stays until pinMaps. It
// returns the names of those that are new.
func (l *Loader) openMaps(specs []*ebpf.CollectionSpec) ([]string, error) {
	var changed []string
	for _, cs := range specs {
		for name, spec := range cs.Maps {
			if !strings.HasPrefix(name, "bh_") {
				return nil, fmt.Errorf("object declares map %s: only bh_* maps are shared and pinned", name)
			}
			if m := l.maps[name]; m != nil {
				if err := spec.Compatible(m); err != nil {
					return nil, fmt.Errorf("map %s differs between objects: %w", name, err)
				}
				continue
			}
			m, fresh, err := l.openMap(name, spec)
			if err != nil {
				return nil, err
			}
			l.maps[name] = m
			if fresh {
				changed = append(changed, name)
			}
		}
	}
	return changed, nil
}

func (l *Loader) openMap(name string, spec *ebpf.MapSpec) (*ebpf.Map, bool, error) {
	old, err := ebpf.LoadPinnedMap(l.pin("maps", name), nil)
	switch {
	case err == nil:
		if err = spec.Compatible(old); err == nil {
			return old, false, nil
		}
		defer old.Close()
		l.log.Info("eBPF map has a new layout; filling a new one from the old", "map", name, "change", err)
	case errors.Is(err, os.ErrNotExist):
		old = nil
	default:
		return nil, false, fmt.Errorf("open pinned map %s: %w", name, err)
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, false, fmt.Errorf("create map %s: %w", name, err)
	}
	if old != nil {
		if err := copyMap(m, old); err != nil {
			m.Close()
			return nil, false, fmt.Errorf("fill map %s from its old layout: %w", name, err)
		}
	}
	return m, true, nil
}

// copyMap carries entries over. Fields are only ever appended to values, so
// the common prefix of a value means the same in both; where the key changed,
// rows cannot be carried over and the first reconcile writes them.
func copyMap(to, from *ebpf.Map) error {
	if to.Type() == ebpf.RingBuf || to.Type() == ebpf.SkStorage || to.Type() != from.Type() || to.KeySize() != from.KeySize() {
		return nil
	}
	key := make([]byte, from.KeySize())
	if to.Type() == ebpf.PerCPUArray {
		if from.ValueSize() != to.ValueSize() {
			return nil
		}
		var val [][]byte
		for it := from.Iterate(); it.Next(&key, &val); {
			if err := put(to, key, val); err != nil {
				return err
			}
		}
		return nil
	}
	val := make([]byte, from.ValueSize())
	it := from.Iterate()
	for it.Next(&key, &val) {
		nv := make([]byte, to.ValueSize())
		copy(nv, val)
		if err := put(to, key, nv); err != nil {
			return err
		}
	}
	return it.Err()
}

func put(m *ebpf.Map, key, val any) error {
	err := m.Put(key, val)
	if errors.Is(err, ebpf.ErrKeyNotExist) || (m.Type() == ebpf.Array && err != nil) {
		return nil // an array that shrank
	}
	return err
}

// pinMaps pins new maps over the old ones. bpffs knows rename, so there is no
// moment without a pin.
func (l *Loader) pinMaps(names []string) error {
	var errs []error
	for _, n := range names {
		errs = append(errs, replacePin(l.pin("maps", n), l.maps[n].Pin))
	}
	return errors.Join(errs...)
}

func replacePin(path string, pin func(string) error) error {
	tmp := path + "_new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove left-over pin %s: %w", tmp, err)
	}
	if err := pin(tmp); err != nil {
		return fmt.Errorf("pin %s: %w", tmp, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("move pin to %s: %w", path, err)
	}
	return nil
}

// dropForeignPins removes pins of maps and programs this version does not have.
func (l *Loader) dropForeignPins() error {
	var errs []error
	drop := func(dir string, known func(string) bool) {
		entries, err := os.ReadDir(l.pin(dir))
		errs = append(errs, err)
		for _, e := range entries {
			if !known(e.Name()) {
				l.log.Info("removing pin of an earlier version", "pin", l.pin(dir, e.Name()))
				errs = append(errs, os.Remove(l.pin(dir, e.Name())))
			}
		}
	}
	drop("maps", func(n string) bool { return l.maps[n] != nil })
	drop("progs", func(n string) bool { return l.programs[n] != nil })
	return errors.Join(errs...)
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
