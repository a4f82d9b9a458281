// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// TestCountLookups: each flow that matches counts once, on the external bridge until the
// packet enters the integration bridge.
func TestCountLookups(t *testing.T) {
	const trace = `Flow: arp,in_port=1,vlan_tci=0x0000

bridge("br-ex")
---------------
 0. arp,in_port=1, priority 115, cookie 0xb0010000
    resubmit(,3)
 3. priority 100
    output:2

bridge("br-int")
----------------
 0. in_port=4, priority 100
    set_field:0x1->reg13
    resubmit(,8)
 8. metadata=0x3, priority 50
    drop

Final flow: unchanged
Datapath actions: 2
`
	if got := countLookups(trace); got != (lookups{bridge: 2, all: 4}) {
		t.Errorf("%+v, want 2 of the bridge and 4 in all", got)
	}
	if got := countLookups("ovs-vswitchd: no such bridge"); got != (lookups{}) {
		t.Errorf("%+v of an error", got)
	}
}
