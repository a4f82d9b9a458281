// SPDX-License-Identifier: Apache-2.0

// Package netdump repeats netlink dumps that changes interrupt: see
// https://docs.kernel.org/userspace-api/netlink/intro.html#dump-consistency. It also parses attributes of messages.
package netdump

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
)

// attempts bounds the work on a node whose links or routes change all the time. Without pauses all of them would fail
// while many interfaces appear at once, as when many networks are created. The pauses are less than 3 seconds
// together, so that callers need no context.
const (
	attempts   = 10
	firstPause = 20 * time.Millisecond
	maxPause   = 500 * time.Millisecond
)

// Retry calls dump until the kernel does not report that a change has interrupted it, at most
// attempts times, with pauses that grow. dump must start from the beginning each time. The error is that of the last call.
func Retry(dump func() error) error {
	pause := firstPause
	for i := 1; ; i++ {
		err := dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || i == attempts {
			return err
		}
		time.Sleep(pause)
		pause = min(2*pause, maxPause)
	}
}

// List is Retry for a dump that returns a list.
func List[T any](dump func() ([]T, error)) (list []T, err error) {
	err = Retry(func() (err error) {
		list, err = dump()
		return err
	})
	return list, err
}
