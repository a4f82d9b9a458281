// Package build makes what the lab runs on: the Kubernetes binaries, the nodes'
// root file system, the guest tools and the container images. Everything slow
// is kept in the user's cache directory under a key of what it is made from.
package build

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

// Key is a short name for a list of inputs; equal inputs, equal keys.
func Key(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// cacheRoot is where entries live, as <kind>/<key>.
func cacheRoot() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w", err)
	}
	return filepath.Join(dir, "bulkhead"), nil
}

// entry returns the directory of an entry, and calls make for one that is not
// there. make fills a temporary directory, which then gets the entry's name:
// nobody sees half an entry, and of two builders at once the second waits.
// All but the newest keep entries of a kind are removed, once they are old.
func entry(kind, key string, keep int, make func(dir string) error) (string, error) {
	root, err := cacheRoot()
	if err != nil {
		return "", err
	}
	return entryIn(root, kind, key, keep, make)
}

func entryIn(root, kind, key string, keep int, make func(dir string) error) (string, error) {
	parent := filepath.Join(root, kind)
	final := filepath.Join(parent, key)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("make the cache of %s: %w", kind, err)
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
		now := time.Now()
		os.Chtimes(final, now, now) // its age is when it was last used
		return final, nil
	}
	// We hold the lock: whatever is half done here was left by one that died.
	left, _ := filepath.Glob(filepath.Join(parent, "tmp-*"))
	for _, dir := range left {
		os.RemoveAll(dir)
	}
	tmp, err := os.MkdirTemp(parent, "tmp-")
	if err != nil {
		return "", fmt.Errorf("make a temporary directory for %s: %w", kind, err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("open up the directory of %s: %w", kind, err)
	}
	if err := make(tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, final); err != nil {
		return "", fmt.Errorf("put %s into the cache: %w", kind, err)
	}
	prune(parent, keep, time.Now().Add(-inUse))
	return final, nil
}

// inUse is how long a lab may run from an entry that newer builds have replaced.
const inUse = 24 * time.Hour

// prune removes the entries used longest ago, but none used after unused.
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

// Remember keeps a short answer in the cache.
func Remember(kind, key string, ask func() (string, error)) (string, error) {
	dir, err := entry(kind, key, 4, func(dir string) error {
		answer, err := ask()
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "answer"), []byte(answer), 0o644)
	})
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(filepath.Join(dir, "answer"))
	if err != nil {
		return "", fmt.Errorf("read what the cache knows of %s: %w", kind, err)
	}
	return string(data), nil
}
