// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
	"bulkhead/test/native"
)

// arrivals record which attempts arrive in network namespaces.
type arrivals struct {
	mu       sync.Mutex
	received map[string]map[int]bool // by namespace
	next     int
}

func (r *arrivals) has(ns string, id int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.received[ns][id]
}

var errNotReceived = errors.New("not received")

// listen records what the listeners receive in a namespace until the test ends.
func (r *arrivals) listen(t *testing.T, ns string, listeners ...attack.Listener) {
	t.Helper()
	r.received[ns] = map[int]bool{}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	t.Cleanup(func() { cancel(); ended.Wait() })
	for _, l := range listeners {
		ready := make(chan struct{})
		ended.Go(func() {
			if err := native.InNamespace(ns, func() error {
				return l.Listen(ctx, func() { close(ready) }, func(id int) {
					r.mu.Lock()
					defer r.mu.Unlock()
					r.received[ns][id] = true
				})
			}); err != nil {
				t.Errorf("listen in %s: %v", ns, err)
			}
		})
		<-ready
	}
}

// attacks makes attempts in a namespace, none of which may arrive in the victims' namespaces. Each control then arrives in the
// namespace that it names.
func (r *arrivals) attacks(t *testing.T, what, ns string, list []attack.Attempt, victims []string, controls map[string][]attack.Attempt) {
	t.Helper()
	if len(list) == 0 || len(controls) == 0 {
		t.Fatalf("%s: %d attempts and controls in %d namespaces prove nothing", what, len(list), len(controls))
	}
	send := func(a *attack.Attempt) error {
		r.next++
		a.ID = r.next
		return errors.Join(a.Validate(), native.InNamespace(ns, a.Do))
	}
	list = slices.Clone(list)
	for i := range list {
		if err := send(&list[i]); err != nil {
			t.Errorf("%s: %+v: %v", what, list[i], err)
		}
	}
	for at, all := range controls {
		for _, c := range all {
			eventually(t, fmt.Sprintf("%s: %+v arrives in %s", what, c, at), func() error {
				// An earlier copy may have arrived since.
				if c.ID > 0 && r.has(at, c.ID) {
					return nil
				}
				if err := send(&c); err != nil {
					return err
				}
				return errNotReceived
			})
		}
	}
	for _, a := range list {
		for _, v := range victims {
			if r.has(v, a.ID) {
				t.Errorf("%s reaches %s: %+v", what, v, a)
			}
		}
	}
}

// forgedWorld is a node with the pods p and q of the tenant red, p of blue and p of the cluster default network, and a machine outside.
type forgedWorld struct {
	*arrivals
	a                                *zoneUnderTest
	red, blue                        network.Network
	nsP, nsQ, nsBlue, nsPlain, nsOut string
	p, q, blueP                      PodPort
}

func newForgedWorld(t *testing.T, mode network.GatewayMode) *forgedWorld {
	t.Helper()
	_, zones := nativeZones(t)
	a := zones[0]
	a.node.Mode = mode
	w := &forgedWorld{arrivals: &arrivals{received: map[string]map[int]bool{}}, a: a, red: testNetwork(1, "red_net", network.Layer3, network.RolePrimary, "dual"), blue: testNetwork(2, "blue_net", network.Layer2, network.RolePrimary, "dual")}
	// No address of one network is one of the other's, so that what arrives was for the victim.
	w.blue.Subnets[0].CIDR, w.blue.Subnets[1].CIDR = netip.MustParsePrefix("10.30.0.0/24"), netip.MustParsePrefix("fd30::/64")
	plain := testDefault(true)
	w.p, w.q, w.blueP = nativePod(w.red, a, "p", 3), nativePod(w.red, a, "q", 4), nativePod(w.blue, a, "p", 3)
	plainPods := [2][]PodPort{{testPod(plain, a.node, network.DefaultName, "plain", "p", 3, false)}, {}}
	connect(t, zones, nil, nativeNetwork{w.red, [2][]PodPort{{w.p, w.q}, {}}}, nativeNetwork{w.blue, [2][]PodPort{{w.blueP}, {}}}, nativeNetwork{plain, plainPods})
	a.outside(gatewayNetwork{net: w.red}, gatewayNetwork{net: w.blue})
	converge(t, a.nb, plain, a.node, nativeNetwork{plain, plainPods}.inputs(zones, 0))
	w.nsP, w.nsQ, w.nsBlue, w.nsPlain, w.nsOut = a.podNamespace("red", "p"), a.podNamespace("red", "q"), a.podNamespace("blue", "p"), a.podNamespace("plain", "p"), a.podNamespace("", "outside")
	for _, ns := range []string{w.nsP, w.nsQ, w.nsBlue, w.nsPlain, w.nsOut} {
		w.listen(t, ns, attack.Listener{Kind: "sniff"})
	}
	// The node's uplink is in its own namespace: only what its IP stack takes counts, and not the errors that it
	// sends to itself when a packet has its own address as source.
	w.listen(t, a.NS, attack.Listener{Kind: "raw-udp"}, attack.Listener{Kind: "raw-udp", IPv6: true})
	return w
}

// sender describes the interface of a pod on its network.
func (w *forgedWorld) sender(n network.Network, p PodPort) adversary.Sender {
	var gateways []netip.Prefix
	for _, h := range must(n.HostSubnets(w.a.node.ID))(w.a.t) {
		gateways = append(gateways, n.GatewayIn(h))
	}
	return adversary.Sender{Device: fmt.Sprintf("%s%s%d", p.Namespace, p.Pod, n.ID), MAC: network.MACOf(p.IPs), NextMAC: network.MACOf(gateways), Addrs: mapAddrs(p.IPs)}
}

// nodesAddresses are the addresses of a network that are not pods': of the router, the node, and its gateway router.
func (w *forgedWorld) nodesAddresses(n network.Network) (out []netip.Addr) {
	for _, h := range must(n.HostSubnets(w.a.node.ID))(w.a.t) {
		out = append(out, n.GatewayIn(h).Addr(), n.ManagementIn(h).Addr())
	}
	plan := testPlan(true)
	return slices.Concat(out, mapAddrs(n.JoinGateway(w.a.node.ID)), mapAddrs(plan.MasqueradeGateway(n)), mapAddrs(plan.MasqueradeManagement(n)))
}

// datagrams are the attempts by UDP, which the node's listeners receive.
func datagrams(list []attack.Attempt) []attack.Attempt {
	return slices.DeleteFunc(slices.Clone(list), func(a attack.Attempt) bool { return a.Frame != "" })
}

// TestNativeForgedSources: a pod with NET_RAW sends nothing from the address of another pod, a router, a node or an outside host: nobody
// receives it, and conntrack knows no connection of it. Nor does it take such an address from others on its switch.
func TestNativeForgedSources(t *testing.T) {
	t.Parallel()
	w := newForgedWorld(t, network.SharedGateway)
	pod := w.sender(w.red, w.p)
	var outside, node []netip.Addr
	for f := range 2 {
		outside, node = append(outside, outsideAddr(1, f)), append(node, w.a.node.Addresses[f].Addr())
	}
	others := slices.Concat(mapAddrs(w.q.IPs), mapAddrs(w.blueP.IPs), w.nodesAddresses(w.red), w.nodesAddresses(w.blue), node, outside)
	victims := []string{w.nsQ, w.nsBlue, w.nsPlain, w.nsOut, w.a.NS}
	own := adversary.Sources(pod, pod.Addrs, outside, 7995)
	toNode := datagrams(adversary.Sources(pod, pod.Addrs, node, 7995))
	w.attacks(t, "a forged source", w.nsP, adversary.Sources(pod, others, slices.Concat(outside, node, mapAddrs(w.q.IPs)), 7995), victims,
		map[string][]attack.Attempt{w.nsOut: own, w.a.NS: toNode})
	table := w.a.must("ovs-appctl", "-t", w.a.Path("vswitchd.ctl"), "dpctl/dump-conntrack")
	if !regexp.MustCompile(fmt.Sprintf(`src=%s,dst=%s,sport=7995,dport=%d`, regexp.QuoteMeta(pod.Addrs[0].String()), regexp.QuoteMeta(outside[0].String()), attack.Port)).MatchString(table) {
		t.Errorf("conntrack does not know the pod's own connection:\n%s", table)
	}
	masquerade := mapAddrs(testPlan(true).MasqueradeGateway(w.red)) // of the pod's own packets
	for _, a := range others {
		if entry := fmt.Sprintf("orig=(src=%s,", a); strings.Contains(table, entry) && !slices.Contains(masquerade, a) && !slices.Contains(node, a) {
			t.Errorf("conntrack knows a connection from %s:\n%s", a, table)
		}
	}
	q := adversary.Victim{Addrs: mapAddrs(w.q.IPs), MAC: network.MACOf(w.q.IPs)}
	claimed := slices.Concat(mapAddrs(w.q.IPs), w.nodesAddresses(w.red))
	w.attacks(t, "a claim", w.nsP, adversary.Claims(pod, claimed, q), []string{w.nsQ, w.nsOut, w.a.NS}, map[string][]attack.Attempt{w.nsQ: adversary.Sources(pod, pod.Addrs, q.Addrs, 7995)})
}

// TestNativeForgedErrors: no tenant's pod sends another tenant's pod an ICMP error about its connection. A router outside does.
func TestNativeForgedErrors(t *testing.T) {
	t.Parallel()
	w := newForgedWorld(t, network.SharedGateway)
	pod := w.sender(w.red, w.p)
	const asking, asked = 7995, 7997
	for f := range 2 {
		// The next hop answers with its address on the link, and knows the way back.
		server, node := w.a.node.NextHops[f], w.a.node.Addresses[f].Addr()
		echo(t, w.nsOut, netip.AddrPortFrom(server, asked))
		if _, err := exchange(w.nsBlue, asking, netip.AddrPortFrom(server, asked), "hello"); err != nil {
			t.Fatal(err)
		}
		router := testPlan(true).MasqueradeGateway(w.blue)[f].Addr()
		entry := regexp.MustCompile(fmt.Sprintf(`orig=\(src=%s,dst=%s,sport=(\d+),dport=%d\),reply=\(src=%[2]s,dst=%[4]s,sport=%[3]d,dport=(\d+)\)`,
			regexp.QuoteMeta(router.String()), regexp.QuoteMeta(server.String()), asked, regexp.QuoteMeta(node.String())))
		table := w.a.must("ovs-appctl", "-t", w.a.Path("vswitchd.ctl"), "dpctl/dump-conntrack")
		ports := entry.FindStringSubmatch(table)
		if ports == nil {
			t.Fatalf("conntrack does not know blue's connection to %s:\n%s", server, table)
		}
		inside, outside := must(strconv.ParseUint(ports[1], 10, 16))(t), must(strconv.ParseUint(ports[2], 10, 16))(t)
		quoted := attack.Quoted{From: netip.AddrPortFrom(node, uint16(outside)), To: netip.AddrPortFrom(server, asked)}
		var list []attack.Attempt
		own := pod.Addrs[f]
		for _, to := range slices.Concat([]netip.Addr{node, router, w.blueP.IPs[f].Addr()}, []netip.Addr{outsideAddr(1, f)}) {
			for _, q := range []attack.Quoted{quoted, {From: netip.AddrPortFrom(router, uint16(inside)), To: quoted.To}, {From: netip.AddrPortFrom(w.blueP.IPs[f].Addr(), asking), To: quoted.To}} {
				list = append(list, adversary.Errors(attack.Attempt{Socket: "packet", Device: pod.Device, SrcMAC: pod.MAC, DstMAC: pod.NextMAC, Src: own.String(), To: to.String()}, q)...)
			}
		}
		w.attacks(t, "a forged error", w.nsP, list, []string{w.nsBlue, w.nsPlain}, map[string][]attack.Attempt{w.a.NS: datagrams(adversary.Sources(pod, []netip.Addr{own}, []netip.Addr{node}, 7995))})
		fromRouter := attack.Attempt{Socket: "hdrincl", Src: server.String(), To: node.String()}
		w.attacks(t, "an error of another connection", w.nsOut, adversary.Errors(fromRouter, attack.Quoted{From: netip.AddrPortFrom(node, uint16(outside)^1), To: quoted.To}), []string{w.nsBlue, w.nsP},
			map[string][]attack.Attempt{w.nsBlue: adversary.Errors(fromRouter, quoted)[:2]})
	}
}

// TestNativeFromOutside: a machine beside the cluster that has the node as its next hop reaches no pod, gateway router or cluster IP, from
// its own address or another. It reaches the node.
func TestNativeFromOutside(t *testing.T) {
	for _, mode := range []network.GatewayMode{network.SharedGateway, network.LocalGateway} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := newForgedWorld(t, mode)
			var own, node, services, pods []netip.Addr
			for f := range 2 {
				own, node = append(own, w.a.node.NextHops[f]), append(node, w.a.node.Addresses[f].Addr())
				services = append(services, testPlan(true).ServiceCIDRs[f].Addr().Next())
			}
			for _, ns := range [][]netip.Prefix{w.p.IPs, w.blueP.IPs, testPod(testDefault(true), w.a.node, network.DefaultName, "plain", "p", 3, false).IPs} {
				pods = append(pods, mapAddrs(ns)...)
			}
			inside := slices.Concat(pods, services, w.nodesAddresses(w.red), w.nodesAddresses(w.blue))
			mac := strings.TrimSpace(mustRun(t, "ip", "netns", "exec", w.nsOut, "cat", "/sys/class/net/"+native.OutsideLink+"/address"))
			from := slices.Concat(own, node, w.nodesAddresses(w.red), mapAddrs(w.q.IPs))
			control := adversary.FromOutside(native.OutsideLink, mac, w.a.node.BridgeMAC, own, node)
			control = slices.DeleteFunc(datagrams(control), func(a attack.Attempt) bool { return a.DstMAC != w.a.node.BridgeMAC })
			w.attacks(t, "a packet from outside", w.nsOut, adversary.FromOutside(native.OutsideLink, mac, w.a.node.BridgeMAC, from, inside),
				[]string{w.nsP, w.nsQ, w.nsBlue, w.nsPlain, w.a.NS}, map[string][]attack.Attempt{w.a.NS: control})
		})
	}
}
