// SPDX-License-Identifier: Apache-2.0

// Command labinit is process 1 of the lab's node VMs, and its child process that
// sets the node up.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"bulkhead/test/lab/internal/guest"
)

func main() {
	// Log to the serial console.
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stdout, nil)))
	err := run(os.Args[1:])
	slog.Error("lab node failed", "error", err)
	if os.Getpid() == 1 {
		guest.PowerOff()
	}
	os.Exit(1)
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "node":
		return guest.Node(args[1])
	case os.Getpid() == 1:
		return guest.Init()
	}
	return fmt.Errorf("usage: labinit [node NAME]; it runs as process 1 of a node VM")
}
