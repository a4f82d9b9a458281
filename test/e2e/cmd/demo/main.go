// SPDX-License-Identifier: Apache-2.0

// Command demo brings up the lab, runs the story's checks in it and prints a
// table of them. It exits 1 when any check fails.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"bulkhead/test/e2e/story"
	"bulkhead/test/lab"
)

func main() {
	nodes := flag.Int("nodes", 2, "machines, 1 to 4")
	families := flag.String("families", "dual", "ipv4, ipv6 or dual")
	keep := flag.Bool("keep", false, "leave the lab running")
	attach := flag.Bool("attach", false, "use the lab that runs, and leave it running")
	run := flag.String("run", "", "only the checks of this chapter (a number), or those whose name matches this regular expression; \".\" is all; the default leaves out what takes minutes")
	list := flag.Bool("list", false, "print the checks' names and exit")
	flag.Parse()
	checks, err := story.Select(*run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(2)
	}
	if *list {
		for _, c := range checks {
			fmt.Println(c.Name())
		}
		return
	}
	if *run == "" {
		checks = story.Demo(checks, os.Stdout)
	}
	ctx, stop := story.Interruptible()
	ok, err := demo(ctx, lab.Options{Nodes: *nodes, Families: *families, Install: true}, checks, *attach, *keep)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func demo(ctx context.Context, options lab.Options, checks []story.Check, attach, keep bool) (ok bool, err error) {
	start := time.Now()
	l, err := lab.UpOrAttach(ctx, options, attach, os.Stdout)
	if err != nil {
		return false, err
	}
	if !keep && !attach {
		defer l.Down(context.WithoutCancel(ctx))
	}
	up := time.Since(start)
	w, err := story.NewWorld(ctx, l, os.Stdout)
	if err != nil {
		return false, err
	}
	w.LabEnds = !keep && !attach
	ok = story.Table(os.Stdout, w.Run(ctx, checks))
	if !ok {
		l.CollectLogs(context.WithoutCancel(ctx))
		fmt.Printf("\nLogs of every process: %s\n", l.LogDir())
	}
	fmt.Printf("\nlab up in %s, story in %s\n", up.Round(time.Second), (time.Since(start) - up).Round(time.Second))
	return ok, nil
}
