// SPDX-License-Identifier: Apache-2.0

// Command bench-node measures what networks cost a node's gateway: rules, routes and filters on
// the kernel of a lab node, and the external bridge with OVN and the userspace datapath on this
// machine.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"bulkhead/test/bench/report"
	"bulkhead/test/lab"
)

type options struct {
	sizes            []int
	attach           bool
	kernel, switches bool
	progress         func(format string, args ...any)
}

var errMissed = errors.New("targets were missed")

func main() {
	o := options{progress: report.Progress(os.Stderr)}
	sizes := flag.String("sizes", "1,10,100,500", "numbers of networks, ascending; the first is what the others are compared with")
	part := flag.String("part", "kernel,switch", "what is measured: kernel, switch or both")
	flag.BoolVar(&o.attach, "attach", false, "use the lab that runs, and leave it running")
	here := flag.Bool("here", false, "measure this machine's kernel and print JSON: what runs on the lab's node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := o.parse(*sizes, *part)
	switch {
	case err != nil:
	case *here:
		err = measureKernel(ctx, o.sizes)
	default:
		err = run(ctx, o)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-node:", err)
		os.Exit(1)
	}
}

func (o *options) parse(sizes, part string) error {
	for _, s := range strings.Split(sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || len(o.sizes) > 0 && n <= o.sizes[len(o.sizes)-1] {
			return fmt.Errorf("-sizes: %q is not a number of networks above the one before", s)
		}
		o.sizes = append(o.sizes, n)
	}
	parts := strings.Split(part, ",")
	for _, p := range parts {
		if p != "kernel" && p != "switch" {
			return fmt.Errorf("-part: %q is neither kernel nor switch", p)
		}
	}
	o.kernel, o.switches = slices.Contains(parts, "kernel"), slices.Contains(parts, "switch")
	return nil
}

func run(ctx context.Context, o options) (err error) {
	if os.Getuid() != 0 {
		return errors.New("needs root for network namespaces")
	}
	var kernel []kernelResult
	var switches []switchResult
	if o.kernel {
		if kernel, err = onNode(ctx, o); err != nil {
			return fmt.Errorf("measure a node's kernel: %w", err)
		}
	}
	var failed error
	if o.switches {
		if switches, failed = measureSwitch(ctx, o); failed != nil {
			failed = fmt.Errorf("measure the external bridge: %w", failed)
		}
	}
	fs := slices.Concat(kernelFigures(kernel), switchFigures(switches))
	if err := report.Print(os.Stdout, fs); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if failed == nil && report.Missed(fs) > 0 {
		failed = fmt.Errorf("%d %w", report.Missed(fs), errMissed)
	}
	return failed
}

// onNode runs this program on a node of the lab.
func onNode(ctx context.Context, o options) (out []kernelResult, err error) {
	l, err := lab.UpOrAttach(ctx, lab.Options{Nodes: 1, Families: "dual"}, o.attach, os.Stderr)
	if err != nil {
		return nil, err
	}
	if !o.attach {
		defer l.Down(context.WithoutCancel(ctx))
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("read this program: %w", err)
	}
	node := l.Nodes()[0]
	const path = "/run/bench-node"
	if err := node.Put(ctx, path, program, 0o755); err != nil {
		return nil, err
	}
	var texts []string
	for _, n := range o.sizes {
		texts = append(texts, strconv.Itoa(n))
	}
	o.progress("rules, routes and filters of %s networks on %s", strings.Join(texts, ", "), "a node of the lab")
	res, err := node.Run(ctx, fmt.Sprintf("modprobe -a vrf dummy; %[1]s -here -sizes=%[2]s; code=$?; rm -f %[1]s; exit $code", path, strings.Join(texts, ",")))
	if err != nil {
		return nil, err
	}
	if res.ExitCode != 0 {
		return nil, fmt.Errorf("exit %d: %s", res.ExitCode, res.Stderr)
	}
	for dec := json.NewDecoder(bytes.NewReader([]byte(res.Stdout))); dec.More(); {
		var r kernelResult
		if err := dec.Decode(&r); err != nil {
			return nil, fmt.Errorf("read the result: %w", err)
		}
		out = append(out, r)
	}
	if len(out) != len(o.sizes) {
		return nil, fmt.Errorf("%d results for %d sizes", len(out), len(o.sizes))
	}
	return out, nil
}
