// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"bulkhead/pkg/agent"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
	"bulkhead/pkg/process"
)

// serve serves handler on a unix socket, as the agent does.
func serve(t *testing.T, handler http.HandlerFunc) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "agent.sock")
	l, err := process.ListenUnix(socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return socket
}

// agentState is a state of the agent with two networks.
func agentState() agent.State {
	return agent.State{
		Node: agent.NodeState{Name: "node1", ID: 1, Chassis: "c1", EncapIPs: []netip.Addr{netip.MustParseAddr("192.0.2.11")},
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24")}, NextHops: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Bridge: "br-ex", BridgeMAC: "02:00:00:00:00:01", MTU: 1450, GatewayMode: network.SharedGateway},
		Ready: true,
		Networks: []agent.NetworkState{
			{ID: 0, Name: "default", Topology: network.Layer3, Role: network.RolePrimary, Table: 254, Subnets: []string{"10.244.0.0/16/24"}, ManagementPort: "ovn-k8s-mp0", State: agent.StateReady},
			{ID: 1, Name: "cluster_udn_red", Topology: network.Layer3, Role: network.RolePrimary, VRF: "red", Table: 100001, Subnets: []string{"10.20.0.0/16/24"},
				ManagementPort: "ovn-k8s-mp1", ManagementAddrs: []netip.Prefix{netip.MustParsePrefix("10.20.0.2/24")},
				Masquerade: []netip.Addr{netip.MustParseAddr("169.254.0.12")}, MasqueradeGateway: []netip.Addr{netip.MustParseAddr("169.254.0.11")},
				Pods: []string{"a/p", "a/q"}, HostPods: []string{"a/h"}, State: agent.StateWaiting, Waiting: []string{"ovn-k8s-mp1"}}},
		Features:   []agent.Feature{{Name: "vrf", Reason: "no module", Costs: "tenants' host-network pods"}},
		Kubelet:    agent.KubeletState{By: "eBPF", PIDs: []int{41}, Cgroups: []string{"/kubelet.service"}},
		Locked:     []agent.LockedState{{Address: netip.MustParseAddr("10.244.0.7"), NetworkID: 1}},
		HostPods:   []agent.HostPodState{{Pod: "a/h", NetworkID: 1}, {Pod: "a/i", NetworkID: hostnet.NetworkUnknown}, {Pod: "a/j", NetworkID: hostnet.NetworkUnknown}, {Pod: "a/k", NetworkID: 1, OptOut: true}},
		Counters:   map[string]uint64{"probe-refused": 3, "probe-allowed": 0},
		NFT:        map[string]uint64{"locked": 4},
		Conditions: []agent.Condition{{Type: agent.ConditionDegraded, Status: "True", Reason: "FeatureMissing", Message: "vrf: no module"}},
		Problems:   []agent.Problem{{Reason: "NoVRF", Message: "no module"}},
	}
}

func TestShow(t *testing.T) {
	raw, err := json.MarshalIndent(agentState(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	socket := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(raw) })
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"networks"}, []string{"cluster_udn_red", "layer3", "primary", "10.20.0.0/16/24", " red ", "100001", "ovn-k8s-mp1", "10.20.0.2/24",
			"169.254.0.11,169.254.0.12", "2+1 host", "Waiting for ovn-k8s-mp1"}},
		{[]string{"networks", "-o", "json"}, []string{`[`, `"name": "cluster_udn_red"`}},
		{[]string{"status"}, []string{"node1, id 1, ready", "c1, tunnels at 192.0.2.11", "shared, br-ex 02:00:00:00:00:01, MTU 1450, 192.0.2.10/24, next hops 192.0.2.1",
			"2: 1 Ready, 1 Waiting", "known by eBPF, pids [41], cgroups /kubelet.service", "1 addresses", "4 of tenants: 1 in their networks, 2 whose network is not known, 1 that opted out of VRF binding",
			"vrf: NO: no module (tenants' host-network pods)", "eBPF probe-refused: 3", "nftables locked: 4",
			"BulkheadDegraded True FeatureMissing vrf: no module", "NoVRF: no module"}},
		{[]string{"status", "-o", "json"}, []string{`"probe-refused": 3`}},
	} {
		var out strings.Builder
		if err := run(append(tt.args, "--socket="+socket), &out); err != nil {
			t.Errorf("%v: %v", tt.args, err)
		}
		for _, want := range tt.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v: the output lacks %q:\n%s", tt.args, want, out.String())
			}
		}
	}
}

// TestStateFields: every field that bulkheadctl reads is a field of agent.State.
func TestStateFields(t *testing.T) {
	var full agent.State
	fill(t, reflect.ValueOf(&full).Elem())
	raw, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	var read state
	if err := json.Unmarshal(raw, &read); err != nil {
		t.Fatal(err)
	}
	for _, path := range zeroFields("state", reflect.ValueOf(read)) {
		t.Errorf("the agent does not serve %s", path)
	}
}

// fill sets every exported field below v to a value other than zero.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	switch x := v.Addr().Interface().(type) {
	case *netip.Addr:
		*x = netip.MustParseAddr("192.0.2.1")
		return
	case *netip.Prefix:
		*x = netip.MustParsePrefix("192.0.2.0/24")
		return
	case *time.Time:
		*x = time.Unix(1, 0)
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Int:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(7)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0))
	case reflect.Map:
		elem := reflect.New(v.Type().Elem()).Elem()
		fill(t, elem)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("x"), elem)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(t, v.Field(i))
			}
		}
	default:
		t.Fatalf("%s: fill does not support kind %s", v.Type(), v.Kind())
	}
}

// zeroFields are the paths of fields below v that are zero.
func zeroFields(path string, v reflect.Value) []string {
	var out []string
	switch {
	case v.IsZero():
		out = append(out, path)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			out = append(out, zeroFields(path+"."+v.Type().Field(i).Name, v.Field(i))...)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			out = append(out, zeroFields(path+"[]", v.Index(i))...)
		}
	}
	return out
}

func TestErrors(t *testing.T) {
	failing := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusServiceUnavailable) })
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"network"}, "use status, networks, bgp, trace or restore-uplink"},
		{[]string{"bgp", "--vtysh=", "--socket=" + serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) })}, "-vtysh is empty"},
		{[]string{"bgp", "extra"}, `"extra"`},
		{[]string{"trace", "a/p"}, "NAMESPACE/POD ADDRESS"},
		{[]string{"trace", "a/p", "web"}, "neither an address nor"},
		{[]string{"trace", "--sb-address=unix:/nonexistent", "a/p", "192.0.2.1"}, "read the southbound database"},
		{[]string{"restore-uplink", "extra"}, `"extra"`},
		{[]string{"restore-uplink", "--timeout=10ms", "--ovsdb-address=unix:/nonexistent"}, "is ovsdb-server running?"},
		{[]string{"status", "-o", "xml"}, "use table, or json"},
		{[]string{"trace", "-o", "json", "a/p", "192.0.2.1"}, "use table, or json"},
		{[]string{"status", "extra"}, `"extra"`},
		{[]string{"status", "--socket=/nonexistent/agent.sock"}, "no agent listens on"},
		{[]string{"status", "--socket=" + failing}, "busy"},
	} {
		var out strings.Builder
		if err := run(tt.args, &out); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: got %v, want an error with %q", tt.args, err, tt.want)
		}
	}
}

// Without an agent the error says so, also if one that has ended left its socket.
func TestFetchWithoutAgent(t *testing.T) {
	left := filepath.Join(t.TempDir(), "agent.sock")
	l, err := process.ListenUnix(left)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, socket := range []string{left, left + ".none"} {
		if _, err := fetch(socket); err == nil || !strings.Contains(err.Error(), "check that the agent runs") {
			t.Errorf("%s: %v", socket, err)
		}
	}
}
