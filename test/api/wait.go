// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"
	"time"
)

// Deadline of every wait for a condition.
const Deadline = 2 * time.Minute

func eventually(t testing.TB, f func() error) { t.Helper(); Eventually(t, f) }

// Eventually calls f until it returns nil, and fails with its last error at
// the deadline.
func Eventually(t testing.TB, f func() error) { t.Helper(); EventuallyWithin(t, Deadline, f) }

// EventuallyWithin is Eventually with a deadline of the caller's.
func EventuallyWithin(t testing.TB, deadline time.Duration, f func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(deadline); ; <-tick.C {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: %v", deadline, err)
		}
	}
}
