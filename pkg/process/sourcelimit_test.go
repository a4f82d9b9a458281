// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
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

// Other hosts have a number of connections each and together, and never delay those from loopback.
func TestLimitRemote(t *testing.T) {
	fake := &fakeListener{from: []string{"192.0.2.1:1", "192.0.2.1:2", "[2001:db8::1]:2", "192.0.2.3:3", "127.0.0.1:4", "[::1]:5", "[::ffff:127.0.0.1]:6", "192.0.2.4:7"}}
	l := limitRemote(fake, 1, 2)
	var open []net.Conn
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		open = append(open, c)
	}
	for i, want := range []bool{false, true, false, true, false, false, false, true} {
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

// All of loopback is one source.
func TestLimitSources(t *testing.T) {
	fake := &fakeListener{from: []string{"127.0.0.1:1", "127.0.0.2:2", "[::1]:3", "192.0.2.1:4", "[2001:db8::1]:5", "[2001:db8::2]:6"}}
	l := LimitSources(fake, 2, 4)
	for {
		if _, err := l.Accept(); err != nil {
			break
		}
	}
	for i, want := range []bool{false, false, true, false, false, true} {
		if fake.all[i].closed != want {
			t.Errorf("connection %d from %s: closed %t, want %t", i, fake.all[i].from, !want, want)
		}
	}
}

// A server waits for its port while another program has it.
func TestServeTCPWaitsForPort(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := other.Addr().String()
	if err := ServeTCP(t.Context(), address, NewStarting("nothing"), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatalf("the port is taken: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		resp, err := http.Get("http://" + address + "/healthz")
		if err == nil {
			resp.Body.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the port is free: %v", err)
		}
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
