// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"bulkhead/pkg/ovs"
	"bulkhead/pkg/ovs/uplink"
)

// uplinkFlags are the flags of bulkheadctl restore-uplink.
type uplinkFlags struct {
	record, bridge, sysctl string
	timeout                time.Duration
}

func (f *uplinkFlags) register(fs *flag.FlagSet) {
	fs.StringVar(&f.record, "uplink-record", uplink.DefaultRecord, "restore-uplink: the file in which the agent records what it moves")
	fs.StringVar(&f.bridge, "external-bridge", "br-ex", "restore-uplink: the external bridge")
	fs.StringVar(&f.sysctl, "sysctl-path", "/proc/sys", "restore-uplink: a writable mount of the node's /proc/sys")
	fs.DurationVar(&f.timeout, "timeout", 2*time.Minute, "restore-uplink: how long to try")
}

// run gives the uplink back. A second run completes what a first one began.
func (f *uplinkFlags) run(out, progress io.Writer, database string) error {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	// The terminal may be connected over the very interface that moves.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	log := slog.New(slog.NewTextHandler(progress, nil))
	c, err := ovs.Connect(ctx, database, log)
	if err != nil {
		return fmt.Errorf("%w: is ovsdb-server running?", err)
	}
	defer c.Close()
	n, err := uplink.Open(c, f.record, f.sysctl)
	if err != nil {
		return fmt.Errorf("open the node: %w", err)
	}
	defer n.Close()
	name, err := uplink.Restore(ctx, n, f.bridge, log)
	if errors.Is(err, uplink.ErrRestored) {
		_, err = fmt.Fprintf(out, "The uplink was given back before. Delete %s to let the agent move it again.\n", f.record)
		return err
	}
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("restore-uplink needs root on the node: %w", err)
	}
	if err != nil {
		return fmt.Errorf("give the uplink back: %w", err)
	}
	_, err = fmt.Fprintf(out, "%s has its addresses and routes. The agent leaves it alone until you delete %s.\n", name, f.record)
	return err
}
