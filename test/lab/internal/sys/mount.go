// SPDX-License-Identifier: Apache-2.0

// Package sys holds the system calls that several parts of the lab share.
package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Mount is a mount of a file system without a device.
type Mount struct{ Kind, Target, Options string }

// Do creates the mount point and mounts the file system, unless it is mounted.
func (m Mount) Do() error {
	if err := os.MkdirAll(m.Target, 0o755); err != nil {
		return fmt.Errorf("create the mount point %s: %w", m.Target, err)
	}
	if err := unix.Mount(m.Kind, m.Target, m.Kind, 0, m.Options); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("mount %s on %s: %w", m.Kind, m.Target, err)
	}
	return nil
}

// Private makes all mounts of this mount namespace private: later mounts do not
// propagate to other namespaces.
func Private() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

// Bind bind-mounts the directory from on to.
func Bind(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("create the mount point %s: %w", to, err)
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", from, to, err)
	}
	return nil
}

// Overlay mounts an overlay of lower on target, with its upper directory below rw.
func Overlay(lower, rw, target string) error {
	for _, d := range []string{rw + "/upper", rw + "/work", target} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("prepare the overlay: %w", err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lower, rw, rw)
	if err := unix.Mount("overlay", target, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay of %s on %s: %w", lower, target, err)
	}
	return nil
}

// EnterRoot makes root the root file system and unmounts the old one.
func EnterRoot(root string) error {
	if err := os.Chdir(root); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot to %s: %w", root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	return nil
}
