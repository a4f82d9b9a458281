// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestParseOpenPorts(t *testing.T) {
	for value, want := range map[string]string{
		"": "", "[]": "", "- {protocol: tcp, port: 80}": "tcp/80",
		"- protocol: UDP\n  port: 53\n- protocol: icmp\n- protocol: tcp\n  port: 443\n- protocol: tcp\n  port: 80\n- {protocol: tcp, port: 80}\n": "icmp tcp/80 tcp/443 udp/53",
		`[{"protocol":"sctp","port":65535}]`: "sctp/65535",
	} {
		got, err := ParseOpenPorts(value)
		var names []string
		for _, p := range got {
			names = append(names, p.String())
		}
		if err != nil || strings.Join(names, " ") != want {
			t.Errorf("%q: %v, %v, want %q", value, names, err, want)
		}
	}
	for value, want := range map[string]string{
		"tcp/80": "is no list", "{protocol: tcp, port: 80}": "is no list", "- {protocol: tcp, prot: 80}": "is no list", "- {protocol: tcp, port: x}": "is no list",
		"- {protocol: tcp, port: 80}\n- {protocol: gre}": "entry 2: protocol \"gre\"", "- {port: 80}": "entry 1: protocol \"\"",
		"- {protocol: tcp}": "port 0 is not", "- {protocol: tcp, port: 65536}": "port 65536 is not", "- {protocol: udp, port: -1}": "port -1 is not",
		"- {protocol: icmp, port: 8}": "icmp has no ports", "- {protocol: udp, port: 6081}": "the overlay's",
		strings.Repeat("- {protocol: icmp}\n", maxOpenPorts+1): "at most 100",
		// Written out, gigabytes.
		`[&a "` + strings.Repeat("<", 2000) + `", &b [` + strings.Repeat("*a,", 600) + `], ` + strings.Repeat("*b,", 600) + `]`: "anchors or aliases",
		`[&a "` + strings.Repeat("<", 100<<10) + `", ` + strings.Repeat("*a,", 40000) + `]`:                                     "at most 8192 are read",
	} {
		if got, err := ParseOpenPorts(value); err == nil || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%.100q: %v, %v, want an error with %q", value, got, err, want)
		}
	}
}

func FuzzParseOpenPorts(f *testing.F) {
	f.Add("- {protocol: tcp, port: 80}")
	f.Add("- protocol: icmp")
	f.Fuzz(func(t *testing.T, value string) {
		ports, err := ParseOpenPorts(value)
		if err != nil {
			return
		}
		again := ""
		for _, p := range ports {
			again += fmt.Sprintf("- {protocol: %s, port: %d}\n", p.Protocol, p.Port)
		}
		if got, err := ParseOpenPorts(again); err != nil || !slices.Equal(got, ports) {
			t.Errorf("%q → %v → %v, %v", value, ports, got, err)
		}
	})
}
