// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// mirror holds what the kernel cannot be asked for by network: our rules by
// table, our VRF devices by index, and the names that addresses' events need.
type mirror struct {
	rules   map[int]map[Rule]struct{}
	devices map[int]mirrorDevice
	byTable map[int]map[int]struct{} // table → indexes of devices
	links   map[int]string           // management ports and the bridge, by index
	all     map[int]struct{}         // every link's index
}

type mirrorDevice struct {
	name  string
	table int
}

func newMirror() mirror {
	return mirror{rules: map[int]map[Rule]struct{}{}, devices: map[int]mirrorDevice{}, byTable: map[int]map[int]struct{}{}, links: map[int]string{}, all: map[int]struct{}{}}
}

func (m *mirror) addRule(r Rule) {
	if m.rules[r.Table] == nil {
		m.rules[r.Table] = map[Rule]struct{}{}
	}
	m.rules[r.Table][r] = struct{}{}
}

func (m *mirror) delRule(r Rule) {
	delete(m.rules[r.Table], r)
	if len(m.rules[r.Table]) == 0 {
		delete(m.rules, r.Table)
	}
}

func (m *mirror) setDevice(index int, name string, table int) {
	m.delDevice(index)
	m.devices[index] = mirrorDevice{name, table}
	if m.byTable[table] == nil {
		m.byTable[table] = map[int]struct{}{}
	}
	m.byTable[table][index] = struct{}{}
}

func (m *mirror) delDevice(index int) {
	old, ok := m.devices[index]
	if !ok {
		return
	}
	delete(m.devices, index)
	delete(m.byTable[old.table], index)
	if len(m.byTable[old.table]) == 0 {
		delete(m.byTable, old.table)
	}
}

func (m *mirror) rulesOf(table int) []Rule {
	var out []Rule
	for r := range m.rules[table] {
		out = append(out, r)
	}
	return out
}

func (m *mirror) devicesOf(table int) []string {
	var out []string
	for i := range m.byTable[table] {
		out = append(out, m.devices[i].name)
	}
	return out
}

// DeviceIndex is the index of our VRF device with that table; 0: there is none.
func (k *Kernel) DeviceIndex(table int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.mirror.byTable[table] {
		return i
	}
	return 0
}

func (m *mirror) tables() []int {
	var out []int
	for t := range m.rules {
		out = append(out, t)
	}
	for t := range m.byTable {
		out = append(out, t)
	}
	return out
}

// fillMirror reads all links and rules anew. Events that come meanwhile wait
// in the socket and are applied over it.
func (k *Kernel) fillMirror() error {
	fresh := newMirror()
	var links []netlink.Link
	err := undisturbed(func() (err error) {
		links, err = k.h.LinkList()
		return err
	})
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		fresh.all[a.Index] = struct{}{}
		if v, ok := l.(*netlink.Vrf); ok && ours(l) {
			fresh.setDevice(a.Index, a.Name, int(v.Table))
		}
		if a.Name == k.bridge || strings.HasPrefix(a.Name, portPrefix) {
			fresh.links[a.Index] = a.Name
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		var msgs [][]byte
		err := undisturbed(func() (err error) {
			req := nl.NewNetlinkRequest(unix.RTM_GETRULE, unix.NLM_F_DUMP)
			req.AddData(nl.NewIfInfomsg(family))
			msgs, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWRULE)
			return err
		})
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list rules: %w", err)
		}
		for _, m := range msgs {
			if r, ok := parseRule(m); ok {
				fresh.addRule(r)
			}
		}
	}
	k.mu.Lock()
	k.mirror = fresh
	k.mu.Unlock()
	return nil
}
