// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"bulkhead/pkg/loader"
)

// Cgroup is one directory of the cgroup tree.
type Cgroup struct {
	Path string
	ID   uint64
}

// Layout describes where the cgroups of pods are on this node.
type Layout struct {
	Parents []string          // directories in which kubelet creates pod cgroups; to be watched
	Pods    map[string]Cgroup // by pod UID
	Levels  uint32            // levels of pod cgroups, see loader.Config.PodLevels
	// Roots are the directories that hold all pods; see loader.Config.PodRootLevels
	// for RootLevels.
	Roots      []Cgroup
	RootLevels uint32
}

// kubepodsDepth is the depth to which kubepods is searched: kubelet's --cgroup-root
// can place it below one or two other slices.
const kubepodsDepth = 4

// ReadLayout finds the pods' cgroups, for both cgroup drivers and below any prefix.
func ReadLayout(root string) (Layout, error) { return readLayout(root, loader.CgroupID) }

func readLayout(root string, idOf func(string) (uint64, error)) (Layout, error) {
	l := Layout{Pods: map[string]Cgroup{}}
	roots, err := findKubepods(root, kubepodsDepth)
	if err != nil {
		return l, err
	}
	for _, root := range roots {
		id, err := idOf(root)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since it was listed
		}
		if err != nil {
			return l, err
		}
		l.Roots = append(l.Roots, Cgroup{Path: root, ID: id})
		l.RootLevels |= levelBit(root, 0)
		l.addParent(root)
		entries, err := readDirs(root)
		if err != nil {
			return l, err
		}
		base := strings.TrimSuffix(filepath.Base(root), ".slice")
		for _, e := range entries {
			switch e {
			case "burstable", "besteffort", base + "-burstable.slice", base + "-besteffort.slice":
				l.addParent(filepath.Join(root, e))
			}
		}
	}
	for _, p := range l.Parents {
		entries, err := readDirs(p)
		if err != nil {
			return l, err
		}
		for _, e := range entries {
			uid, ok := podUID(filepath.Base(p), e)
			if !ok {
				continue
			}
			path := filepath.Join(p, e)
			id, err := idOf(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue // deleted since it was listed
			}
			if err != nil {
				return l, err
			}
			l.Pods[uid] = Cgroup{Path: path, ID: id}
		}
	}
	return l, nil
}

func (l *Layout) addParent(path string) {
	l.Parents = append(l.Parents, path)
	l.Levels |= levelBit(path, 1)
}

// levelBit returns the bit of the level that is below levels under path, or all bits
// if the level is unknown.
func levelBit(path string, below int) uint32 {
	n, ok := loader.CgroupLevel(path)
	if !ok || n+below > loader.MaxLevel {
		return loader.AllLevels
	}
	return 1 << (n + below)
}

func isKubepods(name string) bool {
	return name == "kubepods" || name == "kubepods.slice" || strings.HasSuffix(name, "-kubepods.slice")
}

// findKubepods finds the kubepods directories. It does not search below them, because
// a container with its own cgroup tree could create a fake one.
func findKubepods(dir string, depth int) ([]string, error) {
	entries, err := readDirs(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		path := filepath.Join(dir, e)
		if isKubepods(e) {
			out = append(out, path)
		} else if depth > 1 {
			below, err := findKubepods(path, depth-1)
			if err != nil {
				return nil, err
			}
			out = append(out, below...)
		}
	}
	return out, nil
}

// podUID parses the UID from a directory's name: pod<uid> (cgroupfs), or
// <parent>-pod<uid with _>.slice (systemd, where - separates levels).
func podUID(parent, name string) (string, bool) {
	if prefix, ok := strings.CutSuffix(parent, ".slice"); ok {
		name, ok = strings.CutPrefix(name, prefix+"-pod")
		if !ok {
			return "", false
		}
		name, ok = strings.CutSuffix(name, ".slice")
		return strings.ReplaceAll(name, "_", "-"), ok && name != "" && !strings.Contains(name, "-")
	}
	uid, ok := strings.CutPrefix(name, "pod")
	return uid, ok && uid != ""
}

// readDirs lists subdirectories. A missing directory has none.
func readDirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list cgroup %s: %w", dir, err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}
