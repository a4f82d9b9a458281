// SPDX-License-Identifier: Apache-2.0

// Command conformance runs the network specs of Kubernetes' conformance tests in the
// lab, and exits 1 when one fails.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"bulkhead/test/e2e/conformance"
	"bulkhead/test/e2e/story"
	"bulkhead/test/lab"
)

func main() {
	nodes := flag.Int("nodes", 2, "machines, 1 to 4")
	families := flag.String("families", "ipv4", "ipv4, ipv6 or dual")
	gateway := flag.String("gateway", "shared", "gateway mode: shared or local")
	transport := flag.String("transport", "geneve", "transport of the cluster default network: geneve or no-overlay")
	attach := flag.Bool("attach", false, "use the lab that runs, and leave it running")
	run := flag.String("run", "", "only the specs whose name matches this regular expression")
	flag.Parse()
	match, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance: -run:", err)
		os.Exit(2)
	}
	ctx, stop := story.Interruptible()
	failed, err := runSpecs(ctx, lab.Options{Nodes: *nodes, Families: *families, Gateway: *gateway, Transport: *transport, Install: true, Conformance: true}, *attach, match)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
	}
	if err != nil || failed > 0 {
		os.Exit(1)
	}
}

// runSpecs returns how many specs failed.
func runSpecs(ctx context.Context, options lab.Options, attach bool, match *regexp.Regexp) (failed int, err error) {
	l, err := lab.UpOrAttach(ctx, options, attach, os.Stdout)
	if err != nil {
		return 0, err
	}
	if !attach {
		defer l.Down(context.WithoutCancel(ctx))
	}
	specs, err := conformance.Specs(ctx, l)
	if err != nil {
		return 0, err
	}
	specs = slices.DeleteFunc(specs, func(s string) bool { return !match.MatchString(s) })
	if len(specs) == 0 {
		return 0, fmt.Errorf("no spec matches -run=%s", match)
	}
	begun := time.Now()
	results, err := conformance.Run(ctx, l, specs, os.Stdout)
	if err != nil {
		return 0, err
	}
	passed, failed, skipped := conformance.Counts(results)
	if failed > 0 {
		l.CollectLogs(context.WithoutCancel(ctx))
	}
	fmt.Printf("\nspecs in %s, logs in %s\n%d passed, %d failed, %d skipped\n", time.Since(begun).Round(time.Second), l.LogDir(), passed, failed, skipped)
	return failed, nil
}
