// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"
	"time"
)

// Deadline is Eventually's deadline.
const Deadline = 2 * time.Minute

// Eventually calls f until it returns nil, and fails the test with f's last error
// at the deadline.
func Eventually(t testing.TB, f func() error) { t.Helper(); EventuallyWithin(t, Deadline, f) }

// EventuallyWithin is Eventually with the caller's deadline.
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
