// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// CgroupID returns the kernel's id of a cgroup directory.
func CgroupID(path string) (uint64, error) {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
	if err != nil {
		return 0, fmt.Errorf("get the id of cgroup %s: %w", path, err)
	}
	if h.Size() != 8 {
		return 0, fmt.Errorf("get the id of cgroup %s: its file handle has %d bytes: not a cgroup", path, h.Size())
	}
	return binary.NativeEndian.Uint64(h.Bytes()), nil
}

// ownCgroupID returns the id of this process's cgroup. root is the mount point of the
// cgroup2 tree. The process must be in the host's cgroup namespace, as privileged
// containers are.
func ownCgroupID(root string) (uint64, error) {
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, fmt.Errorf("read the agent's cgroup: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return CgroupID(filepath.Join(root, path))
		}
	}
	return 0, errors.New("the agent is in no cgroup of the cgroup2 tree")
}

// CgroupMount finds the mount point of the cgroup2 tree: /sys/fs/cgroup with the
// unified hierarchy, a directory below it with the hybrid one.
func CgroupMount() (string, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("read mounts: %w", err)
	}
	return cgroupMount(string(raw))
}

func cgroupMount(mountinfo string) (string, error) {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if ok && len(fields) > 4 && strings.HasPrefix(after, "cgroup2 ") {
			return fields[4], nil
		}
	}
	return "", fmt.Errorf("no mount of type cgroup2: boot with a unified hierarchy (systemd.unified_cgroup_hierarchy=1)")
}

// NetnsCookie returns the cookie of the network namespace at path; "" means the
// caller's own.
func NetnsCookie(path string) (uint64, error) {
	if path == "" {
		return ownCookie()
	}
	type result struct {
		cookie uint64
		err    error
	}
	ch := make(chan result)
	go func() {
		// The thread stays locked, so it ends with the goroutine and no other
		// goroutine runs in that namespace.
		runtime.LockOSThread()
		var r result
		ns, err := os.Open(path)
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			r.cookie, err = ownCookie()
		}
		r.err = err
		ch <- r
	}()
	r := <-ch
	if r.err != nil {
		return 0, fmt.Errorf("read the cookie of network namespace %s: %w", path, r.err)
	}
	return r.cookie, nil
}

func ownCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read SO_NETNS_COOKIE: %w", err)
	}
	return c, nil
}

// CgroupLevel returns a cgroup's level below the real root of the tree (id 1). The
// programs count levels from there. It returns false if the real root is not
// visible, because the tree is seen through a cgroup namespace, as in nested nodes.
func CgroupLevel(path string) (int, bool) {
	path = filepath.Clean(path)
	for level := 0; ; level++ {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			return 0, false
		}
		id, err := CgroupID(path)
		if err != nil {
			return 0, false
		}
		if id == 1 {
			return level, true
		}
		path = filepath.Dir(path)
	}
}

// MaxLevel is the deepest level that the programs check (BH_MAX_LEVEL - 1).
// AllLevels makes them check every level, which is slower but still constant.
const (
	MaxLevel         = 15
	AllLevels uint32 = 0xfffe
)
