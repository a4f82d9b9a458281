// SPDX-License-Identifier: Apache-2.0

package network

import (
	"slices"
	"strings"
	"testing"
)

func TestPodNADs(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"none", "", ""},
		{"default only", `{"default":{}}`, ""},
		{"one", `{"default":{},"red/net":{}}`, "red/net"},
		{"second attachment", `{"red/net":{},"red/net/1":{}}`, "red/net"},
		{"two", `{"red/b":{},"red/a":{}}`, "red/a,red/b"},
		{"malformed", `{"red/b":`, ""},
		{"not an object", `[]`, ""},
		{"malformed keys", `{"/":{},"a/":{},"/b":{},"a,b/c":{}}`, ""},
	} {
		if got := strings.Join(PodNADs(c.in), ","); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func FuzzPodNADs(f *testing.F) {
	f.Add(`{"default":{},"red/net":{"ip_addresses":["10.0.0.1/24"]},"red/net/1":{}}`)
	f.Add(`{"red/net":{"ip_addresses":["fd00::1/64"],"gateway_ips":["fd00::2"],"routes":[{"dest":"::/0","nextHop":"fd00::2"}],"tunnel_id":4}}`)
	f.Fuzz(func(t *testing.T, in string) {
		keys := PodNADs(in)
		if !slices.IsSorted(keys) {
			t.Fatalf("unsorted %q", keys)
		}
		nets, err := ParsePodNetworks(in)
		if err != nil || in == "" {
			return
		}
		out, err := nets.Render()
		if err != nil {
			t.Fatalf("parsed, but cannot be rendered: %v", err)
		}
		if again := PodNADs(out); !slices.Equal(again, keys) {
			t.Fatalf("%q has keys %q, rendered again %q", in, keys, again)
		}
	})
}
