// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/pkg/network"
)

// The plugin and its configuration are restored when somebody deletes or changes them, and left alone otherwise. What
// cannot be restored is reported, and pods are connected meanwhile.
func TestKeepInstalled(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "plugin")
	if err := os.WriteFile(source, []byte("the plugin"), 0o600); err != nil {
		t.Fatal(err)
	}
	i := Installation{Plugin: source, BinDir: filepath.Join(dir, "bin"), ConfDir: filepath.Join(dir, "net.d"), Socket: "/run/cni.sock", Mark: filepath.Join(dir, "run", "mark")}
	plugin, conflist := filepath.Join(i.BinDir, network.CNIType), filepath.Join(i.ConfDir, ConflistName)
	content, err := Conflist(i.Socket)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{plugin: "the plugin", conflist: string(content), i.Mark: ""}
	check := func(when string) {
		t.Helper()
		for path, text := range want {
			if got, err := os.ReadFile(path); err != nil || string(got) != text {
				t.Errorf("%s: %s has %q, %v", when, path, got, err)
			}
		}
		if info, err := os.Stat(plugin); err != nil || info.Mode() != pluginMode {
			t.Errorf("%s: the plugin is %v, %v", when, info, err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDeps()
		s := NewServer(Config{Default: defaultNet}, d, d, d, NewFakeLinks(), d)
		outcomes := make(chan error, 10)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.KeepInstalled(ctx, i, func(err error) { outcomes <- err })
		}()
		defer func() { cancel(); <-done }()
		next := func(d time.Duration) error {
			t.Helper()
			begin := time.Now()
			err := <-outcomes
			if took := time.Since(begin); took != d {
				t.Errorf("the next try was after %s, want %s", took, d)
			}
			synctest.Wait()
			return err
		}
		ready := func() string { reason, _ := s.ready(); return reason }
		if err := next(0); err != nil {
			t.Error(err)
		}
		check("at the start")
		if ready() != "" {
			t.Errorf("not ready: %s", ready())
		}
		before, err := os.Stat(plugin)
		if err != nil {
			t.Fatal(err)
		}
		if err := next(checkInstalled); err != nil {
			t.Error(err)
		}
		if after, err := os.Stat(plugin); err != nil || !os.SameFile(before, after) {
			t.Errorf("the plugin was written again: %v", err)
		}
		for what, change := range map[string]func() error{
			"deleted": func() error { return errors.Join(os.Remove(plugin), os.Remove(conflist), os.Remove(i.Mark)) },
			"edited": func() error {
				return errors.Join(os.WriteFile(plugin, []byte("the virus!"), 0o755), os.WriteFile(conflist, nil, 0o644))
			},
			"not executable": func() error { return os.Chmod(plugin, 0o644) },
		} {
			if err := change(); err != nil {
				t.Fatal(err)
			}
			if err := next(checkInstalled); err != nil {
				t.Error(err)
			}
			check(what)
		}
		if err := errors.Join(os.RemoveAll(i.ConfDir), os.WriteFile(i.ConfDir, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		if err := next(checkInstalled); err == nil || !strings.Contains(err.Error(), i.ConfDir) || ready() != "" {
			t.Errorf("outcome %v, ready %q", err, ready())
		}
		if err := os.Remove(i.ConfDir); err != nil {
			t.Fatal(err)
		}
		if err := next(retryInstall); err != nil {
			t.Error(err)
		}
		check("after a failure")
	})
}
