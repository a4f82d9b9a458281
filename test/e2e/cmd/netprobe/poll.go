// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// poll checks targets again and again until in ends or ctx does. It prints each target that
// is answered by a server whose name begins with owner, once, and at the end how many rounds
// it has tried.
func poll(ctx context.Context, owner string, targets []string, timeout time.Duration, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	fmt.Fprintln(out, "tries")
	rounds := 0
	for reported := []string(nil); ctx.Err() == nil; rounds++ {
		results, err := checkAll(ctx, targets, timeout)
		if err != nil {
			return err
		}
		for _, r := range results {
			if r.OK && strings.HasPrefix(r.Who, owner) && !slices.Contains(reported, r.Target) {
				reported = append(reported, r.Target)
				fmt.Fprintf(out, "answered %s by %s\n", r.Target, r.Who)
			}
		}
	}
	fmt.Fprintf(out, "rounds %d\n", rounds)
	return nil
}
