// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// A check or a watch that could not find anything fails; it does not report
// "unreachable" or "no loss".
func TestNothingToProbe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, targets := range map[string][]string{
		"no targets":  nil,
		"no protocol": {"127.0.0.1"},
		"protocol":    {"sctp:127.0.0.1:80"},
		"port":        {"tcp:127.0.0.1"},
		"address":     {"icmp:invalid IP"},
	} {
		if _, err := checkAll(ctx, targets, time.Millisecond); err == nil {
			t.Errorf("%s: check succeeds", name)
		}
	}
	if watch(ctx, "", "", time.Millisecond) == nil {
		t.Error("watch without targets succeeds")
	}
	stopped, stop := context.WithCancel(ctx)
	stop()
	if watch(stopped, "", "127.0.0.1:1", time.Millisecond) == nil {
		t.Error("watch succeeds though no traffic flowed")
	}
}

// TestAnswer: a request that takes long delays no other, and one that could not find
// anything has an error.
func TestAnswer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	in, requests := io.Pipe()
	replies, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- answer(ctx, in, out) }()
	enc, dec := json.NewEncoder(requests), json.NewDecoder(replies)
	for _, q := range []request{
		{ID: 1, TimeoutMillis: 2000, Targets: []string{"udp:" + silent.LocalAddr().String()}},
		{ID: 2, TimeoutMillis: 2000},
	} {
		if err := enc.Encode(q); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []reply{{ID: 2, Error: "no targets"}, {ID: 1}} {
		var r reply
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.ID != want.ID || !strings.Contains(r.Error, want.Error) || want.Error == "" && (len(r.Results) != 1 || r.Results[0].OK) {
			t.Errorf("reply %+v, want %+v", r, want)
		}
	}
	requests.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if answer(ctx, strings.NewReader("x"), &bytes.Buffer{}) == nil {
		t.Error("a request that cannot be read is ignored")
	}
}
