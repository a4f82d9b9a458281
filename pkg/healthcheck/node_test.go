// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestServeNode: the node's health is answered, one request per connection, and a client that sends nothing does not hold
// its connection: with many it would keep load balancers from asking, and they would take the node away from all tenants.
func TestServeNode(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close() // only its port is needed
	var failure error
	if err := ServeNode(t.Context(), address, func() error { return failure }, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{http.StatusOK, http.StatusServiceUnavailable} {
		resp, err := http.Get("http://" + address + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want || !resp.Close {
			t.Errorf("%d %s, and the connection is closed: %t; want %d", resp.StatusCode, body, resp.Close, want)
		}
		failure = errors.New("not every known network is built")
	}
	idle, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	fmt.Fprint(idle, "GET")
	_ = idle.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadAll(idle); err != nil {
		t.Errorf("a connection without a request stays open: %v", err)
	}
}
