// SPDX-License-Identifier: Apache-2.0

// Package process holds what every process repeats: main, the log, health
// endpoints, listeners, the start of informers, and work queues.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"bulkhead/pkg/config"
)

// Main calls run with the command line and a context that ends with SIGINT or
// SIGTERM. If run fails, Main prints the error and exits with status 1. With --version alone it prints the version.
func Main(name string, run func(ctx context.Context, args []string) error) {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(name, version)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if errors.Is(err, config.ErrChecked) {
		fmt.Println(name+":", err)
		return
	}
	if err == nil || errors.Is(err, config.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, name+":", err)
	os.Exit(1)
}
