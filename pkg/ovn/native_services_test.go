// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
	"bulkhead/pkg/ovs/flows"
	"bulkhead/test/native"
)

// openSockets runs f, which opens sockets, in a namespace, and repeats it for a while if an
// address is in use: a process that another test starts holds the sockets that this test has
// closed until it executes its program.
func openSockets(ns string, f func() error) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if err := native.InNamespace(ns, f); !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			return err
		}
	}
}

// serve answers on a TCP and a UDP port of all addresses of a namespace until the
// test ends: with its name and the client's address.
func serve(t *testing.T, ns string, port uint16, name string) {
	t.Helper()
	addr := fmt.Sprintf("[::]:%d", port)
	var l net.Listener
	var p net.PacketConn
	if err := openSockets(ns, func() (err error) {
		if l, err = net.Listen("tcp", addr); err != nil {
			return err
		}
		if p, err = net.ListenPacket("udp", addr); err != nil {
			_ = l.Close()
		}
		return err
	}); err != nil {
		t.Fatalf("%s: listen: %v", ns, err)
	}
	t.Cleanup(func() { _, _ = l.Close(), p.Close() })
	answer := func(client net.Addr) []byte {
		a := netip.MustParseAddrPort(client.String())
		return fmt.Appendf(nil, "%s %s", name, a.Addr().Unmap())
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(answer(c.RemoteAddr()))
			_ = c.Close()
		}
	}()
	go func() {
		buf := make([]byte, 16)
		for {
			_, client, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = p.WriteTo(answer(client), client)
		}
	}()
}

// echo answers datagrams with themselves, until the test ends.
func echo(t *testing.T, ns string, on netip.AddrPort) {
	t.Helper()
	var p net.PacketConn
	if err := openSockets(ns, func() (err error) {
		p, err = net.ListenPacket("udp", on.String())
		return err
	}); err != nil {
		t.Fatalf("%s: listen: %v", ns, err)
	}
	t.Cleanup(func() { _ = p.Close() })
	go func() {
		buf := make([]byte, 100)
		for {
			n, client, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = p.WriteTo(buf[:n], client)
		}
	}()
}

// exchange sends a datagram from a port of a namespace, repeatedly, until there is an answer.
func exchange(ns string, from int, to netip.AddrPort, question string) (answer string, err error) {
	err = openSockets(ns, func() error {
		c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{Port: from}}).Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		buf := make([]byte, 100)
		for range 20 {
			if err = c.SetDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
				return err
			}
			if _, err = c.Write([]byte(question)); err != nil {
				return err
			}
			var n int
			if n, err = c.Read(buf); err == nil {
				answer = string(buf[:n])
				return nil
			}
		}
		return err
	})
	return answer, err
}

// ask connects from a namespace to a server and returns its name and which address
// it saw.
func ask(ns, protocol string, to netip.AddrPort) (server, seen string, err error) {
	return askFrom(ns, protocol, 0, to)
}

func askFrom(ns, protocol string, port int, to netip.AddrPort) (server, seen string, err error) {
	var answer []byte
	err = openSockets(ns, func() error {
		d := net.Dialer{Timeout: 2 * time.Second}
		if protocol == nbdb.LoadBalancerProtocolUDP {
			d.LocalAddr = &net.UDPAddr{Port: port}
		}
		c, err := d.Dial(protocol, to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		if protocol == nbdb.LoadBalancerProtocolUDP {
			if _, err := c.Write([]byte("?")); err != nil {
				return err
			}
			answer = make([]byte, 100)
			n, err := c.Read(answer)
			answer = answer[:max(n, 0)]
			return err
		}
		answer, err = io.ReadAll(c)
		return err
	})
	server, seen, _ = strings.Cut(string(answer), " ")
	return server, seen, err
}

// serviceLab is a tenant's network with servers on both nodes and a client on the
// first.
type serviceLab struct {
	t        *testing.T
	zones    []*zoneUnderTest
	net      nativeNetwork
	services []Service
	exposed  []ExposedService
}

// update makes both zones have the services.
func (l *serviceLab) update(services ...Service) {
	l.t.Helper()
	l.services = services
	for i, z := range l.zones {
		in := l.net.inputs(l.zones, i)
		in.Services, in.Exposed = l.services, l.exposed
		converge(l.t, z.nb, l.net.net, z.node, in)
	}
}

func (l *serviceLab) ns(zone int, pod string) string {
	return l.zones[zone].podNamespace(strings.TrimSuffix(l.net.net.Name, "_net"), pod)
}

// answers waits until a service's answers are from exactly these servers, each seen
// at least once, and returns the address that the last one saw.
func (l *serviceLab) answers(desc, ns, protocol string, to netip.AddrPort, servers ...string) (seen string) {
	l.t.Helper()
	eventually(l.t, desc, func() error {
		missing := map[string]struct{}{}
		for _, s := range servers {
			missing[s] = struct{}{}
		}
		for tries := 0; tries < 4 || len(missing) > 0 && tries < 40; tries++ {
			server, client, err := ask(ns, protocol, to)
			if err != nil {
				return err
			}
			if delete(missing, server); !strings.Contains(" "+strings.Join(servers, " ")+" ", " "+server+" ") {
				return fmt.Errorf("%s answers for %s, want %v", server, to, servers)
			}
			seen = client
		}
		if len(missing) > 0 {
			// OVS keeps the hash that a load balancer has computed for a packet. If a second one then chooses
			// by that hash, its datapath flow (1 of 16 hash values, 0 among them) also matches packets that
			// have none yet: all get the same endpoint for as long as the flow is used.
			for _, z := range l.zones {
				z.must("ovs-appctl", "-t", z.Path("vswitchd.ctl"), "revalidator/purge")
			}
			return fmt.Errorf("no answers for %s of %v", to, missing)
		}
		return nil
	})
	return seen
}

// silent checks that nothing answers.
func (l *serviceLab) silent(desc, ns string, to netip.AddrPort) {
	l.t.Helper()
	if server, _, err := ask(ns, "tcp", to); err == nil {
		l.t.Errorf("%s: %s answers for %s", desc, server, to)
	}
}

// service returns a service of family f (0: IPv4) with both servers.
func (l *serviceLab) service(f int, name string) Service {
	s := Service{Namespace: "red", Name: name, ClusterIPs: addrs([]string{"10.96.0.7", "fd96::7"}[f]), ExternalIPs: addrs([]string{"203.0.113.7", "2001:db8:7::7"}[f])}
	var e []Endpoint
	for i, z := range l.zones {
		e = append(e, Endpoint{Addr: netip.AddrPortFrom(l.net.pods[i][0].IPs[f].Addr(), 8080), Node: z.node.Name})
	}
	s.Ports = []ServicePort{{Protocol: "tcp", Port: 80, NodePort: 30080, Endpoints: e}, {Protocol: "udp", Port: 80, NodePort: 30080, Endpoints: e}}
	return s
}

func newServiceLab(t *testing.T, topology network.Topology, mode network.GatewayMode) *serviceLab {
	t.Helper()
	_, zones := nativeZones(t)
	for _, z := range zones {
		z.node.Mode = mode
	}
	red := testNetwork(1, "red_net", topology, network.RolePrimary, "dual")
	l := &serviceLab{t: t, zones: zones, net: nativeNetwork{red, [2][]PodPort{
		{nativePod(red, zones[0], "s1", 3), nativePod(red, zones[0], "c1", 4)}, {nativePod(red, zones[1], "s2", 5), nativePod(red, zones[1], "c2", 6)},
	}}}
	connect(t, zones, nil, l.net)
	for i, z := range zones {
		z.outside(gatewayNetwork{red, []flows.ServicePort{{Protocol: "tcp", Port: 30080}, {Protocol: "udp", Port: 30080}, {Protocol: "tcp", Port: 30081},
			{Protocol: "tcp", Port: 80, Addr: netip.MustParseAddr("203.0.113.7")}, {Protocol: "tcp", Port: 80, Addr: netip.MustParseAddr("2001:db8:7::7")}}})
		name := fmt.Sprintf("s%d", i+1)
		serve(t, l.ns(i, name), 8080, name)
	}
	a := zones[0]
	own := mapPrefixes(l.hosts(0), red.ManagementIn)
	a.plug(red.ManagementLSP(a.node.Name), "", namespace(t, a.Name+"m"), "mgmt", network.MACOf(own), own)
	serve(t, a.NS, 8080, "node")
	serve(t, a.podNamespace("", "m"), 9090, "host")
	serve(t, a.podNamespace("", "outside"), 9090, "outside")
	return l
}

func TestNativeServices(t *testing.T) {
	t.Parallel()
	inServiceLabs(t, network.SharedGateway, func(l *serviceLab, f int) {
		testClusterIPs(l, f)
		testFromNode(l, f)
		testFromOutside(l, f)
		testReach(l, f)
	})
}

// inServiceLabs runs a test in a lab of each topology, for each IP family.
func inServiceLabs(t *testing.T, mode network.GatewayMode, test func(l *serviceLab, f int)) {
	for _, topology := range []network.Topology{network.Layer3, network.Layer2} {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			l := newServiceLab(t, topology, mode)
			for f := range 2 {
				t.Run([]string{"ipv4", "ipv6"}[f], func(t *testing.T) {
					l.t = t
					test(l, f)
				})
			}
		})
	}
}

// TestNativeExternalLocal: in local gateway mode, what the node has translated to the network's
// masquerade address reaches the endpoints of the node alone, which see the client, and the
// answers come back through the management port, from that address.
func TestNativeExternalLocal(t *testing.T) {
	t.Parallel()
	inServiceLabs(t, network.LocalGateway, testExternalLocal)
}

func testExternalLocal(l *serviceLab, f int) {
	t, zone := l.t, l.zones[0]
	mgmt, client := zone.podNamespace("", "m"), netip.MustParseAddr([]string{"198.51.100.77", "2001:db8:77::77"}[f])
	masquerade := testPlan(true).MasqueradeManagement(l.net.net)[f].Addr()
	args := []string{"ip", "-n", mgmt, "addr", "add", single(client).String(), "dev", "lo"}
	if f == 1 {
		args = append(args, "nodad")
	}
	mustRun(t, args...)
	mustRun(t, "ip", "-n", mgmt, "route", "add", masquerade.String(), "via", l.gateway(f).String(), "dev", "mgmt", "src", client.String())

	s := l.service(f, "web")
	s.ExternalLocal = true
	published := netip.AddrPortFrom(masquerade, 30080)
	elsewhere, terminating := l.service(f, "web"), l.service(f, "web")
	elsewhere.ExternalLocal, terminating.ExternalLocal = true, true
	for i, p := range elsewhere.Ports {
		elsewhere.Ports[i].Endpoints = p.Endpoints[1:]
		terminating.Ports[i].Endpoints = slices.Clone(p.Endpoints)
		terminating.Ports[i].Endpoints[0].State = EndpointTerminating
	}
	l.update(s)
	zone.sync()
	for _, protocol := range []string{"tcp", "udp"} {
		if got := l.answers("from outside, "+protocol, mgmt, protocol, published, "s1"); got != client.String() {
			t.Errorf("%s: the server sees %s, want the client's address %s", protocol, got, client)
		}
	}
	l.silent("another port", mgmt, netip.AddrPortFrom(masquerade, 8080))
	// What pods send out of the network has the masquerade address as before.
	mustRun(t, "ip", "-n", mgmt, "addr", "replace", single(outsideAddr(1, f)).String(), "dev", "lo")
	if got := l.answers("out of the network", l.ns(0, "c1"), "tcp", netip.AddrPortFrom(outsideAddr(1, f), 9090), "host"); got != masquerade.String() {
		t.Errorf("out of the network: the receiver sees %s, want %s", got, masquerade)
	}
	l.update(elsewhere)
	zone.sync()
	eventually(t, "refused without endpoints on the node", func() error {
		if server, _, err := ask(mgmt, "tcp", published); !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("%q answers, error %w", server, err)
		}
		return nil
	})
	l.update(terminating)
	l.answers("a terminating endpoint is the last one on the node", mgmt, "tcp", published, "s1")
	s.ExternalLocal = false
	l.update(s)
	zone.sync()
	l.silent("after a change to traffic policy Cluster", mgmt, published)
	l.update()
}

func testClusterIPs(l *serviceLab, f int) {
	t, client, other, s1 := l.t, l.ns(0, "c1"), l.ns(1, "c2"), l.ns(0, "s1")
	s := l.service(f, "web")
	vip := netip.AddrPortFrom(s.ClusterIPs[0], 80)
	l.update(s)
	l.answers("TCP", client, "tcp", vip, "s1", "s2")
	if got, want := l.answers("UDP", other, "udp", vip, "s1", "s2"), l.net.pods[1][1].IPs[f].Addr().String(); got != want {
		t.Errorf("servers see %s, want the client's address %s", got, want)
	}
	l.answers("an external address, from a pod", client, "tcp", netip.AddrPortFrom(s.ExternalIPs[0], 80), "s1", "s2")
	l.answers("a node port, from a pod", client, "tcp", netip.AddrPortFrom(l.zones[0].node.Addresses[f].Addr(), 30080), "s1", "s2")

	s.Affinity = time.Minute
	l.update(s)
	server := ""
	eventually(t, "affinity", func() error {
		server = ""
		for range 12 {
			got, _, err := ask(client, "tcp", vip)
			if err != nil || server != "" && got != server {
				return fmt.Errorf("%s answers after %s: %w", got, server, err)
			}
			server = got
		}
		return nil
	})
	s.Affinity, s.InternalLocal = 0, true
	l.update(s)
	l.answers("internal traffic policy Local, first node", client, "tcp", vip, "s1")
	l.answers("internal traffic policy Local, second node", other, "tcp", vip, "s2")
	s.InternalLocal = false

	// The server is its own client.
	hairpin := l.service(f, "web")
	for i := range hairpin.Ports {
		hairpin.Ports[i].Endpoints = hairpin.Ports[i].Endpoints[:1]
	}
	l.update(hairpin)
	if got, want := l.answers("hairpin", s1, "tcp", vip, "s1"), []string{"169.254.0.5", "fd69::5"}[f]; got != want {
		t.Errorf("with hairpin the server sees %s, want %s", got, want)
	}

	// A UDP client that goes on from its port leaves an endpoint that is gone.
	from := 20000 + f
	if server, _, err := askFrom(client, "udp", from, vip); server != "s1" {
		t.Errorf("%s answers: %v", server, err)
	}
	moved := l.service(f, "web")
	for i := range moved.Ports {
		moved.Ports[i].Endpoints = moved.Ports[i].Endpoints[1:]
	}
	l.update(moved)
	l.zones[0].sync() // a packet until then would renew the connection
	if server, _, err := askFrom(client, "udp", from, vip); server != "s2" {
		t.Errorf("UDP to an endpoint that is gone: %q answers: %v", server, err)
	}

	for i := range s.Ports {
		s.Ports[i].Endpoints = nil
	}
	l.update(s)
	eventually(t, "refused without endpoints", func() error {
		if _, _, err := ask(client, "tcp", vip); !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("error %w", err)
		}
		return nil
	})
	l.update()
	eventually(t, "a deleted service's address leads nowhere", func() error {
		if _, _, err := ask(client, "tcp", vip); !errors.Is(err, syscall.EAGAIN) && !isTimeout(err) {
			return fmt.Errorf("error %w", err)
		}
		return nil
	})
}

// sync waits until the datapath has what the northbound database has.
func (z *zoneUnderTest) sync() {
	z.t.Helper()
	z.must("ovn-nbctl", "--no-leader-only", "--timeout=60", "--wait=hv", "sync")
	z.must("ovs-appctl", "-t", z.Path("vswitchd.ctl"), "revalidator/wait")
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// testFromOutside connects through the gateway router of the first node.
func testFromOutside(l *serviceLab, f int) {
	t, zone := l.t, l.zones[0]
	outside, node := zone.podNamespace("", "outside"), zone.node.Addresses[f].Addr()
	s, own := l.service(f, "web"), []string{"172.18.255.254", "fc00::ffff"}[f]
	external := netip.AddrPortFrom(s.ExternalIPs[0], 80)
	mustRun(t, "ip", "-n", outside, "route", "add", external.Addr().String(), "via", node.String(), "src", own)
	join := l.net.net.JoinGateway(1)[f].Addr().String()
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(node, 30080), external} {
		s.ExternalLocal = false
		l.update(s)
		if got := l.answers("from outside", outside, "tcp", to, "s1", "s2"); got != join {
			t.Errorf("%s: servers see %s, want the gateway router's address %s", to, got, join)
		}
		s.ExternalLocal = true
		l.update(s)
		zone.sync()
		if got := l.answers("external traffic policy Local", outside, "tcp", to, "s1"); got != own {
			t.Errorf("%s: with external traffic policy Local the server sees %s, want the client's address %s", to, got, own)
		}
	}
	// A process of the node is among the endpoints: the node accepts no client's address from the router.
	host, masquerade := l.service(f, "web"), testPlan(true).MasqueradeGateway(l.net.net)[f].Addr().String()
	host.ExternalLocal = true
	for i := range host.Ports {
		host.Ports[i].Endpoints = []Endpoint{{Addr: netip.AddrPortFrom(node, 8080), Node: zone.node.Name}}
	}
	l.update(host)
	zone.sync()
	if got := l.answers("external traffic policy Local, a process of the node", outside, "tcp", netip.AddrPortFrom(node, 30080), "node"); got != masquerade {
		t.Errorf("with external traffic policy Local the node's process sees %s, want the gateway router's address %s", got, masquerade)
	}
	// The node's address is both services'.
	other := l.service(f, "other")
	other.ClusterIPs, other.ExternalIPs = nil, nil
	for i := range other.Ports {
		other.Ports[i].NodePort = 30081
	}
	l.update(other)
	l.answers("a service that replaces another", outside, "tcp", netip.AddrPortFrom(node, 30081), "s1", "s2")
	l.update()
}

// testFromNode checks that the node's own processes in the network reach its services, with
// endpoints on both nodes, and services that are exposed. Packets to the latter come back by the
// management port, with the network's masquerade address.
func testFromNode(l *serviceLab, f int) {
	t, mgmt, s := l.t, l.zones[0].podNamespace("", "m"), l.service(f, "web")
	own := l.net.net.ManagementIn(l.hosts(0)[f]).Addr()
	exposed, masquerade := netip.MustParseAddr([]string{"10.96.0.11", "fd96::b"}[f]), testPlan(true).MasqueradeManagement(l.net.net)[f].Addr()
	address := func(a netip.Addr) {
		args := []string{"ip", "-n", mgmt, "addr", "replace", single(a).String(), "dev", "lo"}
		if f == 1 {
			args = append(args, "nodad")
		}
		mustRun(t, args...)
	}
	toPods := own
	if l.net.net.Topology == network.Layer2 {
		toPods = testPlan(true).MasqueradeFixed(network.MasqueradeNode)[f].Addr()
		address(toPods)
	}
	// The namespace is the network's VRF, and what stands behind the exposed service too: what it
	// sends itself to the service's address goes by the port, and what arrives is for a server.
	address(exposed)
	sendBeyond(t, mgmt, "mgmt", exposed)
	for _, route := range [][]string{{s.ClusterIPs[0].String(), "src", toPods.String()}, {exposed.String(), "src", own.String(), "table", "200"}, {masquerade.String()}} {
		mustRun(t, append([]string{"ip", "-n", mgmt, "route", "replace", "via", l.gateway(f).String(), "dev", "mgmt"}, route...)...)
	}
	l.exposed = []ExposedService{{"kube-system", "kube-dns", []netip.Addr{exposed}, true}}
	l.update(s)
	l.zones[0].sync()
	for _, protocol := range []string{"tcp", "udp"} {
		l.answers("a process of the node, "+protocol, mgmt, protocol, netip.AddrPortFrom(s.ClusterIPs[0], 80), "s1", "s2")
	}
	if got := l.answers("a process of the node, to an exposed service", mgmt, "tcp", netip.AddrPortFrom(exposed, 9090), "host"); got != masquerade.String() {
		t.Errorf("the host sees %s, want the network's masquerade address %s", got, masquerade)
	}
	l.exposed = nil
	l.update()
}

// sendBeyond lets a namespace send to an address that it has itself: by table 200, while what arrives
// by the link for the address, or from it, is accepted.
func sendBeyond(t *testing.T, ns, link string, to netip.Addr) {
	t.Helper()
	family := "-4"
	if to.Is6() {
		family = "-6"
	}
	mustRun(t, "ip", "netns", "exec", ns, "sysctl", "-qw", "net.ipv4.conf."+link+".accept_local=1", "net.ipv4.conf."+link+".rp_filter=0", "net.ipv4.conf.all.rp_filter=0")
	for _, rule := range [][]string{{"add", "pref", "100", "lookup", "local"}, {"del", "pref", "0", "lookup", "local"}, {"add", "pref", "50", "iif", "lo", "to", to.String(), "lookup", "200"}} {
		mustRun(t, append([]string{"ip", family, "-n", ns, "rule"}, rule...)...)
	}
}

// testReach checks which addresses outside the network pods reach: what is outside the
// cluster, and services of the cluster default network that are exposed, through the
// management port. Nothing else of the cluster's addresses leaves the network, though
// hosts that have them stand behind both ways out.
func testReach(l *serviceLab, f int) {
	t, zone, client := l.t, l.zones[0], l.ns(0, "c1")
	mgmt, outside := zone.podNamespace("", "m"), zone.podNamespace("", "outside")
	of := func(v4, v6 string) string { return []string{v4, v6}[f] }
	others := map[string]string{
		"a service that is not exposed":        of("10.96.0.77", "fd96::77"),
		"a pod of the cluster default network": of("10.244.7.7", "fd44:0:0:7::7"),
		"a router of the default network":      of("100.64.0.7", "fd98::7"),
		"the transit subnet":                   of("100.88.7.7", "fd97::77"),
		"another network's masquerade address": of("169.254.0.77", "fd69::77"),
		"the host's masquerade address":        of("169.254.0.2", "fd69::2"),
	}
	exposed := of("10.96.0.10", "fd96::a")
	for _, ns := range []string{mgmt, outside} {
		for _, a := range append(slices.Collect(maps.Values(others)), exposed) {
			args := []string{"ip", "-n", ns, "addr", "add", single(netip.MustParseAddr(a)).String(), "dev", "lo"}
			if f == 1 {
				args = append(args, "nodad")
			}
			mustRun(t, args...)
		}
	}
	// The node's route back.
	masquerade := testPlan(true).MasqueradeManagement(l.net.net)[f].Addr()
	mustRun(t, "ip", "-n", mgmt, "route", "replace", masquerade.String(), "via", l.gateway(f).String(), "dev", "mgmt")

	to := func(a string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(a), 9090) }
	l.exposed = nil
	l.update()
	zone.sync()
	l.answers("outside the cluster", client, "tcp", to(outsideAddr(1, f).String()), "outside")
	l.silent("a service, before it is exposed", client, to(exposed))
	l.exposed = []ExposedService{{"kube-system", "kube-dns", addrs(exposed), true}}
	l.update()
	if got := l.answers("an exposed service", client, "tcp", to(exposed), "host"); got != masquerade.String() {
		t.Errorf("the host sees %s, want the network's masquerade address %s", got, masquerade)
	}
	var wg sync.WaitGroup
	for what, a := range others {
		wg.Go(func() { l.silent(what, client, to(a)) })
	}
	wg.Wait()
}

// gateway returns the address of the network's router on the first node.
func (l *serviceLab) gateway(f int) netip.Addr {
	return l.net.net.GatewayIn(l.hosts(0)[f]).Addr()
}

// hosts returns the network's subnets on a node.
func (l *serviceLab) hosts(zone int) []netip.Prefix {
	hosts, err := l.net.net.HostSubnets(l.zones[zone].node.ID)
	if err != nil {
		l.t.Fatal(err)
	}
	return hosts
}
