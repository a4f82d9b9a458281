// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
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

// watch pings at a steady rate and reads a numbered TCP stream until it is
// told to stop (SIGTERM, or standard input ending); then waits two seconds for replies on
// their way and prints what was lost.
func watch(ctx context.Context, ping, tcp string, every time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var out watched
	var wg sync.WaitGroup
	if tcp != "" {
		wg.Add(1)
		go func() { defer wg.Done(); watchStream(ctx, tcp, &out) }()
	}
	if ping != "" {
		if err := watchPing(ctx, ping, every, &out); err != nil {
			return err
		}
	} else {
		<-ctx.Done()
	}
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(out)
}

func watchPing(ctx context.Context, addr string, every time.Duration, out *watched) error {
	p, err := newPinger(addr)
	if err != nil {
		return fmt.Errorf("ping %s: %w", addr, err)
	}
	defer p.conn.Close()
	got := map[int]bool{} // by sequence number, modulo 65536
	var mu sync.Mutex
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			until := time.Now().Add(2 * time.Second)
			seq, took, err := p.receive(until)
			if err != nil {
				if ctx.Err() != nil {
					return
				}
				continue
			}
			mu.Lock()
			got[seq] = true
			out.SlowestMS = max(out.SlowestMS, took.Milliseconds())
			mu.Unlock()
		}
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for running := true; running; {
		if err := p.send(out.Sent & 0xffff); err != nil {
			out.SendError = err.Error()
		}
		out.Sent++
		select {
		case <-ctx.Done():
			running = false
		case <-tick.C:
		}
	}
	<-done
	for seq := range min(out.Sent, 65536) {
		if !got[seq] {
			out.Lost = append(out.Lost, seq)
		}
	}
	return nil
}

func watchStream(ctx context.Context, addr string, out *watched) {
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
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
		out.Lines++
		out.LongestMS = max(out.LongestMS, time.Since(last).Milliseconds())
		last = time.Now()
	}
	if ctx.Err() == nil {
		out.Stream = fmt.Sprintf("stream ended: %v", in.Err())
	}
}
