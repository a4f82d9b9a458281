// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// receiver receives datagrams, each with a text of its own.
type receiver struct {
	mu       sync.Mutex
	received map[string]int
	from     map[string]netip.AddrPort // who sent a text last
}

func newReceiver() *receiver {
	return &receiver{received: map[string]int{}, from: map[string]netip.AddrPort{}}
}

// sender returns who sent a received text last.
func (r *receiver) sender(text string) netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.from[text]
}

// listen receives what arrives at the addresses, which are the thread's network namespace's,
// and answers.
func (r *receiver) listen(t *testing.T, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go func() {
			buf := make([]byte, 100)
			for {
				n, from, err := conn.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				r.mu.Lock()
				r.received[string(buf[:n])]++
				r.from[string(buf[:n])] = from
				r.mu.Unlock()
				_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
			}
		}()
	}
}

func (r *receiver) has(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.received[text] > 0
}

// sender is a socket in a network namespace.
type sender struct {
	ns     netns.NsHandle
	from   string
	mark   int
	device string
}

// send sends a text from the sender; an error of the call is no result.
func (s sender) send(t *testing.T, to, text string) {
	t.Helper()
	conn := s.dial(t, to)
	defer conn.Close()
	_, _ = conn.Write([]byte(text))
}

// unreachable waits until the kernel tells the sender that there is no route.
func (s sender) unreachable(t *testing.T, to string) {
	t.Helper()
	conn := s.dial(t, to)
	defer conn.Close()
	var err error
	for deadline := time.Now().Add(20 * time.Second); !errors.Is(err, unix.ENETUNREACH); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%s to %s: %v, want %v", s.from, to, err, unix.ENETUNREACH)
			return
		}
		if _, e := conn.Write([]byte("?")); e != nil {
			err = e
		}
	}
}

// dial returns a connected socket of the sender.
func (s sender) dial(t *testing.T, to string) net.Conn {
	t.Helper()
	if err := netns.Set(s.ns); err != nil {
		t.Fatal(err)
	}
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(s.from), 0)), Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if s.mark != 0 {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, s.mark)
			}
			if s.device != "" {
				_ = unix.BindToDevice(int(fd), s.device)
			}
			// Else the kernel keeps such errors from datagram sockets.
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1)
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
		})
	}}
	conn, err := d.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// forwarder is a node with the network 7 in its VRF, services behind the external bridge, and
// the wire.
type forwarder struct {
	t                     *testing.T
	host, tenant, outside netns.NsHandle
	target                *Target
	reconciler            *Reconciler
	in                    Inputs
	atOutside, atTenant   *receiver
	number                int
}

func newForwarder(t *testing.T) *forwarder {
	host, tenant := newNetns(t)
	target, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "red"
	if err := netlink.LinkAdd(&netlink.Vrf{LinkAttrs: attrs, Table: 100007}); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("SKIP: this kernel has no VRF devices")
	} else if err != nil {
		t.Fatal(err)
	}
	outside, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	script := func(ns netns.NsHandle, text string) {
		t.Helper()
		runScript(t, ns, text)
	}
	if err := netns.Set(host); err != nil {
		t.Fatal(err)
	}
	for name, peer := range map[string]netns.NsHandle{"ovn-k8s-mp7": tenant, "br-ex": outside} {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(peer))}); err != nil {
			t.Fatal(err)
		}
	}
	script(host, `
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip link set red up
ip link set ovn-k8s-mp7 master red up
ip link set br-ex up
ip addr add 10.66.0.2/24 dev ovn-k8s-mp7
ip addr add fd66::2/64 dev ovn-k8s-mp7 nodad
ip addr add 192.0.2.10/24 dev br-ex
ip addr add 2001:db8::10/64 dev br-ex nodad
ip addr add 169.254.0.99/32 dev lo
ip addr add fd69::63/128 dev lo
for table in main 100007; do
  ip route add 10.96.0.0/16 via 192.0.2.1 dev br-ex onlink table $table
  ip route add fd10:96::/112 via 2001:db8::1 dev br-ex onlink table $table
done
ip route add 192.0.2.0/24 dev br-ex table 100007
for table in main 100007; do
  ip route add 169.254.0.0/17 via 192.0.2.1 dev br-ex onlink table $table
  ip route add fd69::/112 via 2001:db8::1 dev br-ex onlink table $table
done
ip route add 2001:db8::/64 dev br-ex table 100007
ip route add 169.254.0.24/32 dev ovn-k8s-mp7 table 100007
ip route add fd69::18/128 dev ovn-k8s-mp7 table 100007
ip route add 169.254.0.24/32 dev ovn-k8s-mp7 table 99999
ip route add fd69::18/128 dev ovn-k8s-mp7 table 99999
ip rule add to 169.254.0.0/17 lookup 99999 priority 4901
ip -6 rule add to fd69::/112 lookup 99999 priority 4901
`)
	script(tenant, `
ip link set eth0 up
ip addr add 10.66.0.3/24 dev eth0
ip addr add fd66::3/64 dev eth0 nodad
ip addr add 169.254.0.24/32 dev eth0
ip addr add fd69::18/128 dev eth0 nodad
ip addr add 169.254.0.26/32 dev eth0
ip addr add fd69::1a/128 dev eth0 nodad
ip route add default via 10.66.0.2
ip route add default via fd66::2
`)
	script(outside, `
ip link set lo up
ip link set eth0 up
ip addr add 192.0.2.1/24 dev eth0
ip addr add 2001:db8::1/64 dev eth0 nodad
ip addr add 10.96.0.1/32 dev lo
ip addr add fd10:96::1/128 dev lo
ip addr add 169.254.0.11/32 dev lo
ip addr add fd69::b/128 dev lo
ip route add 169.254.0.0/17 via 192.0.2.10
ip route add fd69::/112 via 2001:db8::10
`)
	atOutside, atTenant := newReceiver(), newReceiver()
	atOutside.listen(t, "10.96.0.1:53", "10.96.0.1:54", "192.0.2.1:53", "[fd10:96::1]:53", "[fd10:96::1]:54", "[2001:db8::1]:53",
		"169.254.0.11:30080", "[fd69::b]:30080", "192.0.2.1:6081", "[2001:db8::1]:6081")
	if err := netns.Set(tenant); err != nil {
		t.Fatal(err)
	}
	atTenant.listen(t, "169.254.0.24:55", "[fd69::18]:55", "169.254.0.24:30090", "[fd69::18]:30090")

	return &forwarder{t: t, host: host, tenant: tenant, outside: outside, target: target, reconciler: &Reconciler{Target: target}, atOutside: atOutside, atTenant: atTenant,
		in: Inputs{Kubelet: Kubelet{Mark: mark}, Networks: []network.Network{{ID: 7}}, Bridge: "br-ex", Plan: plan,
			Services: []Port{{netip.MustParseAddr("10.96.0.1"), "udp", 53}, {netip.MustParseAddr("fd10:96::1"), "udp", 53}}}}
}

// runScript runs shell commands in a network namespace and returns their output.
func runScript(t *testing.T, ns netns.NsHandle, text string) string {
	t.Helper()
	if err := netns.Set(ns); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("sh", "-ec", text).CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v: %s", text, err, out)
	}
	return string(out)
}

func (f *forwarder) script(ns netns.NsHandle, text string) string {
	f.t.Helper()
	return runScript(f.t, ns, text)
}

// listen has a receiver get what arrives at addresses of a network namespace.
func (f *forwarder) listen(ns netns.NsHandle, r *receiver, addresses ...string) {
	f.t.Helper()
	if err := netns.Set(ns); err != nil {
		f.t.Fatal(err)
	}
	r.listen(f.t, addresses...)
}

func (f *forwarder) reconcile() {
	f.t.Helper()
	if err := netns.Set(f.host); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.reconciler.Reconcile(f.t.Context(), f.in, false); err != nil {
		f.t.Fatal(err)
	}
}

// expect sends from the sender until a control of the same sender's path is received, and
// then says whether the text was.
func (f *forwarder) expect(what string, s sender, to string, at *receiver, want bool, control sender, controlTo string, controlAt *receiver) {
	f.t.Helper()
	f.number++
	text, proof := fmt.Sprintf("text %d", f.number), fmt.Sprintf("control %d", f.number)
	for deadline := time.Now().Add(20 * time.Second); !controlAt.has(proof) || want && !at.has(text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Errorf("%s: received %v, control received %v", what, at.has(text), controlAt.has(proof))
			return
		}
		s.send(f.t, to, text)
		control.send(f.t, controlTo, proof)
	}
	if at.has(text) != want {
		f.t.Errorf("%s: received %v", what, !want)
	}
}

// answered asks from an address of the tenant, and waits for the answer.
func (f *forwarder) answered(from, to string) { f.t.Helper(); f.askFrom(f.tenant, from, to) }

// askFrom is answered for a network namespace.
func (f *forwarder) askFrom(ns netns.NsHandle, from, to string) {
	f.t.Helper()
	if err := netns.Set(ns); err != nil {
		f.t.Fatal(err)
	}
	conn, err := (&net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}).Dial("udp", to)
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("question"))
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := conn.Read(make([]byte, 100)); err != nil || n != len("question") {
		f.t.Errorf("no answer of %s: %v", to, err)
	}
}

// forwardAddresses are those of forwarder's participants, per IP family.
var forwardAddresses = []struct{ masquerade, other, pod, service, outside, node, forged string }{
	{"169.254.0.24", "169.254.0.26", "10.66.0.3", "10.96.0.1", "192.0.2.1", "192.0.2.10", "169.254.0.99"},
	{"fd69::18", "fd69::1a", "fd66::3", "fd10:96::1", "2001:db8::1", "2001:db8::10", "fd69::63"},
}

func at(address string, port int) string { return net.JoinHostPort(address, fmt.Sprint(port)) }

// TestKernelForward: what a node sends and forwards between a network in its VRF, services
// behind the external bridge and the wire, as the receivers get it.
func TestKernelForward(t *testing.T) {
	w := newForwarder(t)
	w.reconcile()
	atOutside := w.atOutside
	for _, f := range forwardAddresses {
		fromNetwork, fromNode := sender{ns: w.tenant, from: f.masquerade}, sender{ns: w.host, from: f.node}
		service, wire := at(f.service, 53), at(f.outside, 53)
		denied := func(what string, s sender, to string, victim *receiver) {
			t.Helper()
			w.expect(what, s, to, victim, false, fromNetwork, service, atOutside)
		}
		w.expect("a network to a service", fromNetwork, service, atOutside, true, fromNode, wire, atOutside)
		denied("to another port of it", fromNetwork, at(f.service, 54), atOutside)
		denied("to the wire", fromNetwork, wire, atOutside)
		denied("past OVN's router, with the pod's address", sender{ns: w.tenant, from: f.pod}, service, atOutside)
		denied("with another network's masquerade address", sender{ns: w.tenant, from: f.other}, service, atOutside)
		denied("from outside to the network's masquerade address", sender{ns: w.outside, from: f.outside}, at(f.masquerade, 55), w.atTenant)
		denied("a process with a masquerade address", sender{ns: w.host, from: f.forged}, service, atOutside)
		denied("a tenant's process", sender{ns: w.host, from: f.node, mark: int(network.PacketMark(7))}, service, atOutside)
		w.expect("a tenant's process to the wire", sender{ns: w.host, from: f.node, mark: int(network.PacketMark(7))}, wire, atOutside, true, fromNode, wire, atOutside)

		// The service's answers pass.
		w.answered(f.masquerade, service)
	}
	w.in.Services = w.in.Services[1:]
	w.reconcile()
	w.expect("a service that no longer is for all networks", sender{ns: w.tenant, from: "169.254.0.24"}, "10.96.0.1:53", atOutside, false, sender{ns: w.tenant, from: "fd69::18"}, "[fd10:96::1]:53", atOutside)
	if err := netns.Set(w.host); err != nil {
		t.Fatal(err)
	}
	counters, err := w.target.Counters(t.Context())
	if err != nil || counters[CounterServices] == 0 || counters[CounterForwarded] == 0 || counters[CounterNotLocal] == 0 || counters[CounterForeign] == 0 {
		t.Errorf("counters %v, %v", counters, err)
	}
}
