// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"bulkhead/pkg/network"
)

// ConflistName is the file that tells the container runtime about us. The
// runtime takes the first in order, and calls the node ready once it is there.
const ConflistName = "10-bulkhead.conflist"

// NetworkName is the configuration's name in it.
const NetworkName = "bulkhead"

// Conflist is its content. containerd 1.7 (libcni 1.1) knows CNI up to 1.0.0
// and reads cniVersion; newer runtimes choose from cniVersions, and with 1.1.0
// call STATUS and GC.
func Conflist(socket string) ([]byte, error) {
	b, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0", "cniVersions": []string{"1.0.0", "1.1.0"}, "name": NetworkName,
		"plugins": []any{map[string]any{"type": network.CNIType, "socket": socket}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the CNI configuration: %w", err)
	}
	return append(b, '\n'), nil
}

// WriteConflist puts the configuration in place, in one step, if it is not
// there already.
func WriteConflist(dir, socket string) error {
	want, err := Conflist(socket)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, ConflistName)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
		return nil
	}
	return replaceFile(path, bytes.NewReader(want), 0o644)
}

// RemoveConflist takes it away: for uninstalling.
func RemoveConflist(dir string) error {
	if err := os.Remove(filepath.Join(dir, ConflistName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CNI configuration: %w", err)
	}
	return nil
}

// InstallPlugin copies the plugin into the runtime's directory in one step, so
// that a call in the same moment runs either the former or the new one. An
// empty source leaves the directory alone.
func InstallPlugin(source, dir string) error {
	if source == "" {
		return nil
	}
	f, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("open the CNI plugin: %w", err)
	}
	defer f.Close()
	return replaceFile(filepath.Join(dir, network.CNIType), f, 0o755)
}

// replaceFile writes a file beside the one it then becomes.
func replaceFile(path string, content io.Reader, mode fs.FileMode) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make directory for %s: %w", path, err)
	}
	// The runtime reads *.conf, *.conflist and *.json only: not this name.
	f, err := os.CreateTemp(filepath.Dir(path), ".bulkhead-*.tmp")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = io.Copy(f, content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
