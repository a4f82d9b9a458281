// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

func TestPoll(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	go func() { _ = serve(t.Context(), "brief/one", at) }()
	for owner, want := range map[string]bool{"brief/": true, "other/": false} {
		in, end := io.Pipe()
		time.AfterFunc(500*time.Millisecond, func() { end.Close() })
		var out strings.Builder
		if err := poll(t.Context(), owner, []string{"tcp:" + at, "tcp:127.0.0.1:1"}, time.Second, in, &out); err != nil {
			t.Fatal(err)
		}
		line := "answered tcp:" + at + " by brief/one\n"
		if n := strings.Count(out.String(), "answered"); strings.Contains(out.String(), line) != want || want && n != 1 || strings.Contains(out.String(), "rounds 0\n") {
			t.Errorf("%s printed %q", owner, out.String())
		}
	}
}
