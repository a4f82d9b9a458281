// SPDX-License-Identifier: Apache-2.0

package netdump

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestList(t *testing.T) {
	failed := errors.New("no such device")
	for name, c := range map[string]struct {
		errs  []error // of the calls
		want  error
		calls int
	}{
		"at once":            {[]error{nil}, nil, 1},
		"interrupted twice":  {[]error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted, nil}, nil, 3},
		"another error":      {[]error{netlink.ErrDumpInterrupted, failed, nil}, failed, 2},
		"always interrupted": {slices.Repeat([]error{netlink.ErrDumpInterrupted}, attempts+1), netlink.ErrDumpInterrupted, attempts},
	} {
		calls := 0
		got, err := List(func() ([]int, error) {
			calls++
			return []int{calls}, c.errs[calls-1]
		})
		if !errors.Is(err, c.want) || calls != c.calls || !slices.Equal(got, []int{c.calls}) {
			t.Errorf("%s: %v, %v after %d calls", name, got, err, calls)
		}
	}
}
