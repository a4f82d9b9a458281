// SPDX-License-Identifier: Apache-2.0

// Command cluster measures the cluster controller: the real controller in its own
// process, with a real kube-apiserver and etcd on this machine. It creates
// networks, restarts the controller, creates networks of many namespaces and
// deletes all, at a small and at a large size. It prints the figures with their
// targets and exits with 1 if one is missed.
package main

import (
	"bulkhead/test/bench/report"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

type options struct {
	networks, big, nodes int
	controller           string
	progress             func(format string, args ...any)
}

var errMissed = errors.New("targets were missed")

func main() {
	o := options{progress: report.Progress(os.Stderr)}
	flag.IntVar(&o.networks, "networks", 500, "networks of the small size")
	flag.IntVar(&o.big, "big", 5000, "networks of the large size; 0 skips it")
	flag.IntVar(&o.nodes, "nodes", 50, "nodes of the cluster")
	flag.StringVar(&o.controller, "controller", "bin/controller", "the controller's binary")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.networks < 1 || o.big < 0 || o.nodes < 0 {
		return errors.New("-networks is at least 1, -big and -nodes are at least 0")
	}
	small, err := runSize(ctx, o, o.networks)
	if err != nil {
		return err
	}
	var big *result
	if o.big > 0 {
		if big, err = runSize(ctx, o, o.big); err != nil {
			return err
		}
	}
	for _, r := range []*result{small, big} {
		if r == nil {
			continue
		}
		if err := printDetails(os.Stdout, r); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	fmt.Println()
	fs := figures(small, big)
	if err := report.Print(os.Stdout, fs); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if n := report.Missed(fs); n > 0 {
		return fmt.Errorf("%d %w", n, errMissed)
	}
	return nil
}
