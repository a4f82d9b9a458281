// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestStreamFirstLine(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name   string
		prints []string
		ends   bool
		with   error
		want   string
		err    string
	}{
		{"runs on", []string{"flow", "ing\nmore\n"}, false, nil, "flowing", ""},
		{"has ended", []string{"flowing\n"}, true, nil, "flowing", ""},
		{"has failed since", []string{"flowing\n"}, true, broken, "flowing", ""},
		{"ended without", []string{"flow"}, true, nil, "", `ended before its first line: "flow"`},
		{"failed without", nil, true, broken, "", "broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, stdin := io.Pipe()
			s := &stream{what: "x", stdin: stdin, done: make(chan error, 1), out: output{line: make(chan struct{})}}
			for _, p := range c.prints {
				fmt.Fprint(&s.out, p)
			}
			if c.ends {
				s.done <- c.with
			}
			for range 2 { // a second call returns the same
				line, err := s.firstLine(t.Context())
				if c.err != "" {
					if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "%!") {
						t.Fatalf("error %v, want %q", err, c.err)
					}
					return
				}
				if err != nil || line != c.want {
					t.Fatalf("got %q, %v, want %q", line, err, c.want)
				}
			}
			if !c.ends {
				s.done <- nil
				c.with = nil
			}
			if _, err := s.wait(t.Context()); !errors.Is(err, c.with) {
				t.Errorf("wait returned %v, want %v", err, c.with)
			}
		})
	}
	s := &stream{what: "x", done: make(chan error, 1), out: output{line: make(chan struct{})}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.firstLine(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
}
