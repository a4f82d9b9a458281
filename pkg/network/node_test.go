// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// A malformed annotation is named in the error and ignored as a whole. The
// others are parsed.
func manyAddresses(suffix string, n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("%q", fmt.Sprintf("10.1.%d.%d%s", i/250, i%250+1, suffix)))
	}
	return "[" + strings.Join(list, ",") + "]"
}

func TestParseNodeMalformedAnnotation(t *testing.T) {
	valid := map[string]string{
		AnnotationNodeID: "3", AnnotationChassisID: "6e7b1f0c-7a4c-4f0a-8d6c-0e4b6f1f2a33", AnnotationEncapIPs: `["192.0.2.3"]`,
		AnnotationGatewayConfig: `{"default":{"mode":"local","bridge-id":"br-ex","mac-address":"02:00:00:00:00:03","ip-addresses":["192.0.2.3/24","2001:db8::3/64"],"next-hops":["192.0.2.1","fe80::1"]}}`,
	}
	full, err := ParseNode("n", valid)
	if err != nil || !full.Ready() || full.BridgeMAC == "" || len(full.NextHops) != 2 {
		t.Fatalf("valid annotations: %+v, %v", full, err)
	}
	clearFields := map[string]func(*Node){
		AnnotationNodeID:    func(n *Node) { n.ID = 0 },
		AnnotationChassisID: func(n *Node) { n.Chassis = "" },
		AnnotationEncapIPs:  func(n *Node) { n.EncapIPs = nil },
		AnnotationGatewayConfig: func(n *Node) {
			n.Mode, n.Bridge, n.BridgeMAC, n.Addresses, n.NextHops = "", "", "", nil, nil
		},
	}
	gateway := func(old, with string) string { return strings.Replace(valid[AnnotationGatewayConfig], old, with, 1) }
	for _, tt := range []struct{ annotation, value string }{
		{AnnotationNodeID, ""}, {AnnotationNodeID, "0"}, {AnnotationNodeID, "4095"}, {AnnotationNodeID, "1.5"},
		{AnnotationChassisID, ""}, {AnnotationChassisID, "a b"}, {AnnotationChassisID, "a\n"}, {AnnotationChassisID, `a"b`},
		{AnnotationEncapIPs, ""}, {AnnotationEncapIPs, "null"}, {AnnotationEncapIPs, "[]"}, {AnnotationEncapIPs, `[""]`}, {AnnotationEncapIPs, `["0.0.0.0"]`},
		{AnnotationEncapIPs, `["224.0.0.1"]`}, {AnnotationEncapIPs, `["::ffff:192.0.2.3"]`}, {AnnotationEncapIPs, `["192.0.2.3","192.0.2.3"]`},
		{AnnotationEncapIPs, manyAddresses("", maxEncapIPs+1)}, {AnnotationGatewayConfig, gateway(`["192.0.2.3/24","2001:db8::3/64"]`, manyAddresses("/32", maxNodeAddresses+1))},
		{AnnotationGatewayConfig, gateway(`["192.0.2.1","fe80::1"]`, manyAddresses("", maxNodeAddresses+1))},
		{AnnotationGatewayConfig, ""}, {AnnotationGatewayConfig, "{}"}, {AnnotationGatewayConfig, "[]"},
		{AnnotationGatewayConfig, gateway("local", "both")}, {AnnotationGatewayConfig, gateway("02:00:00:00:00:03", "00:00:00:00:00:00")},
		{AnnotationGatewayConfig, gateway("02:00:00:00:00:03", "02:00:00:00:00:03:00:01")}, {AnnotationGatewayConfig, gateway("192.0.2.3/24", "192.0.2.3")},
		{AnnotationGatewayConfig, gateway("192.0.2.3/24", "192.0.2.3/0")}, {AnnotationGatewayConfig, gateway("192.0.2.3/24", "169.254.1.1/16")},
		{AnnotationGatewayConfig, gateway("192.0.2.1", "127.0.0.1")}, {AnnotationGatewayConfig, gateway("fe80::1", "fe80::1%eth0")},
	} {
		a := maps.Clone(valid)
		a[tt.annotation] = tt.value
		want := full
		clearFields[tt.annotation](&want)
		got, err := ParseNode("n", a)
		if err == nil || !strings.Contains(err.Error(), tt.annotation) || !strings.Contains(err.Error(), "node n") {
			t.Errorf("%s %q: error %v", tt.annotation, tt.value, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s %q: %+v, want %+v", tt.annotation, tt.value, got, want)
		}
	}
}

func TestLinks(t *testing.T) {
	n := Node{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24"), netip.MustParsePrefix("2001:db8::7/128")},
		NextHops: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("fe80::1%br-ex")}}
	if got := fmt.Sprint(n.Links()); got != "[192.0.2.0/24 203.0.113.1/32 2001:db8::1/128]" {
		t.Errorf("links %s", got)
	}
}
