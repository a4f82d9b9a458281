// SPDX-License-Identifier: Apache-2.0

// Command gen writes the Go source of pkg/loader's Reason enum: gen HEADER OUTPUT.
package main

import (
	"fmt"
	"os"

	"bulkhead/pkg/loader/internal/reasons"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: gen HEADER OUTPUT")
	}
	header, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("read the header: %w", err)
	}
	out, err := reasons.Generate(header)
	if err != nil {
		return err
	}
	return os.WriteFile(args[1], out, 0o644)
}
