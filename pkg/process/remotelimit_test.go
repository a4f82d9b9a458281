// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// fakeListener accepts connections that come from the addresses of a list.
type fakeListener struct {
	net.Listener
	from []string
	all  []*fakeConn
}

type fakeConn struct {
	net.Conn
	from   string
	closed bool
}

func (c *fakeConn) RemoteAddr() net.Addr {
	a, _ := net.ResolveTCPAddr("tcp", c.from)
	return a
}
func (c *fakeConn) Close() error { c.closed = true; return nil }

func (l *fakeListener) Accept() (net.Conn, error) {
	if len(l.from) == 0 {
		return nil, errors.New("no more")
	}
	c := &fakeConn{from: l.from[0]}
	l.from, l.all = l.from[1:], append(l.all, c)
	return c, nil
}

// Other hosts share a number of connections, and never delay those from loopback.
func TestRemoteLimit(t *testing.T) {
	fake := &fakeListener{from: []string{"192.0.2.1:1", "[2001:db8::1]:2", "192.0.2.1:3", "127.0.0.1:4", "[::1]:5", "[::ffff:127.0.0.1]:6", "192.0.2.1:7"}}
	l := &remoteLimit{Listener: fake, slots: make(chan struct{}, 2)}
	var open []net.Conn
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		open = append(open, c)
	}
	for i, want := range []bool{false, false, true, false, false, false, true} {
		if fake.all[i].closed != want {
			t.Errorf("connection %d from %s: closed %t, want %t", i, fake.all[i].from, !want, want)
		}
	}
	if len(open) != 5 {
		t.Fatalf("%d connections are accepted, want 5", len(open))
	}
	for range 2 { // a second Close releases nothing more
		_ = open[0].Close()
	}
	fake.from = []string{"192.0.2.1:8", "192.0.2.1:9"}
	if _, err := l.Accept(); err != nil {
		t.Errorf("after the end of a connection: %v", err)
	}
	if c, err := l.Accept(); err == nil {
		t.Errorf("one too many is accepted: %v", c.RemoteAddr())
	}
}

// A process that starts is alive, and says what it waits for.
func TestStarting(t *testing.T) {
	s := NewStarting("a database")
	server := httptest.NewServer(s)
	defer server.Close()
	get := func(path string) (int, string) {
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "waiting for a database") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	s.Set(NewMux(func() error { return nil }, NewRegistry()))
	if code, _ := get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz after the start: %d", code)
	}
	if code, body := get("/metrics"); code != http.StatusOK || !strings.Contains(body, "go_goroutines") {
		t.Errorf("/metrics after the start: %d", code)
	}
}
