// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// The cache must not keep a deleted VRF device, whether Kernel's own deletion or
// the event updates the cache first.
func TestCacheDropsDeletedDevice(t *testing.T) {
	tables := TableRange{TableBase: 100000, MaxID: 4095}
	device := func(index int) *netlink.Vrf {
		return &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Index: index, Name: "mp7-udn-vrf", Group: Group}, Table: 100007}
	}
	for name, deleteDevice := range map[string]func(*Kernel){
		"event first": func(k *Kernel) { k.linkEvent(device(22), true, tables); k.cache.delDevice(22) },
		"event last":  func(k *Kernel) { k.cache.delDevice(22); k.linkEvent(device(22), true, tables) },
		"late event of a change, then of the deletion": func(k *Kernel) {
			k.cache.delDevice(22)
			k.linkEvent(device(22), false, tables)
			k.linkEvent(device(22), true, tables)
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := &Kernel{cache: newCache()}
			if c, ok := k.linkEvent(device(22), false, tables); !ok || c.ID != 7 || k.DeviceIndex(100007) != 22 {
				t.Fatalf("new device: %+v %t, index %d", c, ok, k.DeviceIndex(100007))
			}
			deleteDevice(k)
			if got := k.DeviceIndex(100007); got != 0 {
				t.Errorf("index %d of a deleted device", got)
			}
			if len(k.cache.all) > 0 {
				t.Errorf("deleted links: %v", k.cache.all)
			}
			k.linkEvent(device(33), false, tables)
			if got := k.DeviceIndex(100007); got != 33 {
				t.Errorf("index %d of the new device, want 33", got)
			}
		})
	}
}
