// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
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
		if checkAll(ctx, targets, time.Millisecond) == nil {
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
