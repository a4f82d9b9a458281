// SPDX-License-Identifier: Apache-2.0

// Command demo brings up the lab, tells the story in it and prints a table of
// its checks. It exits 1 when any check fails.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"

	"bulkhead/test/e2e/story"
	"bulkhead/test/lab"
)

func main() {
	nodes := flag.Int("nodes", 2, "machines, 1 to 4")
	families := flag.String("families", "dual", "ipv4 or dual")
	keep := flag.Bool("keep", false, "leave the lab running")
	attach := flag.Bool("attach", false, "tell the story in the lab that runs, and leave it running")
	only := flag.String("run", "", "regular expression: only the checks whose chapter or title it matches")
	flag.Parse()
	ctx, stop := story.Interruptible()
	ok, err := demo(ctx, lab.Options{Nodes: *nodes, Families: *families, Install: true}, *attach, *keep, *only)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func demo(ctx context.Context, options lab.Options, attach, keep bool, only string) (ok bool, err error) {
	matches, err := regexp.Compile(only)
	if err != nil {
		return false, fmt.Errorf("-run: %w", err)
	}
	start := time.Now()
	var l *lab.Lab
	if attach {
		l, err = lab.Attach()
	} else {
		l, err = lab.Up(ctx, options, os.Stdout)
	}
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
	var results []story.Result
	for _, c := range story.Checks() {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if !matches.MatchString(fmt.Sprintf("%d. %s", c.Chapter, c.Title)) {
			continue
		}
		fmt.Printf("%d. %s\n", c.Chapter, c.Title)
		r := w.Run(ctx, c)
		if r.Err != nil {
			fmt.Printf("     FAIL: %v\n", r.Err)
		}
		results = append(results, r)
	}
	if err := w.Close(context.WithoutCancel(ctx)); err != nil {
		fmt.Println("cannot remove what checks shared:", err)
	}
	if len(results) == 0 {
		return false, fmt.Errorf("-run %q matches no check", only)
	}
	ok = story.Table(os.Stdout, results)
	if !ok {
		l.CollectLogs(context.WithoutCancel(ctx))
		fmt.Printf("\nLogs of every process: %s\n", l.LogDir())
	}
	fmt.Printf("\nlab up in %s, story in %s\n", up.Round(time.Second), (time.Since(start) - up).Round(time.Second))
	return ok, nil
}
