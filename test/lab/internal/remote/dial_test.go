// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// serve starts a server and returns a connection to it.
func serve(t *testing.T, token string) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go (&Server{Token: token}).Serve(l)
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestDial(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	peer, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	go func() {
		conn, err := peer.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "hello ")
		// It answers only after the client's end, so that the half close must arrive.
		said, _ := io.ReadAll(conn)
		conn.Write(said)
	}()
	conn, err := Dial(ctx, serve(t, "secret"), "secret", peer.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "world")
	if err := closeWrite(conn); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello world" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestDialRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if _, err := Dial(ctx, serve(t, "secret"), "secret", closed.Addr().String()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("dialled a closed port: %v", err)
	}
	if _, err := Dial(ctx, serve(t, "secret"), "guess", closed.Addr().String()); err == nil || !strings.Contains(err.Error(), "wrong token") {
		t.Errorf("dialled with a wrong token: %v", err)
	}
}
