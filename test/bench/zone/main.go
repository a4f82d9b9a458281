// SPDX-License-Identifier: Apache-2.0

// Command zone measures the zone controller: the real controller in its own process, with a
// real API server, real OVN databases, northd, ovn-controller and Open vSwitch with the
// userspace datapath on this machine. For several numbers of networks it measures the
// time until everything is built on a node that starts, what one more pod, service,
// network and node cost, a restart, and what OVN itself pays. It prints the figures
// with their targets and exits with 1 if one is missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"bulkhead/pkg/network"
	"bulkhead/test/bench/report"
)

type options struct {
	sizes      []int
	wide       int
	wideNodes  int
	remotePods int
	empty      int
	flows      bool
	routes     []int
	controller string
	progress   func(format string, args ...any)
}

var errMissed = errors.New("targets were missed")

func main() {
	o := options{progress: report.Progress(os.Stderr)}
	routes := flag.String("routes", "0", "numbers of routes that BGP has learned, e.g. 1000,10000; \"0\" skips them. Needs an empty network namespace")
	sizes := flag.String("sizes", "10,100,500", "numbers of networks, each with 10 pods on 3 nodes and 5 services; the first and the last are compared; \"0\" skips them")
	flag.IntVar(&o.wide, "wide", 500, "networks without pods on many nodes; 0 skips it")
	flag.IntVar(&o.wideNodes, "wide-nodes", 100, "nodes of those networks")
	flag.IntVar(&o.remotePods, "remote-pods", 100, "pods of one Layer2 network on each of as many nodes; 0 skips it")
	flag.IntVar(&o.empty, "empty", 500, "empty Layer3 networks on one node, of which OVN's memory is compared with the first rows'; 0 skips them")
	flag.BoolVar(&o.flows, "flows", true, "count OpenFlow flows by topology, without and with peers")
	flag.StringVar(&o.controller, "controller", "bin/controller", "the controller's binary")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	if o.sizes, err = numbers("-sizes", *sizes); err == nil {
		o.routes, err = numbers("-routes", *routes)
	}
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-zone:", err)
		os.Exit(1)
	}
}

// numbers parses the value of a flag; "0" is none.
func numbers(flag, value string) (out []int, err error) {
	if value == "0" {
		return nil, nil
	}
	for text := range strings.SplitSeq(value, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: %q is not a positive number", flag, text)
		}
		out = append(out, n)
	}
	return out, nil
}

func run(ctx context.Context, o options) error {
	if os.Getuid() != 0 {
		return errors.New("needs root for a network namespace")
	}
	m, failed := measureAll(ctx, o)
	fs := figures(m)
	if err := report.Print(os.Stdout, fs); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if failed == nil && report.Missed(fs) > 0 {
		failed = fmt.Errorf("%d %w", report.Missed(fs), errMissed)
	}
	return failed
}

// measured is all that was measured; what was skipped is nil.
type measured struct {
	sizes        []*result
	empty        *result
	wide, remote *result
	flows        []flowCount
	learned      []learned
}

// measureAll measures what the options ask for. After a failure it returns what it has
// measured so far.
func measureAll(ctx context.Context, o options) (m measured, err error) {
	for _, n := range o.sizes {
		r, err := runShape(ctx, o, shape{networks: n, nodes: 3, services: 5, pods: 10, changes: true})
		if err != nil {
			return m, err
		}
		m.sizes = append(m.sizes, r)
	}
	if o.flows {
		if m.flows, err = countFlows(ctx, o); err != nil {
			return m, err
		}
	}
	if o.empty > 0 {
		if m.empty, err = runShape(ctx, o, shape{networks: o.empty, nodes: 1, topology: network.Layer3}); err != nil {
			return m, err
		}
	}
	if o.remotePods > 0 {
		m.remote, err = runShape(ctx, o, shape{networks: 1, nodes: o.wideNodes, pods: o.wideNodes * o.remotePods, topology: network.Layer2})
		if err != nil {
			return m, err
		}
	}
	if o.wide > 0 {
		if m.wide, err = runShape(ctx, o, shape{networks: o.wide, nodes: o.wideNodes}); err != nil {
			return m, err
		}
	}
	if len(o.routes) > 0 {
		m.learned, err = measureRoutes(ctx, o)
	}
	return m, err
}
