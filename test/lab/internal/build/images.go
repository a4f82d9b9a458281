package build

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"bulkhead/test/lab/image"
)

// The images a lab has; there is no registry, so pods ask for
// imagePullPolicy Never or IfNotPresent.
const (
	PauseImage   = "registry.k8s.io/pause:lab"
	BusyboxImage = "docker.io/lab/busybox:1"
	ProductImage = "docker.io/library/bulkhead:lab"
)

//go:embed store.go
var storeSource string

// ImagesDisk builds the images from the programs in tools and product, and
// returns a disk with a containerd store that holds them: unpacked here, natively,
// because under emulation a node would spend half a minute on hashing alone.
func ImagesDisk(ctx context.Context, lab, rootfs, tools, product string, programs []string, log io.Writer) (string, error) {
	images, err := imageList(rootfs, tools, product, programs)
	if err != nil {
		return "", err
	}
	work, err := os.MkdirTemp("", "lab-images-")
	if err != nil {
		return "", fmt.Errorf("make a place for images: %w", err)
	}
	defer os.RemoveAll(work)
	parts := []string{storeSource, diskSource, filepath.Base(rootfs)}
	for n, i := range images {
		// Hashing what is written is the cheapest way to know what is in it.
		sum, err := writeImage(filepath.Join(work, fmt.Sprintf("%d.tar", n)), i)
		if err != nil {
			return "", err
		}
		parts = append(parts, i.Name, sum)
	}
	const name = "images.img"
	dir, err := entry("images", Key(parts...), 3, func(dir string) error {
		args := []string{"store", rootfs, work, filepath.Join(dir, name)}
		for _, i := range images {
			args = append(args, i.Name)
		}
		cmd := exec.CommandContext(ctx, lab, args...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = apart()
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("load images into a containerd store: %w", err)
		}
		return nil
	})
	return filepath.Join(dir, name), err
}

func imageList(rootfs, tools, product string, programs []string) ([]image.Image, error) {
	busybox, err := busyboxFiles(rootfs)
	if err != nil {
		return nil, err
	}
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	images := []image.Image{
		{Name: PauseImage, Entrypoint: []string{"/pause"}, Files: []image.File{{Path: "/pause", Source: filepath.Join(tools, "labpause")}}},
		{Name: BusyboxImage, Cmd: []string{"sh"}, Env: env, Files: busybox},
	}
	if len(programs) == 0 {
		return images, nil
	}
	var own []image.File
	for _, p := range programs {
		own = append(own, image.File{Path: "/usr/bin/" + productPrograms[p], Source: filepath.Join(product, p)})
	}
	lists := [][]image.File{own}
	for _, tool := range []string{"/usr/bin/ovs-ofctl", "/usr/sbin/nft"} {
		files, err := image.Program(rootfs, tool)
		if err != nil {
			return nil, err
		}
		lists = append(lists, files)
	}
	// A shell for init containers that copy the CNI program to the node.
	lists = append(lists, busybox)
	return append(images, image.Image{Name: ProductImage, Env: env, Files: image.Merge(lists...)}), nil
}

// busyboxFiles are Debian's static busybox under all its names, and the few
// files of /etc that programs look for.
func busyboxFiles(rootfs string) ([]image.File, error) {
	program, err := image.Resolve(rootfs, "/usr/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("find busybox in the root file system: %w", err)
	}
	out, err := exec.Command(program, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("ask busybox for its names: %w", err)
	}
	files := []image.File{
		{Path: "/bin/busybox", Source: program},
		{Path: "/etc/passwd", Data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"), Mode: 0o644},
		{Path: "/etc/group", Data: []byte("root:x:0:\nnogroup:x:65534:\n"), Mode: 0o644},
	}
	names := bufio.NewScanner(bytes.NewReader(out))
	for names.Scan() {
		if name := strings.TrimSpace(names.Text()); name != "" && name != "busybox" {
			files = append(files, image.File{Path: path.Join("/bin", name), Link: "busybox"})
		}
	}
	return files, names.Err()
}

func writeImage(to string, i image.Image) (string, error) {
	f, err := os.Create(to)
	if err != nil {
		return "", fmt.Errorf("create the archive of %s: %w", i.Name, err)
	}
	defer f.Close()
	hash := sha256.New()
	if err := i.Write(io.MultiWriter(f, hash)); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), f.Close()
}
