// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// ListenUnix listens on a unix socket that only root can open. It replaces a
// stale socket of a former process, and makes the directory if it is missing.
func ListenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of socket %s: %w", path, err)
	}
	// The socket is bound under another name and renamed once its mode is set,
	// so that path never exists with a wider mode.
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: next, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // by then path may be another process's socket
	if err := errors.Join(os.Chmod(next, 0o600), os.Rename(next, path)); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}
