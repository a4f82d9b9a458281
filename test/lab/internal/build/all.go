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
)

// Artifacts are everything a lab is started from.
type Artifacts struct {
	// Directories.
	Kubernetes, RootFS, Tools string
	// Files: the nodes' kernel, and disks of the root file system and of
	// containerd's store.
	Kernel, RootDisk, ImagesDisk string
	// HasProduct tells whether the images include the product's.
	HasProduct bool
}

// Options say what to build from where.
type Options struct {
	// Repo is the checkout; Work a directory for what is built anew each time;
	// Lab the lab program itself, which runs the steps that need namespaces.
	Repo, Work, Lab string
	// Product tells whether to build the product.
	Product bool
	// Log gets the output of the tools, Progress one line for each thing that is done.
	Log      io.Writer
	Progress func(format string, args ...any)
}

// All builds what is not in the cache yet.
func All(ctx context.Context, o Options) (Artifacts, error) {
	a := Artifacts{Tools: filepath.Join(o.Work, "tools")}
	product := filepath.Join(o.Work, "product")
	for _, d := range []string{a.Tools, product} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return a, fmt.Errorf("make a place for programs: %w", err)
		}
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
	var programs []string
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
		group.Go(step("product", func() (err error) {
			programs, err = Product(building, o.Repo, product, o.Log)
			return err
		}))
	}
	if err := group.Wait(); err != nil {
		return a, err
	}
	a.HasProduct = len(programs) > 0
	images := step("container images", func() (err error) {
		a.ImagesDisk, err = ImagesDisk(ctx, o.Lab, a.RootFS, a.Tools, product, programs, o.Log)
		return err
	})
	return a, images()
}

// CheckTools returns an error that names what is missing on this machine.
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
