// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// watchResult is watch's output when it stops.
type watchResult struct {
	Sent int   `json:"sent"`
	Lost []int `json:"lost"`
	// LongestLossMS is the longest time in which all pings were lost.
	LongestLossMS int64 `json:"longestLossMillis"`
	// Duplicates are replies to a ping beyond the first.
	Duplicates int    `json:"duplicates"`
	SendError  string `json:"sendError,omitempty"`
	SlowestMS  int64  `json:"slowestMillis"`
	Lines      int    `json:"streamLines"`
	LongestMS  int64  `json:"streamLongestGapMillis"`
	Stream     string `json:"streamError,omitempty"`
}

// flowing is the line that watch prints once a ping was answered and the stream
// has begun: losses count from then on.
const flowing = "flowing"

// leastPings is how many pings watch counts at least: what is watched may be over before
// enough were sent to say anything.
const leastPings = 150

// watch pings at a steady rate and reads a numbered TCP stream until SIGTERM or, once
// leastPings were sent, the end of standard input. It then waits for late replies and prints what was
// lost since traffic flowed. It fails if traffic never flowed: then no loss could
// have been counted.
func watch(ctx context.Context, ping, tcp string, every time.Duration) error {
	if ping == "" && tcp == "" {
		return errors.New("nothing to watch: give -ping, -tcp or both")
	}
	ctx, cancel := context.WithCancel(ctx)
	flows, enough := make(chan struct{}), make(chan struct{})
	if ping == "" {
		close(enough)
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		select {
		case <-flows:
			<-enough
		default: // the traffic never began
		}
		cancel()
	}()
	var out watchResult
	var begun, wg sync.WaitGroup
	if tcp != "" {
		begun.Add(1)
		wg.Go(func() {
			watchStream(ctx, tcp, lateReplies, sync.OnceFunc(begun.Done), &out)
			cancel() // when the stream ends, so does the watch
		})
	}
	if ping != "" {
		begun.Add(1)
	}
	go func() {
		begun.Wait()
		close(flows)
		fmt.Println(flowing)
	}()
	if ping != "" {
		if err := watchPing(ctx, ping, every, lateReplies, flows, sync.OnceFunc(begun.Done), func() { close(enough) }, &out); err != nil {
			return err
		}
	} else {
		<-ctx.Done()
	}
	wg.Wait()
	select {
	case <-flows:
	default:
		return fmt.Errorf("traffic never flowed: %d pings sent, %d lines of the stream read; send error %q, stream error %q", out.Sent, out.Lines, out.SendError, out.Stream)
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// lateReplies is how long watch waits for outstanding replies: an emulated node
// can stall for seconds on a busy machine.
const lateReplies = 15 * time.Second

// watchPing calls answered at each reply, counts pings sent after flows is closed, and
// calls enough when leastPings of these were sent. Once ctx has ended, it waits up to
// late for outstanding replies.
func watchPing(ctx context.Context, addr string, every, late time.Duration, flows <-chan struct{}, answered, enough func(), out *watchResult) error {
	p, err := newPinger(addr)
	if err != nil {
		return fmt.Errorf("ping %s: %w", addr, err)
	}
	defer p.conn.Close()
	got := map[int]bool{} // by sequence number, modulo 65536
	first := math.MaxInt  // sequence number of the first ping that counts
	var mu sync.Mutex     // guards got and first
	more := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			seq, took, err := p.receive(time.Time{})
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an error of one packet, not of the socket
			}
			mu.Lock()
			if got[seq] && seq >= first {
				out.Duplicates++
			}
			got[seq] = true
			answered()
			if seq >= first {
				out.SlowestMS = max(out.SlowestMS, took.Milliseconds())
			}
			mu.Unlock()
			select {
			case more <- struct{}{}:
			default:
			}
		}
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	sent := 0
	var times []time.Time // of the pings that count
	for running := true; running; {
		select {
		case <-flows:
			mu.Lock()
			first, flows = sent, nil
			mu.Unlock()
		default:
		}
		if flows == nil {
			times = append(times, time.Now())
		}
		if err := p.send(sent & 0xffff); err != nil {
			out.SendError = err.Error()
		}
		sent++
		if flows == nil && sent-first == leastPings {
			enough()
		}
		select {
		case <-ctx.Done():
			running = false
		case <-tick.C:
		}
	}
	lost := func() (out []int) {
		mu.Lock()
		defer mu.Unlock()
		for seq := first; seq < min(sent, 65536); seq++ {
			if !got[seq] {
				out = append(out, seq)
			}
		}
		return out
	}
	for end := time.After(late); len(lost()) > 0; {
		select {
		case <-more:
			continue
		case <-end:
		}
		break
	}
	p.conn.Close()
	<-done
	out.Sent, out.Lost = max(min(sent, 65536)-first, 0), lost()
	out.LongestLossMS = longestLoss(times, first, out.Lost, every).Milliseconds()
	return nil
}

// longestLoss returns the longest time in which all pings were lost: from the first of them until the next ping that was
// answered, or until that would have been sent. times are when pings were sent, from the sequence number first on.
func longestLoss(times []time.Time, first int, lost []int, every time.Duration) (longest time.Duration) {
	for i := 0; i < len(lost); {
		end := i + 1
		for end < len(lost) && lost[end] == lost[end-1]+1 {
			end++
		}
		begun, last := times[lost[i]-first], lost[end-1]-first
		until := times[last].Add(every)
		if last+1 < len(times) {
			until = times[last+1]
		}
		longest, i = max(longest, until.Sub(begun)), end
	}
	return longest
}

// stillFlows is how long after the end of ctx a line has to come, so that it was not waiting to be read.
const stillFlows = 500 * time.Millisecond

// watchStream reads the stream, calls begun at its first line, and returns once ctx has ended and the
// stream goes on. A stream without a line for the duration late after that has stalled.
func watchStream(ctx context.Context, addr string, late time.Duration, begun func(), out *watchResult) {
	conn, err := (&net.Dialer{Timeout: 30 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		out.Stream = err.Error()
		return
	}
	defer conn.Close()
	var end atomic.Pointer[time.Time]
	stop := context.AfterFunc(ctx, func() {
		now := time.Now()
		end.Store(&now)
		_ = conn.SetReadDeadline(now.Add(stillFlows + late))
	})
	defer stop()
	if _, err := io.WriteString(conn, "GET /stream HTTP/1.0\r\n\r\n"); err != nil {
		out.Stream = err.Error()
		return
	}
	in, last := bufio.NewScanner(conn), time.Now()
	for in.Scan() {
		n, err := strconv.Atoi(strings.TrimSpace(in.Text()))
		if err != nil {
			continue // headers
		}
		if n != out.Lines {
			out.Stream = fmt.Sprintf("got line %d, want %d", n, out.Lines)
			return
		}
		begun()
		out.Lines++
		out.LongestMS = max(out.LongestMS, time.Since(last).Milliseconds())
		last = time.Now()
		if at := end.Load(); at != nil && last.Sub(*at) > stillFlows {
			return
		}
	}
	out.LongestMS = max(out.LongestMS, time.Since(last).Milliseconds())
	if errors.Is(in.Err(), os.ErrDeadlineExceeded) {
		out.Stream = fmt.Sprintf("no line for %s", time.Since(last).Round(time.Second))
		return
	}
	out.Stream = fmt.Sprintf("stream ended: %v", in.Err())
}
