// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// DialTimeout limits the wait of a machine for a peer that does not answer.
const DialTimeout = 10 * time.Second

// Dial makes the machine whose command server conn leads to connect to a TCP address, and
// returns that connection. It closes conn if it fails.
func Dial(ctx context.Context, conn net.Conn, token, address string) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	in := bufio.NewReader(conn)
	err := (&frameWriter{w: conn}).writeJSON(frameRequest, Request{Token: token, Dial: address})
	if err == nil {
		err = connected(in)
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return bufferedConn{conn, in}, nil
}

// connected reads the server's answer to a request to dial.
func connected(in io.Reader) error {
	kind, payload, err := readFrame(in)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if kind == frameConnected {
		return nil
	}
	var status exitStatus
	if err := json.Unmarshal(payload, &status); err != nil {
		return fmt.Errorf("malformed answer: %w", err)
	}
	return errors.New(status.Error)
}

// bufferedConn is a connection whose first bytes may be in the reader already.
type bufferedConn struct {
	net.Conn
	in *bufio.Reader
}

func (c bufferedConn) Read(b []byte) (int, error) { return c.in.Read(b) }

// CloseWrite closes the sending half.
func (c bufferedConn) CloseWrite() error { return closeWrite(c.Conn) }

// forward connects to address and copies bytes until both directions have ended.
func forward(client net.Conn, in io.Reader, out *frameWriter, address string) error {
	peer, err := net.DialTimeout("tcp", address, DialTimeout)
	if err != nil {
		return err
	}
	defer peer.Close()
	if err := out.write(frameConnected, nil); err != nil {
		return err
	}
	Join(client, in, peer, peer)
	return nil
}

// Join copies bytes between two connections, of which aIn and bIn read, until both
// directions have ended or one has failed.
func Join(a net.Conn, aIn io.Reader, b net.Conn, bIn io.Reader) {
	done := make(chan error, 2)
	one := func(to net.Conn, from io.Reader) {
		_, err := io.Copy(to, from)
		if err == nil {
			err = closeWrite(to)
		}
		done <- err
	}
	go one(b, aIn)
	go one(a, bIn)
	if err := <-done; err == nil {
		<-done
	}
}

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}
