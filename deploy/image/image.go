// SPDX-License-Identifier: Apache-2.0

// Package image defines Bulkhead's container image. `make image` writes it for
// every architecture, and the lab runs it.
package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"bulkhead/hack/debian"
	"bulkhead/hack/oci"
)

// Name is the image's full name, as in deploy/install.yaml: what a short one means depends on the container runtime.
const Name = "docker.io/library/bulkhead:latest"

// Architectures are those of the image, as in GOARCH. Debian has the same names.
var Architectures = []string{"amd64", "arm64"}

// programs are the product's programs: their directory in cmd and their path in
// the image.
var programs = map[string]string{
	"agent":       "/usr/bin/agent",
	"bulkheadctl": "/usr/bin/bulkheadctl",
	"cni":         "/usr/bin/ovn-k8s-cni-overlay",
	"controller":  "/usr/bin/controller",
}

// The agent executes nft (pkg/firewall) and ovs-ofctl (pkg/ovs/flows), and
// bulkheadctl trace executes ovn-trace, ovs-vsctl and ovs-appctl (pkg/trace). They
// come from Debian. The programs of the product are static. There is no shell.
var (
	tools    = []string{"/usr/bin/ovn-trace", "/usr/bin/ovs-appctl", "/usr/bin/ovs-ofctl", "/usr/bin/ovs-vsctl", "/usr/sbin/nft"}
	packages = []string{"base-files", "nftables", "openvswitch-common", "openvswitch-switch", "ovn-common"}
)

// Options say what to build the image from.
type Options struct {
	// Repo is the checkout, Work a directory for programs, which must exist until
	// the image is written.
	Repo, Work string
	// Version is the image's version; empty: what git says of Repo.
	Version string
	// Refresh fetches the Debian packages again, in place of the cached ones.
	Refresh bool
	// Log gets the output of the tools.
	Log io.Writer
}

// Build builds the image for one architecture.
func Build(ctx context.Context, o Options, arch string) (oci.Image, error) {
	if !slices.Contains(Architectures, arch) {
		return oci.Image{}, fmt.Errorf("there is no image for %s, only for %s", arch, strings.Join(Architectures, ", "))
	}
	if o.Version == "" {
		o.Version = Version(ctx, o.Repo)
	}
	dir := filepath.Join(o.Work, arch)
	if err := compile(ctx, o, dir, arch); err != nil {
		return oci.Image{}, err
	}
	tree, err := debian.Extract(ctx, arch, packages, o.Refresh, o.Log)
	if err != nil {
		return oci.Image{}, err
	}
	return assemble(tree, dir, arch, o.Version)
}

// compile builds the product's programs into dir.
func compile(ctx context.Context, o Options, dir, arch string) error {
	args := []string{"build", "-o", dir + "/", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X bulkhead/pkg/process.version=" + o.Version}
	for name := range programs {
		args = append(args, "./cmd/"+name)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create a directory for the programs: %w", err)
	}
	var output strings.Builder
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = o.Repo
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=", "GOARM64=", "GOFLAGS=", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = io.MultiWriter(o.Log, &output), io.MultiWriter(o.Log, &output)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the product for %s: %w\n%s", arch, err, strings.TrimSpace(output.String()))
	}
	return nil
}

// assemble puts the image together from a tree of the Debian packages and the
// directory of the product's programs. The tools are a layer of their own, which
// nodes do not load again with a new version of the product.
func assemble(tree debian.Tree, dir, arch, version string) (oci.Image, error) {
	base, err := tree.Programs(tools...)
	if err != nil {
		return oci.Image{}, err
	}
	release, err := debian.Resolve(tree.Root, "/etc/os-release")
	if err != nil {
		return oci.Image{}, fmt.Errorf("find the Debian release: %w", err)
	}
	// The packages' licenses refer to these texts.
	const licenses = "/usr/share/common-licenses"
	texts, err := os.ReadDir(filepath.Join(tree.Root, licenses))
	if err != nil {
		return oci.Image{}, fmt.Errorf("list the license texts: %w", err)
	}
	for _, e := range texts {
		text := path.Join(licenses, e.Name())
		source, err := debian.Resolve(tree.Root, text)
		if err != nil {
			return oci.Image{}, fmt.Errorf("find the license text %s: %w", text, err)
		}
		base = append(base, oci.File{Path: text, Source: source, Mode: 0o644})
	}
	base = append(base,
		oci.File{Path: "/etc/os-release", Source: release, Mode: 0o644},
		oci.File{Path: "/etc/passwd", Data: []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"), Mode: 0o644},
		oci.File{Path: "/etc/group", Data: []byte("root:x:0:\nnonroot:x:65532:\n"), Mode: 0o644},
	)
	var product []oci.File
	for name, to := range programs {
		product = append(product, oci.File{Path: to, Source: filepath.Join(dir, name)})
	}
	return oci.Image{
		Arch: arch, Layers: [][]oci.File{base, product},
		Config: v1.Config{
			// There is no entry point: deploy/install.yaml names the program.
			Env:        []string{"PATH=/usr/sbin:/usr/bin"},
			WorkingDir: "/",
			Labels: map[string]string{
				"org.opencontainers.image.title":       "bulkhead",
				"org.opencontainers.image.description": "Kubernetes CNI plugin: user defined networks with OVN, VRF and eBPF",
				"org.opencontainers.image.version":     version,
				"org.opencontainers.image.licenses":    "Apache-2.0", // of the product; the image has those of the tools in /usr/share/doc
			},
		},
	}, nil
}

// Version returns the version that git gives a checkout: a tag, or a commit, or
// "unknown" without git.
func Version(ctx context.Context, repo string) string {
	cmd := exec.CommandContext(ctx, "git", "--no-optional-locks", "describe", "--tags", "--always", "--dirty")
	cmd.Dir = repo
	out, err := cmd.Output()
	if version := strings.TrimSpace(string(out)); err == nil && version != "" {
		return version
	}
	return "unknown"
}

// Write builds the image for every architecture and writes it to the OCI archive
// bulkhead-VERSION.tar in dir. It returns the archive's path and the image's digest.
func Write(ctx context.Context, o Options, dir string) (file, digest string, err error) {
	if o.Version == "" {
		o.Version = Version(ctx, o.Repo)
	}
	if path.Base(o.Version) != o.Version {
		return "", "", errors.New("a version is a part of a file's name: it must not contain a slash")
	}
	var images []oci.Image
	for _, arch := range Architectures {
		i, err := Build(ctx, o, arch)
		if err != nil {
			return "", "", err
		}
		images = append(images, i)
	}
	file = filepath.Join(dir, "bulkhead-"+o.Version+".tar")
	hash, err := oci.WriteArchive(file, Name, images...)
	return file, hash.String(), err
}
