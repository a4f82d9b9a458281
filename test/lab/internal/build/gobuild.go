// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/hack/cache"
)

// kubernetesModule returns what a program of Kubernetes is built from in a module that
// requires k8s.io/kubernetes, and the build flags, which are part of the cache's key.
// Without a version the API server would report v0.0.0 and refuse newer nodes.
func kubernetesModule(ctx context.Context, module string) (inputs, flags []string, err error) {
	if inputs, err = moduleInputs(ctx, module); err != nil {
		return nil, nil, err
	}
	version := requiredVersion(inputs[0], "k8s.io/kubernetes")
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 3 {
		return nil, nil, fmt.Errorf("%s/go.mod does not require k8s.io/kubernetes", module)
	}
	const v = "k8s.io/component-base/version."
	flags = []string{"-trimpath", "-ldflags", fmt.Sprintf("-s -w -X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s", v, version, v, parts[0], v, parts[1])}
	return inputs, flags, nil
}

var kubernetesPrograms = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"}

// Kubernetes builds the control plane's programs, kubelet, kubectl and etcd from
// the module in test/lab/k8s and returns their directory.
func Kubernetes(ctx context.Context, repo string, log io.Writer) (string, error) {
	module := filepath.Join(repo, "test/lab/k8s")
	inputs, flags, err := kubernetesModule(ctx, module)
	if err != nil {
		return "", err
	}
	return cache.Entry("kubernetes", cache.Key(append(inputs, flags...)...), 2, func(dir string) error {
		args := append([]string{"-o", dir + "/"}, flags...)
		for _, p := range kubernetesPrograms {
			args = append(args, "k8s.io/kubernetes/cmd/"+p)
		}
		if err := goBuild(ctx, module, log, args...); err != nil {
			return err
		}
		return goBuild(ctx, module, log, "-o", dir+"/etcd", "-trimpath", "-ldflags", "-s -w", "go.etcd.io/etcd/server/v3")
	})
}

// CoreDNS builds the cluster's DNS server from the module in test/lab/coredns and returns
// the program's path.
func CoreDNS(ctx context.Context, repo string, log io.Writer) (string, error) {
	module := filepath.Join(repo, "test/lab/coredns")
	inputs, err := moduleInputs(ctx, module, "main.go")
	if err != nil {
		return "", err
	}
	dir, err := cache.Entry("coredns", cache.Key(inputs...), 2, func(dir string) error {
		return goBuild(ctx, module, log, "-o", dir+"/coredns", "-trimpath", "-ldflags", "-s -w", ".")
	})
	return filepath.Join(dir, "coredns"), err
}

// multusPrograms are Multus and the CNI plugins of a network that is not Bulkhead's.
var multusPrograms = []string{
	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus", "github.com/containernetworking/plugins/plugins/main/bridge", "github.com/containernetworking/plugins/plugins/ipam/static",
}

// Multus builds Multus and CNI plugins from the module in test/lab/multus and returns
// their directory.
func Multus(ctx context.Context, repo string, log io.Writer) (string, error) {
	module := filepath.Join(repo, "test/lab/multus")
	inputs, err := moduleInputs(ctx, module)
	if err != nil {
		return "", err
	}
	return cache.Entry("multus", cache.Key(append(inputs, multusPrograms...)...), 2, func(dir string) error {
		return goBuild(ctx, module, log, append([]string{"-o", dir + "/", "-trimpath", "-ldflags", "-s -w"}, multusPrograms...)...)
	})
}

// frrPrograms are the programs of frr-k8s that the lab runs, by the names that they have there.
var frrPrograms = map[string]string{"frr-k8s-controller": "github.com/metallb/frr-k8s/cmd/frr-k8s-controller", "frr-status": "github.com/metallb/frr-k8s/cmd/status"}

// FRRK8s builds frrPrograms from the module in test/lab/frrk8s, and returns a directory with them, the
// script that reloads FRR, and the CustomResourceDefinitions.
func FRRK8s(ctx context.Context, repo string, log io.Writer) (string, error) {
	module := filepath.Join(repo, "test/lab/frrk8s")
	inputs, err := moduleInputs(ctx, module)
	if err != nil {
		return "", err
	}
	return cache.Entry("frr-k8s", cache.Key(append(inputs, slices.Sorted(maps.Keys(frrPrograms))...)...), 2, func(dir string) error {
		for name, program := range frrPrograms {
			if err := goBuild(ctx, module, log, "-o", filepath.Join(dir, name), "-trimpath", "-ldflags", "-s -w", program); err != nil {
				return err
			}
		}
		list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/metallb/frr-k8s")
		list.Dir = module
		source, err := list.Output()
		if err != nil {
			return fmt.Errorf("find the module of frr-k8s: %w", err)
		}
		crds, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(source)), "config/crd/bases/*.yaml"))
		if err != nil || len(crds) == 0 {
			return fmt.Errorf("find the CustomResourceDefinitions of frr-k8s: %d, %w", len(crds), err)
		}
		for _, file := range append(crds, filepath.Join(strings.TrimSpace(string(source)), "cmd/reloader/frr-reloader.sh")) {
			data, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, filepath.Base(file)), data, 0o644)
			}
			if err != nil {
				return fmt.Errorf("copy %s: %w", file, err)
			}
		}
		return nil
	})
}

// moduleInputs returns what a program of one of the lab's modules is built from: go.mod
// first, go.sum, the sources, and Go's version.
func moduleInputs(ctx context.Context, module string, sources ...string) ([]string, error) {
	var inputs []string
	for _, name := range append([]string{"go.mod", "go.sum"}, sources...) {
		data, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return nil, fmt.Errorf("read a module of the lab: %w", err)
		}
		inputs = append(inputs, string(data))
	}
	version, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOARCH").Output()
	if err != nil {
		return nil, fmt.Errorf("read Go's version: %w", err)
	}
	return append(inputs, string(version)), nil
}

// requiredVersion returns the version of a module that a go.mod file requires, or "".
func requiredVersion(gomod, module string) string {
	for line := range strings.Lines(gomod) {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(f) >= 2 && f[0] == module && strings.HasPrefix(f[1], "v") {
			return f[1]
		}
	}
	return ""
}

func goBuild(ctx context.Context, dir string, log io.Writer, args ...string) error {
	return goRun(ctx, dir, log, append([]string{"build"}, args...)...)
}

// goRun runs a go command that builds static programs, which run on any root file system.
func goRun(ctx context.Context, dir string, log io.Writer, args ...string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = io.MultiWriter(log, &out), io.MultiWriter(log, &out)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s in %s: %w\n%s", args[0], dir, err, strings.TrimSpace(out.String()))
	}
	return nil
}

// guestTools are rebuilt for each lab, which is quick because Go caches builds.
var guestTools = []string{"./test/lab/cmd/labinit", "./test/lab/cmd/labpause", "github.com/containernetworking/plugins/plugins/main/loopback"}

// Tools builds the programs that run in the virtual machines into dir.
func Tools(ctx context.Context, repo, dir string, log io.Writer) error {
	return goBuild(ctx, repo, log, append([]string{"-o", dir + "/", "-trimpath", "-ldflags", "-s -w"}, guestTools...)...)
}

// Go builds one program of the checkout as the file program.
func Go(ctx context.Context, repo, program, source string, log io.Writer) error {
	return goBuild(ctx, repo, log, "-o", program, "-trimpath", "-ldflags", "-s -w", source)
}
