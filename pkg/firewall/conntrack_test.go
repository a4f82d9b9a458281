// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestStale(t *testing.T) {
	in := Inputs{Node: nodeAddresses, Plan: plan, NodePorts: nodePorts, HostPorts: hostPorts, LocalPorts: localPorts}
	for name, c := range map[string]struct {
		protocol     uint8
		to, answered string
		want         bool
	}{
		"the network has the port":            {unix.IPPROTO_UDP, "192.0.2.10:30080", "169.254.0.13:30080", false},
		"another network has it now":          {unix.IPPROTO_UDP, "192.0.2.10:30080", "169.254.0.11:30080", true},
		"no network has it any more":          {unix.IPPROTO_UDP, "192.0.2.10:30082", "169.254.0.13:30082", true},
		"no network has it in this IP family": {unix.IPPROTO_UDP, "[2001:db8::10]:30080", "[fd69::b]:30080", true},
		"a TCP connection continues":          {unix.IPPROTO_TCP, "192.0.2.10:30082", "169.254.0.13:30082", false},
		"the node's own server":               {unix.IPPROTO_UDP, "192.0.2.10:53", "192.0.2.10:53", false},
		"translated by somebody else":         {unix.IPPROTO_UDP, "192.0.2.10:30082", "10.0.0.1:30082", false},
		"not to the node's address":           {unix.IPPROTO_UDP, "192.0.2.11:30082", "169.254.0.13:30082", false},
		"a pod has the host port":             {unix.IPPROTO_UDP, "192.0.2.10:54", "169.254.0.11:54", false},
		"another network's pod had it":        {unix.IPPROTO_UDP, "192.0.2.10:54", "169.254.0.13:54", true},
		"a pod has the port at loopback":      {unix.IPPROTO_UDP, "127.0.0.1:54", "169.254.0.7:54", false},
		"no pod has the port at loopback":     {unix.IPPROTO_UDP, "127.0.0.1:55", "169.254.0.7:55", true},
		"traffic policy Local":                {unix.IPPROTO_UDP, "192.0.2.10:30090", "169.254.0.24:30090", false},
		"traffic policy Local, IPv6":          {unix.IPPROTO_UDP, "[2001:db8::10]:30090", "[fd69::18]:30090", false},
		"another service with Local has it":   {unix.IPPROTO_UDP, "192.0.2.10:30090", "169.254.0.26:30090", true},
		"it has another node port now":        {unix.IPPROTO_UDP, "192.0.2.10:30090", "169.254.0.24:30091", true},
		"to a router, without translation":    {unix.IPPROTO_UDP, "169.254.0.13:30082", "169.254.0.13:30082", false},
	} {
		if got := in.udpTranslations().stale(c.protocol, netip.MustParseAddrPort(c.to), netip.MustParseAddrPort(c.answered)); got != c.want {
			t.Errorf("%s: stale is %v", name, got)
		}
	}
}

// TestKernelStaleUDP: a UDP client that continues to send from its port reaches the network
// that has the node port now.
func TestKernelStaleUDP(t *testing.T) {
	newNetns(t)
	target, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	routers := addrs("169.254.0.11", "169.254.0.13")
	addLoopbackAddresses(t, append(routers, nodeAddresses[0])...)
	for _, a := range append(routers, nodeAddresses[0]) {
		at := netip.AddrPortFrom(a, 30080).String()
		server, err := net.ListenPacket("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		go func() {
			buf := make([]byte, 16)
			for {
				_, client, err := server.ReadFrom(buf)
				if err != nil {
					return
				}
				server.WriteTo([]byte(at), client)
			}
		}()
	}
	client, err := net.Dial("udp", fmt.Sprintf("%s:30080", nodeAddresses[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r := &Reconciler{Target: target}
	for _, c := range []struct {
		ports []NodePort
		want  string
	}{
		{[]NodePort{{"udp", 30080, routers[0]}}, "169.254.0.11:30080"},
		{[]NodePort{{"udp", 30080, routers[1]}}, "169.254.0.13:30080"},
		{nil, "192.0.2.10:30080"},
	} {
		in := Inputs{Kubelet: Kubelet{Mark: mark}, Plan: plan, Node: nodeAddresses, NodePorts: c.ports}
		if _, err := r.Reconcile(t.Context(), in, false); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		_ = client.SetReadDeadline(time.Now().Add(5 * time.Second))
		buf := make([]byte, 100)
		n, err := client.Read(buf)
		if got := string(buf[:max(n, 0)]); got != c.want {
			t.Errorf("with node ports %v %q answers, want %s: %v", c.ports, got, c.want, err)
		}
	}
}
