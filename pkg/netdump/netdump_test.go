// SPDX-License-Identifier: Apache-2.0

package netdump

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
)

func TestList(t *testing.T) {
	failed := errors.New("no such device")
	for name, c := range map[string]struct {
		errs            []error // of the calls
		want            error
		calls           int
		atLeast, atMost time.Duration
	}{
		"at once":            {[]error{nil}, nil, 1, 0, 0},
		"interrupted twice":  {[]error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted, nil}, nil, 3, firstPause, 10 * firstPause},
		"another error":      {[]error{netlink.ErrDumpInterrupted, failed, nil}, failed, 2, firstPause, firstPause},
		"always interrupted": {slices.Repeat([]error{netlink.ErrDumpInterrupted}, attempts+1), netlink.ErrDumpInterrupted, attempts, 2 * time.Second, 3 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls, begun := 0, time.Now()
			got, err := List(func() ([]int, error) {
				calls++
				return []int{calls}, c.errs[calls-1]
			})
			if !errors.Is(err, c.want) || calls != c.calls || !slices.Equal(got, []int{c.calls}) {
				t.Errorf("%s: %v, %v after %d calls", name, got, err, calls)
			}
			if took := time.Since(begun); took < c.atLeast || took > c.atMost {
				t.Errorf("%s: pauses of %v, want %v to %v", name, took, c.atLeast, c.atMost)
			}
		})
	}
}
