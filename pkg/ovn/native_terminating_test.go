// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"bulkhead/pkg/network"
)

// echoLines answers each line of a TCP connection with the server's name and the line, until the test ends.
func echoLines(t *testing.T, ns string, port uint16, name string) {
	t.Helper()
	var l net.Listener
	if err := openSockets(ns, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		return err
	}); err != nil {
		t.Fatalf("%s: listen: %v", ns, err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					_, _ = fmt.Fprintf(c, "%s %s\n", name, lines.Text())
				}
			}()
		}
	}()
}

// conversation is a TCP connection to echoLines.
type conversation struct {
	net.Conn
	what    string
	answers *bufio.Reader
	asked   int
}

// converse connects to a service and waits until the wanted server answers there.
func converse(t *testing.T, from serviceClient, server string) *conversation {
	t.Helper()
	var c *conversation
	eventually(t, from.what+" is answered by "+server, func() error {
		var conn net.Conn
		if err := openSockets(from.ns, func() (err error) {
			conn, err = net.DialTimeout("tcp", from.to.String(), 2*time.Second)
			return err
		}); err != nil {
			return err
		}
		c = &conversation{Conn: conn, what: from.what, answers: bufio.NewReader(conn)}
		err := c.ask(server, 2*time.Second)
		if err != nil {
			_ = conn.Close()
		}
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask sends a line and reads its answer.
func (c *conversation) ask(server string, within time.Duration) error {
	c.asked++
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "line %d\n", c.asked); err != nil {
		return fmt.Errorf("%s: ask: %w", c.what, err)
	}
	answer, err := c.answers.ReadString('\n')
	if want := fmt.Sprintf("%s line %d\n", server, c.asked); err != nil || answer != want {
		return fmt.Errorf("%s: answer %q, want %q: %w", c.what, answer, want, err)
	}
	return nil
}

// TestNativeConnectionsOutlastReadiness: an endpoint that terminates, or serves no more, gets no new connections, and those
// that it has go on: of pods and, with either external traffic policy, of clients outside.
func TestNativeConnectionsOutlastReadiness(t *testing.T) {
	t.Parallel()
	for mode, clients := range map[network.GatewayMode]func(l *serviceLab, f int) []serviceClient{
		network.SharedGateway: (*serviceLab).clientsOfGatewayRouter, network.LocalGateway: (*serviceLab).clientsOfManagementPort,
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			inServiceLabs(t, mode, func(l *serviceLab, f int) {
				for _, server := range []string{"s1", "c1"} {
					echoLines(l.t, l.ns(0, server), 8081, server)
				}
				l.update(l.outlasting(f, EndpointReady)...)
				var open []*conversation
				for _, c := range clients(l, f) {
					open = append(open, converse(l.t, c, "s1"))
				}
				goOn := func(desc string, services []Service) {
					l.update(services...)
					l.zones[0].sync()
					for _, c := range open {
						if err := c.ask("s1", 10*time.Second); err != nil {
							l.t.Errorf("%s: %v", desc, err)
						}
					}
				}
				for desc, state := range map[string]EndpointState{"terminating": EndpointTerminating, "not serving": EndpointNotServing} {
					goOn(desc, l.outlasting(f, state))
					for _, c := range clients(l, f) {
						converse(l.t, c, "c1") // a new connection
					}
				}
				alone := l.outlasting(f, EndpointNotServing)
				for _, s := range alone {
					s.Ports[0].Endpoints = s.Ports[0].Endpoints[:1]
				}
				goOn("no endpoint serves", alone)
				l.update()
			})
		})
	}
}

// outlasting returns a service of each external traffic policy, with the first server in a state. Another of the same node
// serves if the first is not ready.
func (l *serviceLab) outlasting(f int, state EndpointState) []Service {
	var out []Service
	for i, local := range []bool{false, true} {
		s := l.service(f, fmt.Sprint("outlasting", i))
		s.ClusterIPs, s.ExternalIPs, s.ExternalLocal = addrs([]string{"10.96.0.2", "fd96::2"}[f]+fmt.Sprint(i)), nil, local
		s.Ports = s.Ports[:1]
		s.Ports[0].NodePort, s.Ports[0].Endpoints = uint16(30080+i), nil
		for k, of := range []EndpointState{state, EndpointReady}[:1+min(1, state)] {
			s.Ports[0].Endpoints = append(s.Ports[0].Endpoints, Endpoint{netip.AddrPortFrom(l.net.pods[0][k].IPs[f].Addr(), 8081), l.zones[0].node.Name, of})
		}
		out = append(out, s)
	}
	return out
}

// serviceClient is a namespace and the address of a service that it connects to.
type serviceClient struct {
	what, ns string
	to       netip.AddrPort
}

// clientsOfGatewayRouter are pods of both nodes, and a host outside at a node port of each policy.
func (l *serviceLab) clientsOfGatewayRouter(f int) []serviceClient {
	own, outside := l.zones[0].node.Addresses[f].Addr(), l.zones[0].podNamespace("", "outside")
	vip := netip.AddrPortFrom(l.outlasting(f, EndpointReady)[0].ClusterIPs[0], 80)
	return []serviceClient{
		{"a pod of another node", l.ns(1, "c2"), vip}, {"the node port from outside, policy Cluster", outside, netip.AddrPortFrom(own, 30080)},
		{"the node port from outside, policy Local", outside, netip.AddrPortFrom(own, 30081)},
	}
}

// clientsOfManagementPort are what the node redirects to the management port with policy Local.
func (l *serviceLab) clientsOfManagementPort(f int) []serviceClient {
	mgmt, masquerade := l.zones[0].podNamespace("", "m"), testPlan(true).MasqueradeManagement(l.net.net)[f].Addr()
	mustRun(l.t, "ip", "-n", mgmt, "addr", "replace", single(outsideAddr(1, f)).String(), "dev", "lo")
	mustRun(l.t, "ip", "-n", mgmt, "route", "replace", masquerade.String(), "via", l.gateway(f).String(), "dev", "mgmt", "src", outsideAddr(1, f).String())
	return []serviceClient{{"the node port from outside, policy Local", mgmt, netip.AddrPortFrom(masquerade, 30081)}}
}
