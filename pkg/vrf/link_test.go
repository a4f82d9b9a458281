// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"fmt"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// Only the links of a master are read.
func TestKernelLinksIn(t *testing.T) {
	newNetns(t)
	k := openKernel(t)
	addVeth(t, "ovn-k8s-mp7", "peer7")
	addVeth(t, "ovn-k8s-mp8", "peer8")
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "master"
	master := &netlink.Bridge{LinkAttrs: attrs} // this needs no VRF
	if err := netlink.LinkAdd(master); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"[]", "[ovn-k8s-mp7]", "[ovn-k8s-mp7 peer8]"} {
		if i > 0 {
			l, err := netlink.LinkByName([]string{"ovn-k8s-mp7", "peer8"}[i-1])
			if err == nil {
				err = netlink.LinkSetMaster(l, master)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		links, err := k.linksIn(master.Index)
		names := []string{}
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		if slices.Sort(names); err != nil || fmt.Sprint(names) != want {
			t.Errorf("links are %v, want %s: %v", names, want, err)
		}
	}
}
