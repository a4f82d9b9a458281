// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"bulkhead/pkg/cni"
	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
	"bulkhead/pkg/vrf"
)

func TestBuildDoors(t *testing.T) {
	links := []vrf.Link{
		{Index: 1, Name: "lo", Type: "device"}, {Index: 2, Name: "eth0", Type: "device"}, {Index: 3, Name: "br-ex", Type: "openvswitch"},
		{Index: 4, Name: "br-int", Type: "openvswitch"}, {Index: 5, Name: "genev_sys_6081", Type: "geneve"},
		{Index: 6, Name: "ovn-k8s-mp0", Type: "openvswitch"}, {Index: 7, Name: "ovn-k8s-mp7", Type: "openvswitch", Master: 8},
		{Index: 8, Name: "mp7-udn-vrf", Type: "vrf", Table: 100007},
		{Index: 9, Name: "abc_0", Type: "veth", PeerInOtherNetns: true}, {Index: 10, Name: "abc_3", Type: "veth", PeerInOtherNetns: true},
		{Index: 11, Name: "def_0", Type: "veth", PeerInOtherNetns: true}, {Index: 12, Name: "ghi_3", Type: "veth", PeerInOtherNetns: true},
		{Index: 13, Name: "docker1", Type: "veth", PeerInOtherNetns: true}, {Index: 14, Name: "ovn-k8s-mp99999", Type: "device"},
		{Index: 15, Name: "vlan7", Type: "vlan", Master: 8}, {Index: 16, Name: "bond0", Type: "bond"}, {Index: 17, Name: "eth1", Type: "device", Master: 16},
		{Index: 18, Name: "core", Type: "vrf"}, {Index: 19, Name: "vlan9", Type: "vlan", Master: 18}, {Index: 20, Name: "other", Type: "vrf"}, {Index: 21, Name: "fake", Type: "dummy"},
	}
	in := doorInputs{bridge: "br-ex", internal: []string{"br-int"}, tableBase: 100000, joined: map[string]uint32{"core": 7, "fake": 7, "mp7-udn-vrf": 9},
		node: []netip.Prefix{netip.MustParsePrefix("10.244.2.2/24"), netip.MustParsePrefix("fd00:10:244:2::2/64")},
		pods: map[string]podDoor{"abc_0": {locked: true, open: true}, "abc_3": {network: 7}, "def_0": {}, "ghi_3": {network: unknownNetwork}}}
	mac := [6]byte{0x0a, 0x58, 0x0a, 0xf4, 0x02, 0x02}
	peer6 := netip.MustParseAddr("fd00:10:244:2::2")
	want := []loader.DoorRow{
		{Ifindex: 1, Kind: loader.DoorLoopback}, {Ifindex: 2, Kind: loader.DoorOwn}, {Ifindex: 3, Kind: loader.DoorOwn},
		{Ifindex: 6, Kind: loader.DoorDefault}, {Ifindex: 7, Kind: loader.DoorPort, NetworkID: 7}, {Ifindex: 8, Kind: loader.DoorVRF, NetworkID: 7},
		{Ifindex: 9, Kind: loader.DoorLocked, PeerMAC: mac, Peer6: peer6, Open: true}, {Ifindex: 10, Kind: loader.DoorPod, NetworkID: 7},
		{Ifindex: 11, Kind: loader.DoorPod}, {Ifindex: 12, Kind: loader.DoorPod, NetworkID: unknownNetwork}, {Ifindex: 14, Kind: loader.DoorOwn},
		{Ifindex: 15, Kind: loader.DoorLink, NetworkID: 7}, {Ifindex: 16, Kind: loader.DoorOwn}, {Ifindex: 17, Kind: loader.DoorOwn},
		{Ifindex: 18, Kind: loader.DoorVRF, NetworkID: 7}, {Ifindex: 19, Kind: loader.DoorLink, NetworkID: 7}, {Ifindex: 20, Kind: loader.DoorOwn},
		{Ifindex: 21, Kind: loader.DoorOwn},
	}
	for i := range want {
		if k := want[i].Kind; k == loader.DoorPort || k == loader.DoorVRF || k == loader.DoorLink {
			want[i].ForwardFrom = 3
		}
	}
	if got := buildDoors(links, in); !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	// In local gateway mode the kernel forwards replies to the default network's pods too.
	in.mode = network.LocalGateway
	for i := range want {
		if want[i].ForwardFrom != 0 || i == 3 {
			want[i].ForwardFrom = loader.ForwardFromOwn
		}
	}
	if got := buildDoors(links, in); !reflect.DeepEqual(got, want) {
		t.Errorf("local gateway mode\n got %+v\nwant %+v", got, want)
	}
}

// TestGuardPorts: an interface that is missing or cannot be guarded fails CNI ADD.
func TestGuardPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil })
		f.agent.cache.SetNamespace("shop", Namespace{Labelled: true})
		f.setNAD(nad(f.agent.config, "shop", "net", 7))
		ports := []cni.Port{{Name: "abc_0", Namespace: "shop", Pod: "web", NAD: network.DefaultName, Network: network.DefaultName},
			{Name: "abc_3", Namespace: "shop", Pod: "web", NAD: "shop/net", Network: network.UDNName("shop", "net")},
			{Name: "abc_4", Namespace: "shop", Pod: "web", NAD: "shop/other", Network: network.UDNName("shop", "other")}}
		doors := f.agent.hosts.doors
		if err := doors.guardPorts(t.Context(), ports); err == nil || !strings.Contains(err.Error(), "abc_0") {
			t.Errorf("without the interface: %v", err)
		}
		f.kernel.mu.Lock()
		for _, p := range ports {
			f.kernel.AddLink(p.Name)
		}
		f.kernel.mu.Unlock()
		f.set(func() { f.guardErr = errors.New("no such program") })
		if err := doors.guardPorts(t.Context(), ports); err == nil || !strings.Contains(err.Error(), "shop/web") {
			t.Errorf("Guard fails: %v", err)
		}
		f.set(func() { f.guardErr, f.guarded = nil, nil })
		if err := doors.guardPorts(t.Context(), ports); err != nil {
			t.Fatal(err)
		}
		var got []string
		f.set(func() {
			for _, r := range f.guarded {
				got = append(got, fmt.Sprintf("%v %d", r.Kind, r.NetworkID))
			}
		})
		want := []string{fmt.Sprintf("%v 0", loader.DoorLocked), fmt.Sprintf("%v 7", loader.DoorPod), fmt.Sprintf("%v %d", loader.DoorPod, uint32(unknownNetwork))}
		if !slices.Equal(got, want) {
			t.Errorf("guarded %q, want %q", got, want)
		}
		// A reconcile keeps them until Open vSwitch has the ports.
		f.agent.queue.EnqueueHosts()
		kept := func() int {
			n := 0
			for _, d := range f.hosts().Doors {
				if d.Kind == loader.DoorLocked || d.Kind == loader.DoorPod {
					n++
				}
			}
			return n
		}
		eventually(t, "kept while the pod is connected", func() bool { return kept() == len(ports) })
		// One that is connected while the ports are read is guarded, too.
		links, err := f.kernel.Links(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.set(func() { f.listed = func() { doors.connected(ports) } })
		if rows, err := doors.rowsOf(t.Context(), links); err != nil || len(slices.DeleteFunc(rows, func(r loader.DoorRow) bool { return r.Kind != loader.DoorLocked && r.Kind != loader.DoorPod })) != len(ports) {
			t.Errorf("connected during a read: %+v, %v", rows, err)
		}
		if len(doors.connecting) > 0 {
			t.Errorf("still being connected: %v", doors.connecting)
		}
	})
}
