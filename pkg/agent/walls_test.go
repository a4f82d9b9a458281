// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"bulkhead/pkg/cni"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
	"bulkhead/pkg/vrf"
)

// What each interface of the host leads to, and where nobody is to be let in.
func TestDoors(t *testing.T) {
	links := []vrf.Link{
		{Index: 1, Name: "lo", Type: "device"}, {Index: 2, Name: "eth0", Type: "device"}, {Index: 3, Name: "br-ex", Type: "openvswitch"},
		{Index: 4, Name: "br-int", Type: "openvswitch"}, {Index: 5, Name: "genev_sys_6081", Type: "geneve"},
		{Index: 6, Name: "ovn-k8s-mp0", Type: "openvswitch"}, {Index: 7, Name: "ovn-k8s-mp7", Type: "openvswitch"},
		{Index: 8, Name: "mp7-udn-vrf", Type: "vrf", Table: 100007},
		{Index: 9, Name: "abc_0", Type: "veth", PeerInOtherNetns: true}, {Index: 10, Name: "abc_3", Type: "veth", PeerInOtherNetns: true},
		{Index: 11, Name: "def_0", Type: "veth", PeerInOtherNetns: true}, {Index: 12, Name: "ghi_3", Type: "veth", PeerInOtherNetns: true},
		{Index: 13, Name: "docker1", Type: "veth", PeerInOtherNetns: true}, {Index: 14, Name: "ovn-k8s-mp99999", Type: "device"},
	}
	in := doorInputs{bridge: "br-ex", internal: []string{"br-int"}, tableBase: 100000,
		node: []netip.Prefix{netip.MustParsePrefix("10.244.2.2/24"), netip.MustParsePrefix("fd00:10:244:2::2/64")},
		pods: map[string]podDoor{"abc_0": {locked: true}, "abc_3": {network: 7}, "def_0": {}, "ghi_3": {network: noNetwork}}}
	mac := [6]byte{0x0a, 0x58, 0x0a, 0xf4, 0x02, 0x02}
	peer6 := netip.MustParseAddr("fd00:10:244:2::2")
	want := []loader.DoorRow{
		{Ifindex: 1, Kind: loader.DoorLoopback}, {Ifindex: 2, Kind: loader.DoorOwn}, {Ifindex: 3, Kind: loader.DoorOwn},
		{Ifindex: 6, Kind: loader.DoorDefault}, {Ifindex: 7, Kind: loader.DoorPort, NetworkID: 7}, {Ifindex: 8, Kind: loader.DoorVRF, NetworkID: 7},
		{Ifindex: 9, Kind: loader.DoorLocked, PeerMAC: mac, Peer6: peer6}, {Ifindex: 10, Kind: loader.DoorPod, NetworkID: 7},
		{Ifindex: 11, Kind: loader.DoorPod}, {Ifindex: 12, Kind: loader.DoorPod, NetworkID: noNetwork}, {Ifindex: 14, Kind: loader.DoorOwn},
	}
	if got := doors(links, in); !reflect.DeepEqual(got, want) {
		t.Errorf("shared mode:\n got %+v\nwant %+v", got, want)
	}
	in.mode = network.LocalGateway
	for i := range want {
		if k := want[i].Kind; k == loader.DoorPort || k == loader.DoorVRF {
			want[i].ForwardFrom = 3
		}
	}
	if got := doors(links, in); !reflect.DeepEqual(got, want) {
		t.Errorf("local mode:\n got %+v\nwant %+v", got, want)
	}
}

func TestPodPorts(t *testing.T) {
	http := func(port intstr.IntOrString) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: port}}}
	}
	spec := corev1.PodSpec{
		HostNetwork: true,
		InitContainers: []corev1.Container{{StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000}}},
			Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 81}}}},
		Containers: []corev1.Container{
			{LivenessProbe: http(intstr.FromInt32(8080)), ReadinessProbe: http(intstr.FromString("web")), Ports: []corev1.ContainerPort{
				{Name: "web", ContainerPort: 80}, {Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP}, {ContainerPort: 443, Protocol: corev1.ProtocolTCP}}},
			{LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8081)}}},
				ReadinessProbe: http(intstr.FromString("nobody")), StartupProbe: http(intstr.FromInt32(70000)),
				Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8082)}},
					PreStop: &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8083)}}}},
			{LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}}, Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}},
		},
	}
	for what, s := range map[string]corev1.PodSpec{"whole": spec, "as the cache keeps it": trimSpec(spec)} {
		probes, declared := podPorts(s)
		if want := []uint16{80, 8080, 8081, 8082, 8083, 9000}; !slices.Equal(probes, want) {
			t.Errorf("%s: probes %v, want %v", what, probes, want)
		}
		if want := []uint16{80, 81, 443}; !slices.Equal(declared, want) {
			t.Errorf("%s: declared %v, want %v", what, declared, want)
		}
	}
	spec.HostNetwork = false
	if probes, declared := podPorts(trimSpec(spec)); len(probes)+len(declared) > 0 {
		t.Errorf("of a pod with a network of its own: %v %v", probes, declared)
	}
}

// refusals is a ring buffer whose reader waits.
type refusals struct{ events chan loader.Event }

func (r refusals) Next(time.Time) (loader.Event, error) {
	ev, ok := <-r.events
	if !ok {
		return ev, fmt.Errorf("read: %w", os.ErrClosed)
	}
	return ev, nil
}
func (r refusals) Close() error { close(r.events); return nil }

// Each refusal is told with pod and reason, once in five minutes; it ends with its context.
func TestTellRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := newWorld(t, func(p *Parts) { p.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		w.agent.Store.SetNAD(nad(w.agent.Config, "green", "net", 7))
		w.agent.Store.SetPod(Pod{UID: "uid-41", Namespace: "red", Name: "host", HostNetwork: true})
		r := refusals{make(chan loader.Event)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.agent.TellRefusals(ctx, r) }()
		told := func() []string {
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(w.events)
		}
		to := netip.MustParseAddrPort("10.30.0.3:80")
		foreign := loader.Event{CgroupID: 41, NetworkID: 7, Reason: loader.ReasonGuardForeign, Addr: to}
		for range 3 {
			r.events <- foreign
		}
		got := told()
		if len(got) != 1 || !strings.HasPrefix(got[0], "red/host Refused") || !strings.Contains(got[0], "10.30.0.3:80") || !strings.Contains(got[0], loader.ReasonGuardForeign.String()) {
			t.Errorf("three refusals of a pod: %q", got)
		}
		for _, want := range []string{"pod=red/host", "network=green_net", "to=10.30.0.3:80", "reason=" + loader.ReasonGuardForeign.String()} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %s: %s", want, log.String())
			}
		}
		r.events <- loader.Event{CgroupID: 41, Reason: loader.ReasonSetDevice}
		if got := told(); len(got) != 2 {
			t.Errorf("another reason: %q", got)
		}
		r.events <- loader.Event{CgroupID: 99, Reason: loader.ReasonGuardForeign} // no pod that is known: the log alone
		if got := told(); len(got) != 2 || !strings.Contains(log.String(), "cgroup=99") {
			t.Errorf("a process outside all pods: %q %s", got, log.String())
		}
		time.Sleep(tellAgain)
		r.events <- foreign
		if got := told(); len(got) != 3 {
			t.Errorf("after %v: %q", tellAgain, got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}

// An interface that cannot be guarded, or is not there, fails the pod's connection.
func TestGuardPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.agent.Start()
		w.nodeID(3)
		eventually(t, "ready", func() bool { return w.agent.Ready() == nil })
		w.agent.Store.SetNamespace("shop", Namespace{Labelled: true})
		w.agent.nadChanged(w.agent.Store.SetNAD(nad(w.agent.Config, "shop", "net", 7)))
		ports := []cni.Port{{Name: "abc_0", Namespace: "shop", Pod: "web", NAD: network.DefaultName, Network: network.DefaultName},
			{Name: "abc_3", Namespace: "shop", Pod: "web", NAD: "shop/net", Network: network.UDNName("shop", "net")},
			{Name: "abc_4", Namespace: "shop", Pod: "web", NAD: "shop/other", Network: network.UDNName("shop", "other")}}
		if err := w.agent.GuardPorts(t.Context(), ports); err == nil || !strings.Contains(err.Error(), "abc_0") {
			t.Errorf("without the interface: %v", err)
		}
		w.kernel.mu.Lock()
		for _, p := range ports {
			w.kernel.AddLink(p.Name)
		}
		w.kernel.mu.Unlock()
		w.mu.Lock()
		w.guardErr = errors.New("no such program")
		w.mu.Unlock()
		if err := w.agent.GuardPorts(t.Context(), ports); err == nil || !strings.Contains(err.Error(), "shop/web") {
			t.Errorf("without a guard: %v", err)
		}
		w.mu.Lock()
		w.guardErr, w.guarded = nil, nil
		w.mu.Unlock()
		if err := w.agent.GuardPorts(t.Context(), ports); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		var got []string
		for _, r := range w.guarded {
			got = append(got, fmt.Sprintf("%v %d", r.Kind, r.NetworkID))
		}
		w.mu.Unlock()
		// One of a network that is not known is nobody's own.
		want := []string{fmt.Sprintf("%v 0", loader.DoorLocked), fmt.Sprintf("%v 7", loader.DoorPod), fmt.Sprintf("%v %d", loader.DoorPod, uint32(noNetwork))}
		if !slices.Equal(got, want) {
			t.Errorf("guarded %q, want %q", got, want)
		}
		// Until Open vSwitch has them, a look at all keeps them.
		w.agent.Hosts()
		kept := func() int {
			in, _ := w.snapshot()
			n := 0
			for _, d := range in.Doors {
				if d.Kind == loader.DoorLocked || d.Kind == loader.DoorPod {
					n++
				}
			}
			return n
		}
		eventually(t, "kept while the pod is connected", func() bool { return kept() == len(ports) })
		w.agent.Connected(ports)
		if len(w.agent.connecting) > 0 {
			t.Errorf("still being connected: %v", w.agent.connecting)
		}
	})
}

// Lock returns when what locks a pod's address is there, and fails when it could
// not be made; what only opens something may fail.
func TestLockFailsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := Pod{UID: "u1", Namespace: "shop", Name: "web", Networks: network.PodNetworks{
			"default": {IPs: []netip.Prefix{netip.MustParsePrefix("10.244.2.7/24")}, Role: network.RoleInfrastructureLocked}}}
		w := newWorld(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := w.agent.Lock(ctx, pod); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "shop/web") {
			t.Errorf("an agent that has not begun: %v", err)
		}
		cancel()
		w.agent.Start()
		w.nodeID(3)
		eventually(t, "ready", func() bool { return w.agent.Ready() == nil })
		for _, c := range []struct {
			what string
			err  error
			want bool
		}{
			{"eBPF does not close", fmt.Errorf("row: %w", hostnet.ErrNotClosed), false},
			{"eBPF does not open", errors.New("a host-network pod's row"), true},
			{"all is well", nil, true},
		} {
			w.mu.Lock()
			w.hostErr = c.err
			w.mu.Unlock()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := w.agent.Lock(ctx, pod); (err == nil) != c.want || c.want == false && !errors.Is(err, hostnet.ErrNotClosed) {
				t.Errorf("%s: %v", c.what, err)
			}
			cancel()
		}
		if in, _ := w.snapshot(); len(in.Locked) != 1 {
			t.Errorf("locked: %v", in.Locked)
		}
	})
	t.Run("neither nftables nor eBPF", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(p *Parts) { p.Firewall, p.HostNet = nil, nil })
			w.agent.Start()
			w.nodeID(3)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			pod := Pod{UID: "u1", Namespace: "shop", Name: "web", Networks: network.PodNetworks{
				"default": {IPs: []netip.Prefix{netip.MustParsePrefix("10.244.2.7/24")}, Role: network.RoleInfrastructureLocked}}}
			if err := w.agent.Lock(ctx, pod); err == nil || !strings.Contains(err.Error(), "neither nftables nor eBPF") {
				t.Errorf("%v", err)
			}
		})
	})
}

// A host-network pod whose namespace asks for a network that cannot be told
// yet, or any more, is of no network that is known: it keeps what it had.
func TestNetworkOfHostPods(t *testing.T) {
	cfg := testConfig(t)
	s := NewCache()
	s.SetPod(Pod{UID: "u1", Namespace: "shop", Name: "host", HostNetwork: true, OptOut: true})
	of := func() hostnet.Pod { t.Helper(); return s.HostPods()[0] }
	expect := func(what string, id int, unbound bool) {
		t.Helper()
		if p := of(); p.NetworkID != id || p.Unbound != unbound {
			t.Errorf("%s: network %d, unbound %t, want %d, %t", what, p.NetworkID, p.Unbound, id, unbound)
		}
	}
	expect("no label", 0, false)
	s.SetNamespace("shop", Namespace{Labelled: true})
	expect("labelled, without a NAD", hostnet.NetworkUnknown, false)
	s.SetNAD(nad(cfg, "shop", "net", 7))
	expect("with a NAD", 7, false)
	s.SetNAD(network.NAD{Namespace: "shop", Name: "net", Err: errors.New("not JSON")})
	expect("malformed since", hostnet.NetworkUnknown, false)
	s.SetNAD(nad(cfg, "shop", "net", 7))
	expect("mended", 7, false)
	s.DeleteNAD("shop/net")
	expect("deleted", hostnet.NetworkUnknown, false)
	s.SetNamespace("shop", Namespace{Labelled: true, Trusted: true})
	expect("trusted, and asks not to be bound", hostnet.NetworkUnknown, true)
}

// What a pod's author brought about is told as an event of the pod and degrades
// no node; what the node lacks does.
func TestProblemsOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.agent.Start()
		w.nodeID(3)
		eventually(t, "ready", func() bool { return w.agent.Ready() == nil })
		w.agent.setPodForTest(Pod{UID: "u1", Namespace: "shop", Name: "host", HostNetwork: true})
		w.mu.Lock()
		w.problems = []hostnet.Problem{{Pod: "shop/host", Reason: "ProbePortHeld", Message: "port 10250 is held"}}
		w.mu.Unlock()
		w.agent.ReportChanged()
		events := func() []string {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(w.events)
		}
		eventually(t, "told", func() bool {
			return slices.ContainsFunc(events(), func(e string) bool { return strings.HasPrefix(e, "shop/host ProbePortHeld") })
		})
		if _, c := w.snapshot(); c.True() {
			t.Errorf("a pod degraded its node: %+v", c)
		}
		w.mu.Lock()
		w.problems = append(w.problems, hostnet.Problem{Pod: "shop/host", Reason: "VRFMissing", Message: "no VRF"})
		w.mu.Unlock()
		w.agent.ReportChanged()
		eventually(t, "the node's own", func() bool { _, c := w.snapshot(); return c.True() && c.Reason == "VRFMissing" })
		n := 0
		for _, e := range events() {
			if strings.Contains(e, "ProbePortHeld") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("told %d times: %q", n, events())
		}
	})
}
