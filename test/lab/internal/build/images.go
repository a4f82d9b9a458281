// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"bulkhead/deploy/image"
	"bulkhead/hack/cache"
	"bulkhead/hack/debian"
	"bulkhead/hack/oci"
)

// The lab's own images. There is no registry, so pods need imagePullPolicy
// Never or IfNotPresent.
const (
	PauseImage   = "registry.k8s.io/pause:lab"
	BusyboxImage = "docker.io/lab/busybox:1"
	CoreDNSImage = "docker.io/lab/coredns:1"
)

//go:embed store.go
var storeSource string

// arch is the nodes' architecture.
const arch = "amd64"

// namedImage is an image and the name that containerd gives it.
type namedImage struct {
	name  string
	image oci.Image
}

// Product builds the product's image with the programs in work.
func Product(ctx context.Context, repo, work string, log io.Writer) (oci.Image, error) {
	return image.Build(ctx, image.Options{Repo: repo, Work: work, Log: log}, arch)
}

// ImagesDisk writes the images to archives, and returns a disk with a containerd store
// that holds them. It unpacks the images here, because hashing them alone takes an
// emulated node half a minute.
func ImagesDisk(ctx context.Context, lab, rootfs string, images []namedImage, log io.Writer) (string, error) {
	work, err := os.MkdirTemp("", "lab-images-")
	if err != nil {
		return "", fmt.Errorf("create a directory for image archives: %w", err)
	}
	defer os.RemoveAll(work)
	inputs := []string{storeSource, diskSource, filepath.Base(rootfs)}
	for n, i := range images {
		digest, err := oci.WriteArchive(filepath.Join(work, fmt.Sprintf("%d.tar", n)), i.name, i.image)
		if err != nil {
			return "", err
		}
		inputs = append(inputs, i.name, digest.String())
	}
	const name = "images.img"
	dir, err := cache.Entry("images", cache.Key(inputs...), 3, func(dir string) error {
		args := []string{"store", rootfs, work, filepath.Join(dir, name)}
		for _, i := range images {
			args = append(args, i.name)
		}
		cmd := exec.CommandContext(ctx, lab, args...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = ownNamespaces()
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("load images into a containerd store: %w", err)
		}
		return nil
	})
	return filepath.Join(dir, name), err
}

func labImages(rootfs, tools string) ([]namedImage, error) {
	busybox, err := busyboxFiles(rootfs)
	if err != nil {
		return nil, err
	}
	pause := []oci.File{{Path: "/pause", Source: filepath.Join(tools, "labpause")}}
	return []namedImage{
		{PauseImage, oci.Image{Arch: arch, Layers: [][]oci.File{pause}, Config: v1.Config{Entrypoint: []string{"/pause"}, WorkingDir: "/"}}},
		{BusyboxImage, oci.Image{Arch: arch, Layers: [][]oci.File{busybox}, Config: v1.Config{
			Cmd: []string{"sh"}, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, WorkingDir: "/",
		}}},
	}, nil
}

func corednsImage(program string) namedImage {
	files := []oci.File{{Path: "/coredns", Source: program}}
	return namedImage{CoreDNSImage, oci.Image{Arch: arch, Layers: [][]oci.File{files}, Config: v1.Config{Entrypoint: []string{"/coredns"}, WorkingDir: "/"}}}
}

// busyboxFiles returns Debian's static busybox, a link to it for each of its
// commands, and the files of /etc that the commands read.
func busyboxFiles(rootfs string) ([]oci.File, error) {
	program, err := debian.Resolve(rootfs, "/usr/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("find busybox in the root file system: %w", err)
	}
	out, err := exec.Command(program, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the commands of busybox: %w", err)
	}
	files := []oci.File{
		{Path: "/bin/busybox", Source: program},
		{Path: "/etc/passwd", Data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"), Mode: 0o644},
		{Path: "/etc/group", Data: []byte("root:x:0:\nnogroup:x:65534:\n"), Mode: 0o644},
	}
	names := bufio.NewScanner(bytes.NewReader(out))
	for names.Scan() {
		if name := strings.TrimSpace(names.Text()); name != "" && name != "busybox" {
			files = append(files, oci.File{Path: path.Join("/bin", name), Link: "busybox"})
		}
	}
	return files, names.Err()
}
