// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"bulkhead/pkg/network"
)

// The kernel asks for a router's MAC address although nothing sends to it, says when it is learnt, and
// when another router takes over.
func TestKernelNeighbours(t *testing.T) {
	run := ownNamespace(t)
	router := exec.Command("unshare", "--net", "sleep", "infinity")
	if err := router.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = router.Process.Kill(); _ = router.Wait() })
	run(fmt.Sprintf(`
until [ "$(readlink /proc/%[1]d/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
ip link add br-ex address 02:00:00:00:00:07 type veth peer name router address 02:00:00:00:00:01
ip link set router netns %[1]d
nsenter -t %[1]d -n ip link set router up
ip link set br-ex up
ip addr add 192.0.2.7/24 dev br-ex
ip addr add 2001:db8::7/64 dev br-ex nodad
nsenter -t %[1]d -n ip addr add 192.0.2.1/24 dev router
nsenter -t %[1]d -n ip addr add fe80::1/64 dev router nodad`, router.Process.Pid))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type event struct {
		link int
		host netip.Addr
		mac  string
	}
	events := make(chan event, 100)
	var kernel KernelNeighbours
	routers := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fe80::1")}
	kernel.Watch(ctx, func(link int, host netip.Addr, mac string) { events <- event{link, host, mac} })
	link, macs, err := kernel.MACs("br-ex", routers)
	if err != nil || len(macs) > 0 {
		t.Fatalf("before anything was sent: %v, %v", macs, err)
	}
	learnt := func(mac string) {
		t.Helper()
		missing := slices.Clone(routers)
		deadline := time.After(20 * time.Second)
		for len(missing) > 0 {
			select {
			case e := <-events:
				if i := slices.Index(missing, e.host); i >= 0 && e.link == link && e.mac == mac {
					missing = slices.Delete(missing, i, i+1)
				}
			case <-deadline:
				t.Fatalf("no event for %v", missing)
			}
		}
		_, macs, err := kernel.MACs("br-ex", routers)
		if err != nil || macs[routers[0]] != mac || macs[routers[1]] != mac {
			t.Errorf("MAC addresses %v, want %s: %v", macs, mac, err)
		}
	}
	learnt("02:00:00:00:00:01")
	run(fmt.Sprintf("nsenter -t %d -n ip link set router address 02:00:00:00:00:02; ip neigh flush dev br-ex", router.Process.Pid))
	if _, macs, err = kernel.MACs("br-ex", routers); err != nil || len(macs) > 0 {
		t.Errorf("after the entries were flushed: %v, %v", macs, err)
	}
	learnt("02:00:00:00:00:02")
	if _, _, err := kernel.MACs("none", routers); err == nil {
		t.Error("a bridge that does not exist has neighbours")
	}
}

// A node's annotation does not decide how many flows other nodes have.
func TestProtectedLimit(t *testing.T) {
	n := network.Node{Name: "n2", BridgeMAC: "02:00:00:00:00:02"}
	for a := netip.MustParseAddr("10.0.0.1"); len(n.Addresses) < 5000; a = a.Next() {
		n.Addresses = append(n.Addresses, netip.PrefixFrom(a, 24))
	}
	hosts := protected(network.Node{BridgeMAC: "02:00:00:00:00:01"}, []network.Node{n}, nil)
	if len(hosts.Addresses) != maxPerNode || len(hosts.MACs) != 2 {
		t.Errorf("%d addresses, MAC addresses %v", len(hosts.Addresses), hosts.MACs)
	}
}
