// SPDX-License-Identifier: Apache-2.0

// Command image writes Bulkhead's container image, for every architecture, as an
// OCI archive. It runs in the checkout's root directory.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"bulkhead/deploy/image"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	version := flag.String("version", "", "the image's version; empty: what git describe prints")
	refresh := flag.Bool("refresh", false, "fetch the Debian packages again, in place of the cached ones")
	dir := flag.String("o", "bin", "directory of the archive")
	flag.Parse()
	work, err := os.MkdirTemp("", "image-")
	if err != nil {
		return fmt.Errorf("create a temporary directory: %w", err)
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return fmt.Errorf("create the archive's directory: %w", err)
	}
	file, digest, err := image.Write(ctx, image.Options{Repo: ".", Work: work, Version: *version, Refresh: *refresh, Log: os.Stderr}, *dir)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s %s\n", file, image.Name, digest)
	return nil
}
