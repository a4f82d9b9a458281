// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// floodResult is what one end of a connection has read, and in what time from the
// connection's begin to its end.
type floodResult struct {
	Bytes  int64 `json:"bytes"`
	Micros int64 `json:"micros"`
}

// listening is the line that sink prints once it accepts a connection.
const listening = "listening"

// sink reads one connection to its end and prints what it read. If echo is set, it also
// sends everything back.
func sink(ctx context.Context, listen string, echo bool, out io.Writer) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	fmt.Fprintln(out, listening)
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	r, buf := floodResult{}, make([]byte, 1<<20)
	for start := time.Now(); ; {
		n, err := conn.Read(buf)
		r.Bytes += int64(n)
		r.Micros = time.Since(start).Microseconds()
		if echo && n > 0 {
			if _, err := conn.Write(buf[:n]); err != nil {
				return fmt.Errorf("send back to %s: %w", conn.RemoteAddr(), err)
			}
		}
		if errors.Is(err, io.EOF) {
			return json.NewEncoder(out).Encode(r)
		}
		if err != nil {
			return fmt.Errorf("read from %s: %w", conn.RemoteAddr(), err)
		}
	}
}

// flood sends to a sink for a time, as fast as the connection takes it. If echo is set, it
// sends single bytes, each when the one before has come back, and prints how many did.
func flood(ctx context.Context, to string, d time.Duration, echo bool) error {
	conn, err := (&net.Dialer{Timeout: 30 * time.Second}).DialContext(ctx, "tcp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	size := 1 << 20
	if echo {
		size = 1
	}
	r, buf := floodResult{}, make([]byte, size)
	for start := time.Now(); time.Since(start) < d; {
		if _, err := conn.Write(buf); err != nil {
			return fmt.Errorf("send to %s: %w", to, err)
		}
		if echo {
			if _, err := io.ReadFull(conn, buf); err != nil {
				return fmt.Errorf("read from %s: %w", to, err)
			}
			r.Bytes++
		}
		r.Micros = time.Since(start).Microseconds()
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
