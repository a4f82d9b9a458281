// SPDX-License-Identifier: Apache-2.0

// Package netdump repeats netlink dumps that changes interrupt: see
// https://docs.kernel.org/userspace-api/netlink/intro.html#dump-consistency. It also parses attributes of messages.
package netdump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// attempts bounds the work on a node whose links or routes change all the time.
const attempts = 10

// Retry calls dump until the kernel does not report that a change has interrupted it, at most
// attempts times. dump must start from the beginning each time. The error is that of the last call.
func Retry(dump func() error) error {
	var err error
	for range attempts {
		if err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

// List is Retry for a dump that returns a list.
func List[T any](dump func() ([]T, error)) (list []T, err error) {
	err = Retry(func() (err error) {
		list, err = dump()
		return err
	})
	return list, err
}
