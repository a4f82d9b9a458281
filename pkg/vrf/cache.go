// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
	"bulkhead/pkg/network"
)

// cache holds state that the kernel cannot filter by network: our rules, our VRF devices by index, and the link names that address events need.
type cache struct {
	rules    map[int]map[Rule]struct{} // by owner, without branches
	branches map[Rule]struct{}
	leaves   map[Rule]int // leaves below a branch, which may be missing
	devices  map[int]cachedDevice
	byTable  map[int]map[int]struct{} // table → indexes of devices
	foreign  map[int]cachedDevice     // VRF devices that are not ours, by index
	links    map[int]string           // management ports and the bridge, by index
	all      map[int]int              // the master of every link, by index
	bridgeUp bool                     // the external bridge is administratively up
}

type cachedDevice struct {
	name  string
	table int
}

func newCache() cache {
	return cache{rules: map[int]map[Rule]struct{}{}, branches: map[Rule]struct{}{}, leaves: map[Rule]int{}, devices: map[int]cachedDevice{}, byTable: map[int]map[int]struct{}{}, foreign: map[int]cachedDevice{}, links: map[int]string{}, all: map[int]int{}}
}

func (c *cache) addRule(r Rule) {
	if r.isBranch() {
		c.branches[r] = struct{}{}
		return
	}
	owner := r.owner()
	if c.rules[owner] == nil {
		c.rules[owner] = map[Rule]struct{}{}
	}
	if _, ok := c.rules[owner][r]; ok {
		return
	}
	c.rules[owner][r] = struct{}{}
	for _, b := range r.branches() {
		c.leaves[b]++
	}
}

func (c *cache) delRule(r Rule) {
	if r.isBranch() {
		delete(c.branches, r)
		return
	}
	owner := r.owner()
	if _, ok := c.rules[owner][r]; !ok {
		return
	}
	delete(c.rules[owner], r)
	if len(c.rules[owner]) == 0 {
		delete(c.rules, owner)
	}
	for _, b := range r.branches() {
		if c.leaves[b]--; c.leaves[b] == 0 {
			delete(c.leaves, b)
		}
	}
}

// has reports whether the kernel has a rule.
func (c *cache) has(r Rule) bool {
	if r.isBranch() {
		_, ok := c.branches[r]
		return ok
	}
	_, ok := c.rules[r.owner()][r]
	return ok
}

func (c *cache) setDevice(index int, name string, table int) {
	c.delDevice(index)
	c.devices[index] = cachedDevice{name, table}
	if c.byTable[table] == nil {
		c.byTable[table] = map[int]struct{}{}
	}
	c.byTable[table][index] = struct{}{}
}

func (c *cache) delDevice(index int) {
	old, ok := c.devices[index]
	if !ok {
		return
	}
	delete(c.devices, index)
	delete(c.byTable[old.table], index)
	if len(c.byTable[old.table]) == 0 {
		delete(c.byTable, old.table)
	}
}

// rulesOf lists an owner's rules, without leaves that packets do not reach. Branches that lead
// nowhere, which an interrupted change leaves behind, are the cluster default network's.
func (c *cache) rulesOf(owner int) []Rule {
	var out []Rule
	for r := range c.rules[owner] {
		if !slices.ContainsFunc(r.branches(), func(b Rule) bool { return !c.has(b) }) {
			out = append(out, r)
		}
	}
	if owner == MainTable {
		for b := range c.branches {
			if c.leaves[b] == 0 {
				out = append(out, b)
			}
		}
	}
	return out
}

func (c *cache) devicesOf(table int) []string {
	var out []string
	for i := range c.byTable[table] {
		out = append(out, c.devices[i].name)
	}
	return out
}

// foreignDeviceOf returns the VRF device with that table that is not ours; "": none.
func (c *cache) foreignDeviceOf(table int) string {
	for _, d := range c.foreign {
		if d.table == table {
			return d.name
		}
	}
	return ""
}

// DeviceIndex returns the index of our VRF device with that table, or 0.
func (k *Kernel) DeviceIndex(table int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.cache.byTable[table] {
		return i
	}
	return 0
}

func (c *cache) tables() []int {
	var out []int
	for t := range c.rules {
		out = append(out, t)
	}
	for t := range c.byTable {
		out = append(out, t)
	}
	return out
}

// fillCache replaces the cache by a fresh list of links and rules. Events that
// arrive in the meantime wait in the socket and update the new cache.
func (k *Kernel) fillCache() error {
	fresh := newCache()
	links, err := netdump.List(k.h.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		fresh.all[a.Index] = a.MasterIndex
		if v, ok := l.(*netlink.Vrf); ok && ours(l) {
			fresh.setDevice(a.Index, a.Name, int(v.Table))
		} else if ok {
			fresh.foreign[a.Index] = cachedDevice{a.Name, int(v.Table)}
		}
		if a.Name == k.bridge || strings.HasPrefix(a.Name, network.ManagementPrefix) {
			fresh.links[a.Index] = a.Name
		}
		if a.Name == k.bridge {
			fresh.bridgeUp = a.RawFlags&unix.IFF_UP != 0
		}
	}
	rules, err := k.dumpRules()
	if err != nil {
		return err
	}
	for _, m := range rules {
		if r, isOurs := parseRule(m); isOurs {
			fresh.addRule(r.Rule)
		}
	}
	k.mu.Lock()
	k.cache = fresh
	k.mu.Unlock()
	return nil
}
