// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// ConflistName is the file of the container runtime's CNI configuration. The
// runtime uses the first file by name, and reports the node ready once one exists.
const ConflistName = "10-bulkhead.conflist"

// InstalledMark marks that the configuration was written since the node booted: the file of MarkInstalled. The directory is
// emptied by a boot. It is the same for every configuration, so that another one is not taken for a boot.
const InstalledMark = "/var/run/bulkhead/cni-installed"

// NetworkName is the name of the network configuration in that file.
const NetworkName = "bulkhead"

// Conflist returns its content. It does not offer CNI 1.1.0 (cniVersions), though the plugin
// supports it: Multus then answers containerd 1.7, which knows 1.0.0, in 1.1.0, and no pod
// starts.
func Conflist(socket string) ([]byte, error) {
	b, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0", "name": NetworkName,
		"plugins": []any{map[string]any{"type": network.CNIType, "socket": socket}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the CNI configuration: %w", err)
	}
	return append(b, '\n'), nil
}

// WriteConflist writes the configuration atomically, unless it is up to date.
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

// configurations are the names of the files in dir that a container runtime takes for CNI configurations, in its order: it
// uses the first.
func configurations(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, fmt.Errorf("read the CNI configurations: %w", err)
	}
	var names []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".conf" || ext == ".conflist" || ext == ".json") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// pluginTypes are the types of the plugins in a configuration.
func pluginTypes(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the CNI configurations: %w", err)
	}
	type plugin struct {
		Type string `json:"type"`
	}
	var conf struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal(data, &conf); err != nil {
		return nil, fmt.Errorf("read the CNI configuration %s: %w", path, err)
	}
	var types []string
	for _, p := range append(conf.Plugins, conf.plugin) {
		types = append(types, p.Type)
	}
	return types, nil
}

// Delegated reports whether a meta plugin calls Bulkhead's plugin: the container runtime
// uses the first by name of the CNI configurations in dir, and that has other plugins only.
func Delegated(dir string) (bool, error) {
	names, err := configurations(dir)
	if err != nil || len(names) == 0 {
		return false, err
	}
	types, err := pluginTypes(filepath.Join(dir, names[0]))
	return err == nil && !slices.Contains(types, network.CNIType), err
}

// metaPlugins call other plugins, Bulkhead's among them.
var metaPlugins = []string{"multus", "multus-shim"}

// otherConfigurations returns an error that names the configurations in dir with which pods get no network of Bulkhead. The
// container runtime uses one that comes before ConflistName, and another one on a node where the agent has not run yet.
func otherConfigurations(dir string) error {
	names, err := configurations(dir)
	if err != nil {
		return err
	}
	var others []string
	for _, name := range names {
		types, err := pluginTypes(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(types, func(t string) bool { return t == network.CNIType || slices.Contains(metaPlugins, t) }) {
			others = append(others, name)
		}
	}
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("%s has configurations of other plugins (%s): pods that the container runtime starts with them have no network of Bulkhead: delete them, and such pods", dir, strings.Join(others, ", "))
}

// MarkInstalled creates the file that says that the configuration has been installed since the node's boot. It must be on a
// file system that a boot empties.
func MarkInstalled(mark string) error {
	if err := os.MkdirAll(filepath.Dir(mark), 0o755); err != nil {
		return fmt.Errorf("create directory for %s: %w", mark, err)
	}
	if err := os.WriteFile(mark, nil, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", mark, err)
	}
	return nil
}

// BeginBoot is called before the agent can connect pods. The first call after the node's boot deletes the configuration that was
// installed before: the node must not be Ready before the agent is. But if the container runtime would use another
// configuration then, BeginBoot installs the plugin and ours, with which the node's pods wait for the agent.
func (i Installation) BeginBoot() error {
	if _, err := os.Stat(i.Mark); err == nil {
		return nil
	}
	names, err := configurations(i.ConfDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == ConflistName })
	if len(names) > 0 && names[0] > ConflistName {
		return i.installFiles()
	}
	if err := os.Remove(filepath.Join(i.ConfDir, ConflistName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CNI configuration of the last boot: %w", err)
	}
	return nil
}

// InstallPlugin atomically copies the plugin into the runtime's directory, so
// that a concurrent CNI call runs either the old or the new plugin. It writes nothing
// if the plugin is there. With an empty source it is a no-op.
func InstallPlugin(source, dir string) error {
	if source == "" {
		return nil
	}
	f, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("open the CNI plugin: %w", err)
	}
	defer f.Close()
	path := filepath.Join(dir, network.CNIType)
	want, err := digest(f)
	if err != nil {
		return fmt.Errorf("read the CNI plugin: %w", err)
	}
	if installed(path, want) {
		return nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read the CNI plugin: %w", err)
	}
	return replaceFile(path, f, pluginMode)
}

// pluginMode is the mode of the plugin's file.
const pluginMode = 0o755

// installed reports whether the file at path is the plugin with that digest. If it cannot be read, it is to be replaced.
func installed(path string, want [sha256.Size]byte) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != pluginMode {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	have, err := digest(f)
	return err == nil && have == want
}

func digest(r io.Reader) (out [sha256.Size]byte, err error) {
	h := sha256.New()
	_, err = io.Copy(h, r)
	return [sha256.Size]byte(h.Sum(nil)), err
}

// replaceFile writes a temporary file in the same directory and renames it to path.
func replaceFile(path string, content io.Reader, mode fs.FileMode) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create directory for %s: %w", path, err)
	}
	// The runtime reads only *.conf, *.conflist and *.json, not *.tmp.
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
