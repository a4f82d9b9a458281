// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"bulkhead/hack/cache"
	"bulkhead/hack/debian"
	"bulkhead/hack/oci"
)

// agnhostVersion is the version of the image that Kubernetes' tests name.
const agnhostVersion = "2.63.0"

// agnhostImages are the names under which Kubernetes' tests of the network use agnhost,
// and images in place of which it does: nginx, of which the tests only run pods.
var agnhostImages = []string{
	"registry.k8s.io/e2e-test-images/agnhost:" + agnhostVersion,
	"registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0",
	"registry.k8s.io/e2e-test-images/nginx:1.15-4",
	"registry.k8s.io/e2e-test-images/nginx:1.27-0",
}

// The programs that the tests execute in agnhost's containers, which come from Debian.
var (
	agnhostTools    = []string{"/usr/bin/bash", "/usr/bin/curl", "/usr/bin/dig", "/usr/bin/getent", "/usr/bin/nc.openbsd", "/usr/bin/ss"}
	agnhostPackages = []string{"bash", "bind9-dnsutils", "curl", "iproute2", "libc-bin", "netcat-openbsd"}
)

// Conformance builds Kubernetes' end-to-end tests, as e2e.test, and agnhost from the
// module in test/lab/conformance and returns their directory.
func Conformance(ctx context.Context, repo string, log io.Writer) (string, error) {
	module := filepath.Join(repo, "test/lab/conformance")
	inputs, flags, err := kubernetesModule(ctx, module)
	if err != nil {
		return "", err
	}
	return cache.Entry("conformance", cache.Key(append(append(inputs, agnhostVersion), flags...)...), 2, func(dir string) error {
		if err := goRun(ctx, module, log, append([]string{"test", "-c", "-o", dir + "/e2e.test"}, append(flags, "k8s.io/kubernetes/test/e2e")...)...); err != nil {
			return err
		}
		const agnhost = "k8s.io/kubernetes/test/images/agnhost"
		if err := goBuild(ctx, module, log, "-o", dir+"/agnhost", "-trimpath", "-ldflags", "-s -w -X main.Version="+agnhostVersion, agnhost); err != nil {
			return err
		}
		// The certificate of agnhost's HTTPS server.
		list := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", agnhost)
		list.Dir = module
		source, err := list.Output()
		if err != nil {
			return fmt.Errorf("find the directory of %s: %w", agnhost, err)
		}
		for _, name := range []string{"localhost.crt", "localhost.key"} {
			data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(source)), "porter", name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
			}
			if err != nil {
				return fmt.Errorf("copy agnhost's certificate: %w", err)
			}
		}
		return nil
	})
}

// conformanceImages returns agnhost under all its names.
func conformanceImages(ctx context.Context, rootfs, programs string, log io.Writer) ([]namedImage, error) {
	tree, err := debian.Extract(ctx, arch, agnhostPackages, false, log)
	if err != nil {
		return nil, err
	}
	tools, err := tree.Programs(agnhostTools...)
	if err != nil {
		return nil, err
	}
	busybox, err := busyboxFiles(rootfs)
	if err != nil {
		return nil, err
	}
	// Busybox's shell prefers its own nc to every other.
	busybox = slices.DeleteFunc(busybox, func(f oci.File) bool { return f.Path == "/bin/sh" })
	own := []oci.File{
		{Path: "/agnhost", Source: filepath.Join(programs, "agnhost")},
		{Path: "/agnhost-2", Link: "agnhost"},
		{Path: "/localhost.crt", Source: filepath.Join(programs, "localhost.crt"), Mode: 0o644},
		{Path: "/localhost.key", Source: filepath.Join(programs, "localhost.key"), Mode: 0o644},
		{Path: "/bin/sh", Link: "../usr/bin/bash"},
		{Path: "/usr/bin/nc", Link: "nc.openbsd"},
		{Path: "/etc/nsswitch.conf", Data: []byte("hosts: files dns\n"), Mode: 0o644},
		{Path: "/uploads/.keep", Data: []byte{}, Mode: 0o644},
		{Path: "/tmp/.keep", Data: []byte{}, Mode: 0o644},
	}
	image := oci.Image{Arch: arch, Layers: [][]oci.File{busybox, tools, own}, Config: v1.Config{
		Env:        []string{"PATH=/usr/bin:/usr/sbin:/bin"},
		Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, WorkingDir: "/",
	}}
	var list []namedImage
	for _, name := range agnhostImages {
		list = append(list, namedImage{name, image})
	}
	return list, nil
}
