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
	"time"
)

// watched is watch's output when it is told to stop.
type watched struct {
	Sent      int    `json:"sent"`
	Lost      []int  `json:"lost"`
	SendError string `json:"sendError,omitempty"`
	SlowestMS int64  `json:"slowestMillis"`
	Lines     int    `json:"streamLines"`
	LongestMS int64  `json:"streamLongestGapMillis"`
	Stream    string `json:"streamError,omitempty"`
}

// flowing is the line that watch prints once a ping was answered and the stream
// has begun: what is lost from then on counts.
const flowing = "flowing"

// watch pings at a steady rate and reads a numbered TCP stream until it is
// told to stop (SIGTERM, or standard input ending); then waits for replies on
// their way and prints what was lost since it said that traffic flows.
func watch(ctx context.Context, ping, tcp string, every time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var out watched
	var begun, wg sync.WaitGroup
	flows := make(chan struct{})
	if tcp != "" {
		begun.Add(1)
		wg.Go(func() {
			watchStream(ctx, tcp, sync.OnceFunc(begun.Done), &out)
			cancel() // a stream that has ended ends the watch
		})
	}
	if ping != "" {
		begun.Add(1)
	}
	go func() {
		begun.Wait()
		fmt.Println(flowing)
		close(flows)
	}()
	if ping != "" {
		if err := watchPing(ctx, ping, every, onTheirWay, flows, sync.OnceFunc(begun.Done), &out); err != nil {
			return err
		}
	} else {
		<-ctx.Done()
	}
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(out)
}

// onTheirWay is how long a reply may take to count: an emulated node stands
// still for seconds while the machine does something else.
const onTheirWay = 15 * time.Second

// watchPing calls answered at replies, and counts from when flows is closed.
// Once ctx has ended, replies may be late by so much.
func watchPing(ctx context.Context, addr string, every, late time.Duration, flows <-chan struct{}, answered func(), out *watched) error {
	p, err := newPinger(addr)
	if err != nil {
		return fmt.Errorf("ping %s: %w", addr, err)
	}
	defer p.conn.Close()
	got := map[int]bool{} // by sequence number, modulo 65536
	first := math.MaxInt  // counts
	var mu sync.Mutex     // of both
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
				continue // about a packet, not the socket
			}
			mu.Lock()
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
	for running := true; running; {
		select {
		case <-flows:
			mu.Lock()
			first, flows = sent, nil
			mu.Unlock()
		default:
		}
		if err := p.send(sent & 0xffff); err != nil {
			out.SendError = err.Error()
		}
		sent++
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
	return nil
}

// watchStream calls begun at the first line.
func watchStream(ctx context.Context, addr string, begun func(), out *watched) {
	conn, err := (&net.Dialer{Timeout: 30 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		out.Stream = err.Error()
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
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
			out.Stream = fmt.Sprintf("line %d came where %d was due", n, out.Lines)
			return
		}
		begun()
		out.Lines++
		out.LongestMS = max(out.LongestMS, time.Since(last).Milliseconds())
		last = time.Now()
	}
	if ctx.Err() == nil {
		out.Stream = fmt.Sprintf("stream ended: %v", in.Err())
	}
}
