// SPDX-License-Identifier: Apache-2.0

// Package build builds the files that a lab starts from: the Kubernetes binaries,
// the nodes' root file system, the guest tools and the container images. It
// caches what is slow to build.
package build

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"bulkhead/deploy/image"
	"bulkhead/hack/oci"
)

// Artifacts are the files that a lab starts from.
type Artifacts struct {
	// Directories.
	Kubernetes, RootFS, Tools, Multus, FRRK8s string
	// Conformance is the directory of Kubernetes' tests, if they were asked for.
	Conformance string
	// Files: the nodes' kernel, and disks of the root file system and of
	// containerd's store.
	Kernel, RootDisk, ImagesDisk string
}

// Options say what to build from where.
type Options struct {
	// Repo is the checkout, Work a directory for files that are not cached, and
	// Lab the lab program, which runs the steps that need namespaces.
	Repo, Work, Lab string
	// Product tells whether to build the product's image, and CoreDNS, Multus and frr-k8s,
	// which need the product's pod network.
	Product bool
	// Conformance tells whether to build Kubernetes' tests and the images of their pods.
	Conformance bool
	// Log gets the output of the tools, Progress one line for each finished step.
	Log      io.Writer
	Progress func(format string, args ...any)
}

// All builds the artifacts that are not in the cache.
func All(ctx context.Context, o Options) (Artifacts, error) {
	a := Artifacts{Tools: filepath.Join(o.Work, "tools")}
	if err := os.MkdirAll(a.Tools, 0o755); err != nil {
		return a, fmt.Errorf("create a directory for programs: %w", err)
	}
	step := func(what string, do func() error) func() error {
		return func() error {
			begun := time.Now()
			if err := do(); err != nil {
				return err
			}
			o.Progress("%s (%.1f s)", what, time.Since(begun).Seconds())
			return nil
		}
	}
	var product *oci.Image
	var coredns string
	group, building := errgroup.WithContext(ctx)
	group.Go(step("Kubernetes binaries", func() (err error) {
		a.Kubernetes, err = Kubernetes(building, o.Repo, o.Log)
		return err
	}))
	group.Go(step("node root file system", func() (err error) {
		if a.RootFS, err = RootFS(building, o.Log); err != nil {
			return err
		}
		if a.Kernel, err = Kernel(a.RootFS); err != nil {
			return err
		}
		a.RootDisk, err = RootDisk(building, a.RootFS, o.Log)
		return err
	}))
	group.Go(step("guest tools", func() error { return Tools(building, o.Repo, a.Tools, o.Log) }))
	if o.Product {
		group.Go(step("product", func() error {
			i, err := Product(building, o.Repo, filepath.Join(o.Work, "product"), o.Log)
			product = &i
			return err
		}))
		group.Go(step("CoreDNS", func() (err error) {
			coredns, err = CoreDNS(building, o.Repo, o.Log)
			return err
		}))
		group.Go(step("Multus", func() (err error) {
			a.Multus, err = Multus(building, o.Repo, o.Log)
			return err
		}))
		group.Go(step("frr-k8s", func() (err error) {
			a.FRRK8s, err = FRRK8s(building, o.Repo, o.Log)
			return err
		}))
	}
	if o.Conformance {
		group.Go(step("Kubernetes' tests", func() (err error) {
			a.Conformance, err = Conformance(building, o.Repo, o.Log)
			return err
		}))
	}
	if err := group.Wait(); err != nil {
		return a, err
	}
	images := step("container images", func() (err error) {
		list, err := labImages(a.RootFS, a.Tools)
		if err != nil {
			return err
		}
		if product != nil {
			list = append(list, corednsImage(coredns), namedImage{image.Name, *product})
		}
		if o.Conformance {
			more, err := conformanceImages(ctx, a.RootFS, a.Conformance, o.Log)
			if err != nil {
				return err
			}
			list = append(list, more...)
		}
		a.ImagesDisk, err = ImagesDisk(ctx, o.Lab, a.RootFS, list, o.Log)
		return err
	})
	return a, images()
}

// CheckTools returns an error that names the programs missing on this machine.
func CheckTools() error {
	var missing []string
	for _, tool := range []string{"qemu-system-x86_64", "mmdebstrap", "mke2fs", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tool)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("this machine lacks %s; run: make lab-deps", strings.Join(missing, ", "))
	}
	return nil
}
