// SPDX-License-Identifier: Apache-2.0

// Package debian builds root file systems from Debian packages, and selects
// programs with their libraries from them.
package debian

import (
	"archive/tar"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"bulkhead/hack/cache"
)

// Suite is the Debian release of the lab's nodes and of the image: OVS 3.5,
// OVN 25.03 (the oldest supported) and kernel 6.12 with VRF, openvswitch and geneve.
const Suite = "trixie"

//go:embed packages.go
var packagesSource string

// Mmdebstrap runs mmdebstrap for Suite into dir, with the mirror and the network
// options of this machine's apt.
func Mmdebstrap(ctx context.Context, dir string, log io.Writer, args ...string) error {
	from, err := mirror()
	if err != nil {
		return err
	}
	for _, o := range aptOptions() {
		args = append(args, "--aptopt="+o)
	}
	cmd := exec.CommandContext(ctx, "mmdebstrap", append(args, Suite, dir, from)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run mmdebstrap (make lab-deps installs it): %w", err)
	}
	return nil
}

// Tree is the files of some Debian packages and their dependencies, extracted
// and not configured: no maintainer script has run, so the architecture may be
// a foreign one.
type Tree struct {
	// Root is the directory of the files.
	Root string
	// control is the directory of NAME.control and NAME.list for each package.
	control string
}

// Extract returns the tree of packages for a Debian architecture, from the cache
// unless refresh is set: then Extract fetches the versions that the mirror has now.
func Extract(ctx context.Context, arch string, packages []string, refresh bool, log io.Writer) (Tree, error) {
	const kind = "packages"
	key := cache.Key(append([]string{packagesSource, arch}, packages...)...)
	if refresh {
		if err := cache.Remove(kind, key); err != nil {
			return Tree{}, err
		}
	}
	dir, err := cache.Entry(kind, key, 4, func(dir string) error {
		t := TreeIn(dir)
		if err := os.Mkdir(t.control, 0o755); err != nil {
			return fmt.Errorf("create a directory for the packages' control files: %w", err)
		}
		if err := Mmdebstrap(ctx, t.Root, log, "--variant=extract", "--architectures="+arch,
			"--include="+strings.Join(packages, ","), "--skip=cleanup/apt"); err != nil {
			return fmt.Errorf("extract the %s packages %s: %w", arch, strings.Join(packages, ", "), err)
		}
		if err := t.describe(ctx); err != nil {
			return err
		}
		if err := os.RemoveAll(filepath.Join(t.Root, "var")); err != nil {
			return fmt.Errorf("remove apt's files: %w", err)
		}
		return nil
	})
	return TreeIn(dir), err
}

// TreeIn returns the tree in a directory that Extract filled.
func TreeIn(dir string) Tree {
	return Tree{Root: filepath.Join(dir, "root"), control: filepath.Join(dir, "control")}
}

// describe writes the control files and file lists of the packages that apt
// downloaded.
func (t Tree) describe(ctx context.Context) error {
	debs, err := filepath.Glob(filepath.Join(t.Root, "var/cache/apt/archives/*.deb"))
	if err != nil {
		return fmt.Errorf("list the packages: %w", err)
	}
	if len(debs) == 0 {
		return errors.New("mmdebstrap kept no packages in var/cache/apt/archives")
	}
	for _, deb := range debs {
		name, _, _ := strings.Cut(filepath.Base(deb), "_")
		control, err := exec.CommandContext(ctx, "dpkg-deb", "--field", deb).Output()
		if err != nil {
			return fmt.Errorf("read the control file of %s: %w", name, err)
		}
		files, err := listFiles(ctx, deb)
		if err != nil {
			return fmt.Errorf("list the files of %s: %w", name, err)
		}
		for suffix, data := range map[string][]byte{".control": control, ".list": files} {
			if err := os.WriteFile(filepath.Join(t.control, name+suffix), data, 0o644); err != nil {
				return fmt.Errorf("describe %s: %w", name, err)
			}
		}
	}
	return nil
}

// listFiles returns the absolute paths in a package, one per line.
func listFiles(ctx context.Context, deb string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var list []byte
	for r := tar.NewReader(out); ; {
		h, err := r.Next()
		if err != nil {
			// dpkg-deb must be able to write the padding after the last entry.
			_, copied := io.Copy(io.Discard, out)
			if ended := errors.Join(copied, cmd.Wait()); ended != nil || !errors.Is(err, io.EOF) {
				return nil, errors.Join(err, ended)
			}
			return list, nil
		}
		list = append(append(list, path.Join("/", h.Name)...), '\n')
	}
}
