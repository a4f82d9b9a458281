// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/test/native"
)

// A virtual machine moves to the other node: its address, MAC and gateway stay, and
// everything reaches it there.
func TestNativeLiveMigration(t *testing.T) {
	r, zones := nativeZones(t)
	a, b := zones[0], zones[1]
	red := testNetwork(1, "red_net", network.Layer2, network.RolePrimary, "dual")
	source, target, peer := nativePod(red, a, "vm1", 3), nativePod(red, b, "vm2", 4), nativePod(red, a, "p", 5)
	target.MAC, target.IPs = network.MACOf(source.IPs), source.IPs
	source.MAC = target.MAC
	// migrate converges both zones, the disabled port first as the builder orders it.
	on := func(at int) nativeNetwork {
		pods := [2][]PodPort{{source, peer}, {target}}
		for i := range pods {
			pods[i][0].Disabled = i != at
		}
		return nativeNetwork{red, pods}
	}
	migrate := func(at int) {
		n := on(at)
		for i, z := range zones {
			in := n.inputs(zones, i)
			for j, p := range n.pods[1-i] {
				in.RemotePods[j].Disabled = p.Disabled
			}
			converge(t, z.nb, red, z.node, in)
		}
	}
	migrate(0)
	for i, z := range zones {
		for _, p := range on(0).pods[i] {
			z.plugPod(red, p)
		}
	}
	from := a.podNamespace("red", "p")
	vms := []string{a.podNamespace("red", "vm1"), b.podNamespace("red", "vm2")}
	for _, at := range []int{0, 1, 0} {
		migrate(at)
		for _, z := range zones {
			z.waitRemotePorts()
		}
		for f := range 2 {
			checkReach(t, r, []reach{
				{"the gateway from the virtual machine", vms[at], red.GatewayIn(red.Subnets[f].CIDR).Addr()},
				{"another pod from the virtual machine", vms[at], peer.IPs[f].Addr()},
			}, []reach{{"the gateway from the pod without the virtual machine", vms[1-at], red.GatewayIn(red.Subnets[f].CIDR).Addr()}})
			received := packetsIn(t, vms[at])
			checkReach(t, r, []reach{{"the virtual machine", from, source.IPs[f].Addr()}}, nil)
			if packetsIn(t, vms[at]) == received {
				t.Errorf("the virtual machine on node %d received nothing", at+1)
			}
		}
	}
}

// packetsIn returns the number of ICMP echo requests that a namespace has received.
func packetsIn(t *testing.T, ns string) string {
	t.Helper()
	out := mustRun(t, "ip", "netns", "exec", ns, "cat", "/proc/net/snmp", "/proc/net/snmp6")
	var icmp []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "Icmp: ") || strings.HasPrefix(line, "Icmp6InEchos") {
			icmp = append(icmp, line)
		}
	}
	return strings.Join(icmp, "")
}

// A virtual machine on a Localnet network moves to the other node. The physical
// network learns its new place from OVN: the virtual machine itself sends nothing.
func TestNativeLiveMigrationLocalnet(t *testing.T) {
	r, zones := nativeZones(t)
	a, b := zones[0], zones[1]
	joinPhysical(t, r, zones)
	red := testNetwork(1, "red_net", network.Localnet, network.RoleSecondary, "dual")
	target, peers := nativePod(red, b, "vm2", 4), [2]PodPort{nativePod(red, a, "p", 5), nativePod(red, b, "q", 6)}
	migrate := func(source PodPort, at int) {
		pods := [2][]PodPort{{source, peers[0]}, {target, peers[1]}}
		for i := range zones {
			pods[i][0].Disabled = i != at
		}
		for i, z := range zones {
			converge(t, z.nb, red, z.node, nativeNetwork{red, pods}.inputs(zones, i))
		}
	}
	source := nativePod(red, a, "vm1", 3)
	target.MAC, target.IPs = network.MACOf(source.IPs), source.IPs
	source.MAC = target.MAC
	migrate(source, 0)
	a.plugPod(red, source)
	b.plugPod(red, target)
	for i, z := range zones {
		z.plugPod(red, peers[i])
	}
	vms := []string{a.podNamespace("red", "vm1"), b.podNamespace("red", "vm2")}
	from := []string{a.podNamespace("red", "p"), b.podNamespace("red", "q")}
	for at := range zones {
		if at > 0 {
			migrate(source, at)
		}
		for f := range 2 {
			for node := range zones {
				received := packetsIn(t, vms[at])
				checkReach(t, r, []reach{{fmt.Sprintf("the virtual machine on node %d, from node %d", at+1, node+1), from[node], source.IPs[f].Addr()}}, nil)
				if packetsIn(t, vms[at]) == received {
					t.Errorf("the virtual machine on node %d received nothing", at+1)
				}
			}
			checkReach(t, r, []reach{{"another pod from the virtual machine", vms[at], peers[1-at].IPs[f].Addr()}},
				[]reach{{"another pod from the pod without the virtual machine", vms[1-at], peers[at].IPs[f].Addr()}})
		}
	}
}

// OVN answers a virtual machine's DHCP clients, on the node that it runs on.
func TestNativeDHCP(t *testing.T) {
	t.Parallel()
	r, zones := nativeZones(t)
	red := testNetwork(1, "red_net", network.Layer2, network.RolePrimary, "dual")
	red.MTU = 1300
	vm, pod := nativePod(red, zones[0], "vm", 3), nativePod(red, zones[0], "p", 4)
	vm.VirtualMachine = "web"
	vm.MAC = network.MACOf(vm.IPs)
	pods := [2][]PodPort{{vm, pod}, {}}
	dns := []ExposedService{{Namespace: "kube-system", Name: "kube-dns", DNS: true, ClusterIPs: addrs("10.96.0.10", "fd96::a")}}
	for i, z := range zones {
		in := nativeNetwork{red, pods}.inputs(zones, i)
		in.Exposed = dns
		converge(t, z.nb, red, z.node, in)
	}
	script := filepath.Join(t.TempDir(), "lease")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho event=$1; env\n"), 0o755); err != nil { //nolint:gosec // a script
		t.Fatal(err)
	}
	for _, p := range pods[0] {
		zones[0].plugPod(red, p)
	}
	lease := func(p PodPort, client string, args ...string) (string, error) {
		link := fmt.Sprintf("red%s%d", p.Pod, red.ID)
		argv := append([]string{"ip", "netns", "exec", zones[0].podNamespace("red", p.Pod)}, r.Argv("busybox", append([]string{client, "-i", link, "-f", "-n", "-q", "-s", script}, args...)...)...)
		return native.Run([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, argv...)
	}
	for _, c := range []struct {
		client string
		args   []string
		want   []string
	}{
		{"udhcpc", []string{"-t", "10", "-T", "1", "-O", "mtu", "-O", "hostname"}, []string{
			"event=bound", "ip=" + vm.IPs[0].Addr().String(), "mask=16", "router=" + red.GatewayIn(red.Subnets[0].CIDR).Addr().String(),
			"dns=10.96.0.10", "mtu=1300", "hostname=web", "lease=3500",
		}},
		{"udhcpc6", []string{"-t", "10", "-T", "1", "-O", "dns"}, []string{"event=bound", "ipv6=" + vm.IPs[1].Addr().StringExpanded(), "dns=" + netip.MustParseAddr("fd96::a").StringExpanded()}},
	} {
		eventually(t, c.client, func() error {
			out, err := lease(vm, c.client, c.args...)
			for _, w := range c.want {
				if err == nil && !strings.Contains("\n"+out, "\n"+w+"\n") {
					err = fmt.Errorf("no %s", w)
				}
			}
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
		if out, err := lease(pod, c.client, "-t", "2", "-T", "1"); err == nil {
			t.Errorf("%s: a pod that is no virtual machine has a lease: %s", c.client, out)
		}
	}
}
