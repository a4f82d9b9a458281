// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"path/filepath"
	"time"
)

// Installation is where the plugin and its configuration are installed.
type Installation struct {
	Plugin, BinDir  string // as for InstallPlugin
	ConfDir, Socket string // as for WriteConflist
	Mark            string // as for MarkInstalled
}

const (
	// checkInstalled is the interval at which the installed files are checked: other installers
	// and administrators delete or replace files in these directories.
	checkInstalled = time.Minute
	// retryInstall is the interval after a failure.
	retryInstall = 5 * time.Second
)

func (i Installation) install() error {
	if err := i.installFiles(); err != nil {
		return err
	}
	return MarkInstalled(i.Mark)
}

func (i Installation) installFiles() error {
	// Install the plugin first: the runtime calls it as soon as the configuration exists.
	if err := InstallPlugin(i.Plugin, i.BinDir); err != nil {
		return err
	}
	return WriteConflist(i.ConfDir, i.Socket)
}

// KeepInstalled installs the plugin and its configuration, and restores them until ctx ends. The
// server is ready from the first success on: if the files cannot be restored later, a meta plugin
// may still call it. report gets the outcome of each try, which is an error too if there are other plugins' configurations.
func (s *Server) KeepInstalled(ctx context.Context, i Installation, report func(error)) {
	ready := false
	for ctx.Err() == nil {
		wait := checkInstalled
		err := i.install()
		report(errors.Join(err, otherConfigurations(i.ConfDir)))
		switch {
		case err != nil:
			wait = retryInstall
			s.conf.Log.Error("cannot install the CNI plugin, will retry", "error", err)
			if !ready {
				s.SetReady(err.Error())
			}
		case !ready:
			ready = true
			s.SetReady("")
			s.conf.Log.Info("ready to connect pods", "socket", i.Socket, "configuration", filepath.Join(i.ConfDir, ConflistName))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}
