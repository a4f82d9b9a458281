// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// freePorts returns ports of this machine that nothing listens on.
func freePorts(t *testing.T, n int) (ports []uint16) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, uint16(l.Addr().(*net.TCPAddr).Port))
	}
	return ports
}

func newServer(t *testing.T, failed func(Service, error)) *Server {
	t.Helper()
	s := New(slog.New(slog.NewTextHandler(io.Discard, nil)), nil, failed)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// check is one health check: the status code and body, "closed" if nothing listens.
func check(address string, port uint16) string {
	res, err := client.Get("http://" + net.JoinHostPort(address, fmt.Sprint(port)) + "/")
	if err != nil {
		return "closed"
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return fmt.Sprintf("%d %s %s", res.StatusCode, res.Header.Get("X-Load-Balancing-Endpoint-Weight"), strings.TrimSpace(string(body)))
}

// eventually waits until a check has the result.
func eventually(t *testing.T, port uint16, want string) {
	t.Helper()
	var got string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if got = check("127.0.0.1", port); got == want {
			return
		}
	}
	t.Fatalf("port %d: %s, want %s", port, got, want)
}

const (
	two  = `200 2 {"localEndpoints":2,"serviceProxyHealthy":true}`
	none = `503 0 {"localEndpoints":0,"serviceProxyHealthy":true}`
)

func TestServer(t *testing.T) {
	s := newServer(t, nil)
	ports := freePorts(t, 3)
	web, shop := Service{"a/web", ports[0], 2}, Service{"a/shop", ports[1], 0}
	all := func(string) bool { return false }
	s.Replace("red", []Service{web, shop}, all)
	eventually(t, ports[0], two)
	eventually(t, ports[1], none)
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		l.Close()
		if got := check("::1", ports[0]); got != two {
			t.Errorf("IPv6: %s", got)
		}
	}
	shop.Endpoints = 2
	s.Set("red", shop)
	eventually(t, ports[1], two)
	shop.Port = ports[2] // the Service was recreated
	s.Set("red", shop)
	eventually(t, ports[2], two)
	eventually(t, ports[1], "closed")

	// Services whose rows are not written stay as they are.
	changed := shop
	changed.Endpoints = 0
	s.Replace("red", []Service{changed}, func(string) bool { return true })
	eventually(t, ports[0], two)
	eventually(t, ports[2], two)

	// A namespace moves to another network: its old network no longer has the service.
	s.Set("blue", web)
	s.Remove("red", "a/web")
	eventually(t, ports[0], two)
	s.Replace("red", nil, all)
	eventually(t, ports[2], "closed")
	eventually(t, ports[0], two)
	s.Remove("blue", "a/web")
	eventually(t, ports[0], "closed")
}

// Lower only takes away.
func TestLower(t *testing.T) {
	s := newServer(t, nil)
	ports := freePorts(t, 2)
	s.Lower("red", Service{"a/web", ports[0], 2})
	s.Set("red", Service{"a/shop", ports[1], 2})
	eventually(t, ports[1], two) // ports are opened in turn
	if got := check("127.0.0.1", ports[0]); got != "closed" {
		t.Errorf("a service that was not there: %s", got)
	}
	s.Lower("red", Service{"a/shop", ports[1], 3})
	s.Lower("blue", Service{"a/shop", ports[1], 0})
	if got := check("127.0.0.1", ports[1]); got != two {
		t.Errorf("more endpoints, and another network's: %s, want %s", got, two)
	}
	s.Lower("red", Service{"a/shop", ports[1], 0})
	if got := check("127.0.0.1", ports[1]); got != none {
		t.Errorf("no endpoints: %s, want %s", got, none)
	}
	s.Lower("red", Service{"a/shop", ports[0], 2})
	eventually(t, ports[1], "closed")
	if got := check("127.0.0.1", ports[0]); got != "closed" {
		t.Errorf("another port: %s", got)
	}
}

// A port that another program has is opened once that program is gone, and others meanwhile.
func TestPortTaken(t *testing.T) {
	ports := freePorts(t, 2)
	var failures atomic.Int32
	s := newServer(t, func(n Service, err error) {
		if n.Key == "a/web" && err != nil {
			failures.Add(1)
		}
	})
	other, err := net.Listen("tcp", fmt.Sprintf(":%d", ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	s.Replace("red", []Service{{"a/web", ports[0], 2}, {"a/shop", ports[1], 2}}, func(string) bool { return false })
	eventually(t, ports[1], two)
	for deadline := time.Now().Add(time.Minute); failures.Load() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the failure was not reported")
		}
	}
	other.Close()
	eventually(t, ports[0], two)
}

// counted counts a listener's open connections.
type counted struct {
	net.Listener
	open, most *atomic.Int32
}

type countedConn struct {
	net.Conn
	closed func()
}

func (l counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.most.Store(max(l.most.Load(), l.open.Add(1)))
	return countedConn{c, sync.OnceFunc(func() { l.open.Add(-1) })}, nil
}

func (c countedConn) Close() error { c.closed(); return c.Conn.Close() }

// RemoteAddr makes each address of loopback another host's: a server takes loopback for one client.
func (c countedConn) RemoteAddr() net.Addr {
	a := *c.Conn.RemoteAddr().(*net.TCPAddr)
	from := a.IP.To4()
	a.IP = net.IPv4(198, 18, from[2], from[3])
	return &a
}

// Clients that send nothing do not delay another's check, and do not use up files.
func TestManyConnections(t *testing.T) {
	s := newServer(t, nil)
	var open, most atomic.Int32
	s.listen = func(port uint16) (net.Listener, error) {
		l, err := listenNode(port)
		return counted{l, &open, &most}, err
	}
	port := freePorts(t, 1)[0]
	s.Set("red", Service{"a/web", port, 2})
	eventually(t, port, two)
	connect := func(from string, number int) {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		for range number {
			c, err := d.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	connect("127.0.0.2", 200)
	if got := check("127.0.0.1", port); got != two {
		t.Errorf("while another client has many connections: %s", got)
	}
	if n := most.Load(); n > maxOfSource+2 { // one that is being refused, and the check
		t.Errorf("%d connections of two clients at once", n)
	}
	for i := range maxConnections/maxOfSource + 10 {
		connect(fmt.Sprintf("127.0.%d.%d", 1+i/200, 1+i%200), maxOfSource)
	}
	if n := most.Load(); n > maxConnections+1 {
		t.Errorf("%d connections at once, want at most %d", n, maxConnections)
	}
	eventually(t, port, two)
}

// Run ends although a port is open, and closes it.
func TestRunEnds(t *testing.T) {
	s := New(slog.New(slog.NewTextHandler(io.Discard, nil)), nil, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	port := freePorts(t, 1)[0]
	s.Set("red", Service{"a/web", port, 2})
	eventually(t, port, two)
	cancel()
	<-done
	if got := check("127.0.0.1", port); got != "closed" {
		t.Errorf("after Run: %s", got)
	}
}
