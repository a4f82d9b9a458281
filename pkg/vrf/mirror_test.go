// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// A VRF device that is gone stays gone, whether its own deletion or the event
// of it reaches the mirror first.
func TestMirrorForgetsDevice(t *testing.T) {
	w := Watched{TableBase: 100000, MaxID: 4095}
	device := func(index int) *netlink.Vrf {
		return &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Index: index, Name: "mp7-udn-vrf", Group: Group}, Table: 100007}
	}
	for what, forget := range map[string]func(*Kernel){
		"the event first": func(k *Kernel) { k.linkEvent(device(22), true, w); k.mirror.delDevice(22) },
		"the event last":  func(k *Kernel) { k.mirror.delDevice(22); k.linkEvent(device(22), true, w) },
		"an event of its last change, then the deletion's": func(k *Kernel) {
			k.mirror.delDevice(22)
			k.linkEvent(device(22), false, w)
			k.linkEvent(device(22), true, w)
		},
	} {
		t.Run(what, func(t *testing.T) {
			k := &Kernel{mirror: newMirror()}
			if c, ok := k.linkEvent(device(22), false, w); !ok || c.ID != 7 || k.DeviceIndex(100007) != 22 {
				t.Fatalf("the device that came: %+v %t, index %d", c, ok, k.DeviceIndex(100007))
			}
			forget(k)
			if got := k.DeviceIndex(100007); got != 0 {
				t.Errorf("index %d of a device that is gone", got)
			}
			if len(k.mirror.all) > 0 {
				t.Errorf("links that are gone: %v", k.mirror.all)
			}
			k.linkEvent(device(33), false, w)
			if got := k.DeviceIndex(100007); got != 33 {
				t.Errorf("index %d of the next one, want 33", got)
			}
		})
	}
}
