// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

var env *Env // shared by the package's tests; nil with -short

func TestMain(m *testing.M) {
	if os.Getenv(controllerProcessEnv) != "" {
		os.Exit(controllerProcess())
	}
	flag.Parse()
	os.Exit(func() int {
		if testing.Short() {
			return m.Run() // skips tests that need the API server
		}
		ctx := context.Background()
		var err error
		if env, err = Start(ctx, Options{ControllerManager: true}); err != nil {
			fmt.Fprintln(os.Stderr, "start the API server:", err)
			return 1
		}
		defer func() { _ = env.Stop() }()
		if err := env.Install(ctx, manifests()...); err != nil {
			fmt.Fprintln(os.Stderr, "install the manifests:", err)
			return 1
		}
		if err := waitPolicies(ctx, env); err != nil {
			fmt.Fprintln(os.Stderr, "wait for the admission policies:", err)
			return 1
		}
		return m.Run()
	}())
}

// manifests are the files and directories of the product's manifests.
func manifests() []string {
	deploy := filepath.Join(Root(), "deploy")
	return []string{filepath.Join(deploy, "crds"), filepath.Join(deploy, "admission"), filepath.Join(deploy, "config.yaml"), filepath.Join(deploy, "install.yaml")}
}

// TestManifestsInstalled: the API server has each object of the manifests. go test repeats a result until a file changes that a
// test has read; what TestMain reads does not count.
func TestManifestsInstalled(t *testing.T) {
	needAPI(t)
	c, err := client.New(env.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range manifests() {
		objects, err := readObjects(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if o.GroupVersionKind().Group == "apps" {
				continue // needs nodes
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o.DeepCopy()); err != nil {
				t.Errorf("%s %s of %s: %v", o.GetKind(), o.GetName(), path, err)
			}
		}
	}
}

func needAPI(t *testing.T) {
	t.Helper()
	if env == nil {
		t.Skip("needs an API server: run without -short")
	}
}
