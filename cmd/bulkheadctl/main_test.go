// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

const answer = `{
  "node": {"name": "node1", "id": 1, "chassis": "c1", "encapIPs": ["192.0.2.11"], "bridge": "br-ex", "gatewayMode": "shared"},
  "ready": true,
  "networks": [
    {"id": 0, "name": "default", "topology": "layer3", "role": "primary", "table": 254, "subnets": ["10.244.0.0/16/24"], "managementPort": "ovn-k8s-mp0", "state": "Ready"},
    {"id": 1, "name": "cluster_udn_red", "topology": "layer3", "role": "primary", "vrf": "red", "table": 100001, "subnets": ["10.20.0.0/16/24"],
     "managementPort": "ovn-k8s-mp1", "managementAddresses": ["10.20.0.2/24"], "masquerade": ["169.254.0.12"], "masqueradeGateway": ["169.254.0.11"],
     "pods": ["a/p", "a/q"], "hostPods": ["a/h"], "state": "Waiting", "waiting": ["ovn-k8s-mp1"]}],
  "features": [{"name": "vrf", "ok": false, "reason": "no module", "costs": "tenants' host-network pods"}],
  "counters": {"probe-refused": 3, "probe-allowed": 0},
  "problems": [{"reason": "NoVRF", "message": "no module"}]
}`

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return socket
}

func TestShow(t *testing.T) {
	socket := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(answer)) })
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"networks"}, []string{"cluster_udn_red", "100001", "10.20.0.2/24", "169.254.0.11,169.254.0.12", "2+1 host", "Waiting for ovn-k8s-mp1"}},
		{[]string{"networks", "-o", "json"}, []string{`[`, `"name": "cluster_udn_red"`}},
		{[]string{"status"}, []string{"node1, id 1, ready", "2: 1 Ready, 1 Waiting", "vrf: NO: no module (tenants' host-network pods)", "eBPF probe-refused: 3", "NoVRF"}},
		{[]string{"status", "-o", "json"}, []string{`"probe-refused": 3`}},
	} {
		var out strings.Builder
		if err := run(append(tt.args, "--socket="+socket), &out); err != nil {
			t.Errorf("%v: %v", tt.args, err)
		}
		for _, want := range tt.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v: %q is missing from\n%s", tt.args, want, out.String())
			}
		}
	}
}

func TestRefused(t *testing.T) {
	broken := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusServiceUnavailable) })
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"network"}, "use status or networks"},
		{[]string{"status", "-o", "xml"}, "use table or json"},
		{[]string{"status", "extra"}, `"extra"`},
		{[]string{"status", "--socket=/nonexistent/agent.sock"}, "does it run on this node"},
		{[]string{"status", "--socket=" + broken}, "busy"},
	} {
		var out strings.Builder
		if err := run(tt.args, &out); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: got %v, want an error with %q", tt.args, err, tt.want)
		}
	}
}
