// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Interruptible returns a context that SIGINT and SIGTERM cancel, for a program that
// must shut its lab down before it exits.
func Interruptible() (context.Context, context.CancelFunc) {
	// A write to a closed pipe must return an error, not end the program. The channel
	// is not read. signal.Ignore would be inherited by child processes.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}
