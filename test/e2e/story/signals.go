// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Interruptible returns a context that SIGINT and SIGTERM end, for a program
// that must live to take its lab away.
func Interruptible() (context.Context, context.CancelFunc) {
	// A write to a reader that has gone gets an error and does not end the program.
	// Nobody listens, as each connection that breaks tells it too; signal.Ignore
	// would be inherited by the programs that are started.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}
