// SPDX-License-Identifier: Apache-2.0

package firewall

import "testing"

// canonical returns the format of Build, whatever the format in nft's output.
func TestCanonical(t *testing.T) {
	for _, c := range []struct {
		set  string
		key  []string
		want string
	}{
		{SetLocked4, []string{"10.244.0.3"}, "10.244.0.3"}, {SetLocked6, []string{"fd00:0:0::3"}, "fd00::3"},
		{SetOwn, []string{`"ovn-k8s-mp7"`, "0x70000"}, "ovn-k8s-mp7 . 0x00070000"}, {SetOwn, []string{"ovn-k8s-mp7", "458752"}, "ovn-k8s-mp7 . 0x00070000"},
		{SetServices4, []string{"10.96.0.1", "tcp", "443"}, "10.96.0.1 . tcp . 443"}, {SetServices6, []string{"fd10:96::0:a", "udp", "53"}, "fd10:96::a . udp . 53"},
		{SetServices4, []string{"10.96.0.1", "6", "443"}, "10.96.0.1 . tcp . 443"}, {SetServices6, []string{"fd10:96::a", "17", "6"}, "fd10:96::a . udp . 6"},
		{SetServices6, []string{"fd10:96::a", "132", "17"}, "fd10:96::a . sctp . 17"},
	} {
		if got := canonical(setTypes[c.set].key, c.key); got != c.want {
			t.Errorf("%q: %q, want %q", c.key, got, c.want)
		}
	}
}
