// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"

	"bulkhead/test/lab/internal/guest"
	"bulkhead/test/lab/internal/remote"
)

// egressConfig makes the API server connect to nodes, pods and services through a proxy
// (its --egress-selector-config-file).
const egressConfig = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: %s
`

// startEgress starts the API server's proxy, which runs as long as the supervisor, and
// writes its configuration. The API server is on the underlay, which has no routes to
// pods and services: a node makes the connections to them.
func (s Spec) startEgress(ctx context.Context) error {
	socket := s.path("egress.sock")
	if err := os.WriteFile(s.egressConfig(), fmt.Appendf(nil, egressConfig, socket), 0o600); err != nil {
		return fmt.Errorf("write the API server's egress configuration: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for the API server's connections: %w", err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				slog.Error("failed to accept a connection of the API server", "error", err)
				return
			}
			go s.egress(ctx, conn)
		}
	}()
	return nil
}

func (s Spec) egressConfig() string { return s.path("pki", "egress.yaml") }

// egress serves one CONNECT request.
func (s Spec) egress(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	request, err := http.ReadRequest(in)
	if err != nil || request.Method != http.MethodConnect {
		slog.Warn("refused a request of the API server that is not CONNECT", "error", err)
		return
	}
	peer, err := s.dialCluster(ctx, request.Host)
	if err != nil {
		slog.Info("failed to connect for the API server", "address", request.Host, "error", err)
		fmt.Fprint(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		return
	}
	defer peer.Close()
	if _, err := fmt.Fprint(conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	remote.Join(conn, in, peer, peer)
}

// dialCluster connects to an address of the underlay directly, and to others from the
// first node that runs.
func (s Spec) dialCluster(ctx context.Context, address string) (net.Conn, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("parse the address: %w", err)
	}
	dialer := &net.Dialer{Timeout: remote.DialTimeout}
	if underlay4.Contains(at.Addr()) || underlay6.Contains(at.Addr()) {
		return dialer.DialContext(ctx, "tcp", address)
	}
	var failed []error
	for _, n := range s.Nodes {
		command, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(n.Management.Addr().String(), strconv.Itoa(guest.ExecPort)))
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", n.Name, err))
			continue
		}
		return remote.Dial(ctx, command, s.Token, address)
	}
	return nil, errors.Join(failed...)
}
