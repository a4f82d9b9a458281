// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
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
		deploy := filepath.Join(Root(), "deploy")
		if err := env.Install(ctx, filepath.Join(deploy, "crds"), filepath.Join(deploy, "admission"),
			filepath.Join(deploy, "config.yaml"), filepath.Join(deploy, "install.yaml")); err != nil {
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

func needAPI(t *testing.T) {
	t.Helper()
	if env == nil {
		t.Skip("needs an API server: run without -short")
	}
}
