// SPDX-License-Identifier: Apache-2.0

// Command bgp measures RouteAdvertisements: the real controller in its own process, with a real
// kube-apiserver and etcd on this machine, advertises many networks from many nodes, and then one
// network and one node more. It also prints the size of the managed fabric's objects.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"bulkhead/test/bench/report"
)

type options struct {
	networks, nodes int
	controller      string
	progress        func(format string, args ...any)
}

var errMissed = errors.New("targets were missed")

func main() {
	o := options{progress: report.Progress(os.Stderr)}
	flag.IntVar(&o.networks, "networks", 500, "networks that are advertised")
	flag.IntVar(&o.nodes, "nodes", 50, "nodes of the cluster")
	flag.StringVar(&o.controller, "controller", "bin/controller", "the controller's binary")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-bgp:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.networks < 1 || o.nodes < 1 {
		return errors.New("-networks and -nodes are at least 1")
	}
	r, err := measure(ctx, o)
	if err != nil {
		return err
	}
	fs := append(r.figures(o), fabricFigures()...)
	if err := report.Print(os.Stdout, fs); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if n := report.Missed(fs); n > 0 {
		return fmt.Errorf("%d %w", n, errMissed)
	}
	return nil
}
