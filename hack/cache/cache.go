// SPDX-License-Identifier: Apache-2.0

// Package cache keeps files that are slow to build in the user's cache
// directory. The key of an entry is a hash of the entry's inputs.
package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Key returns a short hash of a list of inputs.
func Key(inputs ...string) string {
	h := sha256.New()
	for _, s := range inputs {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// root is the directory of the entries <kind>/<key>.
func root() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w", err)
	}
	return filepath.Join(dir, "bulkhead"), nil
}

// Entry returns the directory of an entry. If the entry does not exist, fill
// fills a temporary directory, which Entry then renames: an entry is complete
// or absent. A second builder of the same kind waits for the first. Entry keeps
// the given number of entries of a kind, and removes older ones once no lab can
// use them any more.
func Entry(kind, key string, keep int, fill func(dir string) error) (string, error) {
	root, err := root()
	if err != nil {
		return "", err
	}
	return entryIn(root, kind, key, keep, fill)
}

// Remove removes an entry, so that the next call of Entry builds it again.
func Remove(kind, key string) error {
	root, err := root()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(root, kind, key)); err != nil {
		return fmt.Errorf("remove %s from the cache: %w", kind, err)
	}
	return nil
}

func entryIn(root, kind, key string, keep int, fill func(dir string) error) (string, error) {
	parent := filepath.Join(root, kind)
	final := filepath.Join(parent, key)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("create the cache of %s: %w", kind, err)
	}
	lock, err := os.OpenFile(filepath.Join(parent, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", fmt.Errorf("open the lock of the cache of %s: %w", kind, err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the cache of %s: %w", kind, err)
	}
	if _, err := os.Stat(final); err == nil {
		// The modification time records the last use, for prune.
		now := time.Now()
		os.Chtimes(final, now, now)
		return final, nil
	}
	// Only the lock's holder builds, so every temporary directory is left over
	// from a builder that was killed.
	leftover, _ := filepath.Glob(filepath.Join(parent, "tmp-*"))
	for _, dir := range leftover {
		os.RemoveAll(dir)
	}
	tmp, err := os.MkdirTemp(parent, "tmp-")
	if err != nil {
		return "", fmt.Errorf("create a temporary directory for %s: %w", kind, err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("set the mode of the directory of %s: %w", kind, err)
	}
	if err := fill(tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, final); err != nil {
		return "", fmt.Errorf("put %s into the cache: %w", kind, err)
	}
	prune(parent, keep, time.Now().Add(-inUse))
	return final, nil
}

// inUse is how long a lab may still use an entry that a newer one has replaced.
const inUse = 24 * time.Hour

// prune keeps the most recently used entries and those used after unused, and
// removes the others.
func prune(parent string, keep int, unused time.Time) {
	list, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	type aged struct {
		path string
		used time.Time
	}
	var entries []aged
	for _, e := range list {
		if info, err := e.Info(); err == nil && e.IsDir() && !strings.HasPrefix(e.Name(), "tmp-") {
			entries = append(entries, aged{filepath.Join(parent, e.Name()), info.ModTime()})
		}
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].used.After(entries[j].used) })
	for _, e := range entries[min(keep, len(entries)):] {
		if e.used.Before(unused) {
			os.RemoveAll(e.path)
		}
	}
}

// Text returns a cached string, and calls compute if the cache lacks it.
func Text(kind, key string, compute func() (string, error)) (string, error) {
	const name = "answer"
	dir, err := Entry(kind, key, 4, func(dir string) error {
		text, err := compute()
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
	})
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return "", fmt.Errorf("read %s from the cache: %w", kind, err)
	}
	return string(data), nil
}
