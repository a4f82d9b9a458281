// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"testing"

	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
)

// TestHostPods: while the primary network of a labelled namespace is unknown, so
// is the network of its host-network pods, which then keep their binding.
func TestHostPods(t *testing.T) {
	cfg := testConfig(t)
	c := NewCache()
	c.SetPod(Pod{UID: "u1", Namespace: "shop", Name: "host", HostNetwork: true, OptOut: true})
	expect := func(what string, id int, unbound bool) {
		t.Helper()
		if p := c.HostPods()[0]; p.NetworkID != id || p.Unbound != unbound {
			t.Errorf("%s: network %d, unbound %t, want %d, %t", what, p.NetworkID, p.Unbound, id, unbound)
		}
	}
	expect("no label", 0, false)
	c.SetNamespace("shop", Namespace{Labelled: true})
	expect("labelled, without a NAD", hostnet.NetworkUnknown, false)
	c.SetNAD(nad(cfg, "shop", "net", 7))
	expect("with a NAD", 7, false)
	c.SetNAD(network.NAD{Namespace: "shop", Name: "net", Err: errors.New("not JSON")})
	expect("with a malformed NAD", hostnet.NetworkUnknown, false)
	c.SetNAD(nad(cfg, "shop", "net", 7))
	expect("with a corrected NAD", 7, false)
	c.DeleteNAD("shop/net")
	expect("NAD deleted", hostnet.NetworkUnknown, false)
	c.SetNamespace("shop", Namespace{Labelled: true, Trusted: true})
	expect("trusted, with the opt-out annotation", hostnet.NetworkUnknown, true)
}
