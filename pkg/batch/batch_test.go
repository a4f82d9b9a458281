// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

type op string

func (o op) String() string { return string(o) }

var (
	errFaulty = errors.New("faulty")
	errLost   = errors.New("connection lost")
)

func TestApply(t *testing.T) {
	for name, c := range map[string]struct {
		ops   string // one letter per operation: x fails, ! loses the connection
		size  int
		calls string
		err   string // lines separated by "; "
	}{
		"nothing to do":                      {"", 3, "", ""},
		"one transaction":                    {"abc", 3, "abc", ""},
		"several transactions":               {"abcde", 2, "ab cd e", ""},
		"a faulty operation":                 {"axcd", 3, "axc a x c d", "x: faulty"},
		"two faulty operations":              {"axxd", 4, "axxd a x x d", "x: faulty; x: faulty"},
		"a faulty operation alone":           {"x", 3, "x", "x: faulty"},
		"connection lost in a transaction":   {"ab!def", 3, "ab!", "a and 2 more: connection lost; 3 operations not tried: connection lost"},
		"connection lost in the last one":    {"ab!", 3, "ab!", "a and 2 more: connection lost"},
		"connection lost one by one":         {"a!c", 1, "a !", "!: connection lost; 1 operations not tried: connection lost"},
		"a single operation per transaction": {"axc", 1, "a x c", "x: faulty"},
	} {
		t.Run(name, func(t *testing.T) {
			var ops []op
			for _, r := range c.ops {
				ops = append(ops, op(r))
			}
			var calls []string
			err := Apply(ops, c.size, func(part []op) error {
				var all string
				for _, o := range part {
					all += string(o)
				}
				calls = append(calls, all)
				switch {
				case strings.Contains(all, "!"):
					return errLost
				case strings.Contains(all, "x"):
					return errFaulty
				}
				return nil
			}, func(err error) error {
				if errors.Is(err, errLost) {
					return errLost
				}
				return nil
			})
			if got := strings.Join(calls, " "); got != c.calls {
				t.Errorf("transactions %q, want %q", got, c.calls)
			}
			var text string
			if err != nil {
				text = strings.ReplaceAll(err.Error(), "\n", "; ")
			}
			if text != c.err {
				t.Errorf("error %q, want %q", text, c.err)
			}
		})
	}
}

// The connection is lost during the retry of the first batch's operations: the
// error counts the remaining operations of that batch and those of the next.
func TestApplyConnectionLostDuringRetry(t *testing.T) {
	calls := 0
	err := Apply([]op{"a", "b", "c", "d", "e"}, 3, func([]op) error {
		if calls++; calls == 1 {
			return errFaulty
		}
		return errLost
	}, func(err error) error {
		if errors.Is(err, errLost) {
			return errLost
		}
		return nil
	})
	want := []string{"a: connection lost", "2 operations not tried: connection lost", "2 operations not tried: connection lost"}
	if got := strings.Split(fmt.Sprint(err), "\n"); !slices.Equal(got, want) {
		t.Errorf("error %q, want %q", got, want)
	}
	var e *Error[op]
	if !errors.As(err, &e) || e.Op != "a" {
		t.Errorf("error %v does not hold the operation", err)
	}
}

// The reason to stop is in the error even if the failed transaction does not
// name it.
func TestApplyReason(t *testing.T) {
	err := Apply([]op{"a", "b"}, 2, func([]op) error { return errFaulty }, func(error) error { return errLost })
	if !errors.Is(err, errLost) || !errors.Is(err, errFaulty) {
		t.Errorf("error %v, want %v and %v", err, errFaulty, errLost)
	}
}

// A transient failure of a batch whose operations then succeed is no error.
func TestApplyTransientFailure(t *testing.T) {
	calls := 0
	err := Apply([]op{"a", "b"}, 2, func([]op) error {
		if calls++; calls == 1 {
			return errFaulty
		}
		return nil
	}, func(error) error { return nil })
	if err != nil || calls != 3 {
		t.Errorf("error %v after %d transactions", err, calls)
	}
}
