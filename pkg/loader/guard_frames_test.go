// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"testing"

	"bulkhead/test/adversary/attack"
)

// On the node's own interfaces, host-network pods send no frames with the tag of a VLAN, which may be a Localnet network's. A
// tenant's pod sends none at all, also where no BPF LSM refuses its packet socket: not as the gateway of the node's link.
func TestRootGuardFrames(t *testing.T) {
	w := newGuardSandbox(t, false)
	w.detachLSM()
	must(t, w.l.Put(PodRow{CgroupID: w.id(w.cg("kubepods/podunbound")), NetworkID: 1, Unbound: true}))
	must(t, w.l.Put(PodRow{CgroupID: w.id(w.cg("kubepods/podtrustedred")), NetworkID: 1, Trusted: true}))
	frames := func(tags ...string) (out []attack.Attempt) {
		for _, pair := range [][2]string{{"192.0.2.9", "192.0.2.254"}, {"2001:db8::9", "2001:db8::fe"}} {
			for _, how := range [][]string{nil, {"ring"}, {"etype=0x88cc"}} {
				out = append(out, attack.Attempt{Socket: "packet", To: pair[0], Src: pair[1], Port: 9, Device: "eth0", SrcMAC: w.own["eth0"], DstMAC: w.mac["eth0"], How: append(how, tags...)})
			}
		}
		return append(out, attack.Attempt{Socket: "packet", Frame: "arp-announcement", To: "192.0.2.254", Src: "192.0.2.254", Device: "eth0", SrcMAC: w.own["eth0"], DstMAC: "ff:ff:ff:ff:ff:ff", How: tags})
	}
	untagged, tagged := [][]attack.Attempt{frames(), frames("tagged")}, [][]attack.Attempt{frames("vlan=100"), frames("vlan=4095"), frames("tagged", "vlan=100")}
	check := func(what, cgroup string, sendsUntagged, sendsTagged bool) {
		t.Helper()
		for _, list := range untagged {
			w.expectAttempts(what+", in no VLAN", cgroup, "eth0", list, sendsUntagged)
		}
		for _, list := range tagged {
			w.expectAttempts(what+", in a VLAN", cgroup, "eth0", list, sendsTagged)
		}
	}
	for _, cgroup := range []string{"kubepods/podred", "kubepods/podplain"} {
		check("without the guard", cgroup, true, true)
	}
	w.attachGuard()
	check("a tenant's pod", "kubepods/podred", false, false)
	check("a pod outside the tenants", "kubepods/podplain", true, false)
	check("an unknown pod", "kubepods/podnew", true, false)
	check("a pod that left its VRF", "kubepods/podunbound", true, false)
	check("a trusted pod", "kubepods/podtrusted", true, true)
	check("a tenant's trusted pod", "kubepods/podtrustedred", true, true)
	check("the administrator", "system/admin", true, true)
}
