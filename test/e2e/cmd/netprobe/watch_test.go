// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestWatchPing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skip: no-root: ping sockets need root or a setting")
	}
	for name, c := range map[string]struct {
		addr string
		late time.Duration
		lost bool
	}{
		"answered IPv4": {"127.0.0.1", time.Hour, false}, // does not wait for late replies
		"answered IPv6": {"::1", time.Hour, false},
		"unanswered":    {"127.255.255.255", 20 * time.Millisecond, true}, // loopback's broadcast address does not answer
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			flows := make(chan struct{})
			close(flows)
			n := 0
			answered := func() {
				if n++; n == 10 {
					cancel()
				}
			}
			if c.lost {
				time.AfterFunc(20*time.Millisecond, cancel)
			}
			var out watchResult
			if err := watchPing(ctx, c.addr, time.Millisecond, c.late, flows, answered, func() {}, &out); err != nil {
				t.Fatal(err)
			}
			if want := map[bool]int{false: 0, true: out.Sent}[c.lost]; len(out.Lost) != want || out.Sent == 0 || out.SendError != "" || (out.LongestLossMS > 0) != c.lost {
				t.Errorf("%+v", out)
			}
		})
	}
}

func TestWatchPingEnough(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skip: no-root: ping sockets need root or a setting")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	flows := make(chan struct{})
	close(flows)
	var out watchResult
	if err := watchPing(ctx, "127.0.0.1", time.Millisecond, time.Hour, flows, func() {}, cancel, &out); err != nil {
		t.Fatal(err)
	}
	// It calls enough while it counts; the loop may send more before it sees the end.
	if out.Sent < leastPings || len(out.Lost) > 0 {
		t.Errorf("%+v, want at least %d pings", out, leastPings)
	}
}

// A stream that stalls before the watch ends is told from one that goes on.
func TestWatchStream(t *testing.T) {
	for _, stalls := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		stalled := make(chan struct{})
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			for n := 0; n < 10 || !stalls; n++ {
				if _, err := fmt.Fprintln(conn, n); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
			close(stalled)
			_, _ = io.Copy(io.Discard, conn) // until the client goes
		}()
		ctx, cancel := context.WithCancel(t.Context())
		var out watchResult
		begun := make(chan struct{})
		go func() {
			<-begun
			if stalls {
				<-stalled
			}
			cancel()
		}()
		watchStream(ctx, l.Addr().String(), 100*time.Millisecond, sync.OnceFunc(func() { close(begun) }), &out)
		if got := strings.Contains(out.Stream, "no line for"); got != stalls || !stalls && (out.Stream != "" || out.Lines < 10) || stalls && out.LongestMS < 500 {
			t.Errorf("stalls %t: %+v", stalls, out)
		}
	}
}

func TestLongestLoss(t *testing.T) {
	const first, every = 7, 20 * time.Millisecond
	var times []time.Time
	for _, ms := range []int{0, 20, 40, 60, 900, 920, 940} { // the sender stalls once
		times = append(times, time.UnixMilli(int64(ms)))
	}
	for _, c := range []struct {
		lost []int
		want time.Duration
	}{
		{nil, 0}, {[]int{7}, every}, {[]int{8, 9}, 2 * every}, {[]int{7, 9, 12}, every}, {[]int{10}, 840 * time.Millisecond},
		{[]int{7, 9, 10}, 860 * time.Millisecond}, {[]int{12, 13}, 2 * every}, {[]int{13}, every}, {[]int{7, 8, 9, 10, 11, 12, 13}, 960 * time.Millisecond},
	} {
		if got := longestLoss(times, first, c.lost, every); got != c.want {
			t.Errorf("lost %v: %s, want %s", c.lost, got, c.want)
		}
	}
}
