// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"testing"

	"bulkhead/pkg/network"
)

// merge does not panic on any annotation, and keeps its entries.
func FuzzEntries(f *testing.F) {
	f.Add(`{"default":{},"red/net":{"ip_addresses":["10.0.0.1/24"]},"red/net/1":{"routes":[{}]}}`)
	f.Add(`{"red/net":7}`)
	f.Fuzz(func(t *testing.T, in string) {
		have := State{Entries: entriesOf(in)}
		op := Op{Set: network.PodNetworks{"a/net": {IPs: prefixes("10.20.0.9/24"), MAC: "02:00:00:00:00:01"}}}
		out, err := merge(in, op)
		if err != nil {
			t.Fatal(err)
		}
		got := entriesOf(out)
		if !sameEntry(got["a/net"], op.Set["a/net"]) {
			t.Fatalf("wrote %q", out)
		}
		for key := range have.Entries {
			if _, ok := got[key]; !ok {
				t.Fatalf("%q lost %s: %q", in, key, out)
			}
		}
	})
}
