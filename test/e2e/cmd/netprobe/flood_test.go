// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"testing"
	"time"
)

func TestSinkCounts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	for _, echo := range []bool{false, true} {
		out, in := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- sink(t.Context(), at, echo, in) }()
		lines := bufio.NewReader(out)
		if line, err := lines.ReadString('\n'); line != listening+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if err := flood(t.Context(), at, 50*time.Millisecond, echo); err != nil {
			t.Fatal(err)
		}
		var r floodResult
		if err := json.NewDecoder(lines).Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Bytes == 0 || !echo && r.Bytes%(1<<20) != 0 || r.Micros <= 0 {
			t.Errorf("echo %t: %+v, want what was sent, and a time", echo, r)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
