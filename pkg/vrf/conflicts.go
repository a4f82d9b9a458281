// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// foreign is what other programs, or the operator, have configured in the kernel's routing.
type foreign struct {
	rules   []kernelRule
	vrfs    []cachedDevice
	own     []string // devices whose packets may be those of networks
	haveVRF bool     // a VRF device of ours exists
	ipv6    bool     // the kernel has IPv6
}

// Conflicts says what others have configured in the kernel's routing that may lead packets of networks
// elsewhere, or others' packets into networks, each with a remedy. It dumps all policy rules.
func (k *Kernel) Conflicts(ctx context.Context) ([]string, error) {
	f := foreign{ipv6: k.HasIPv6(), own: []string{"lo", k.bridge}}
	rules, err := k.dumpRules()
	if err != nil {
		return nil, err
	}
	for _, m := range rules {
		if r, isOurs := parseRule(m); !isOurs {
			f.rules = append(f.rules, r)
		}
	}
	k.mu.Lock()
	for _, d := range k.cache.foreign {
		f.vrfs = append(f.vrfs, d)
	}
	for _, name := range k.cache.links {
		f.own = append(f.own, name)
	}
	for _, d := range k.cache.devices {
		f.own, f.haveVRF = append(f.own, d.name), true
	}
	k.mu.Unlock()
	return f.conflicts(), ctx.Err()
}

// l3mdevPriority is that of the rule which the kernel adds with the first VRF device. It looks up
// the table of a packet's device.
const l3mdevPriority = 1000

// conflicts returns a message per kind of rule: some programs have a rule per pod.
func (f foreign) conflicts() []string {
	var before, marks []kernelRule
	l3mdev := map[bool]int{} // IPv6 → priority
	for _, r := range f.rules {
		switch {
		case r.L3mdev:
			l3mdev[r.IPv6] = r.Priority
		case !r.Not && r.Mark&r.Mask&network.MarkMask != 0:
			marks = append(marks, r)
		case f.comesBefore(r):
			before = append(before, r)
		}
	}
	var out []string
	if len(before) > 0 {
		out = append(out, fmt.Sprintf("policy rules that are not Bulkhead's come before its own and may match packets of networks: %s: give them priorities from %d", describe(before), network.RuleEgressIP+1000))
	}
	if len(marks) > 0 {
		out = append(out, fmt.Sprintf("policy rules of other programs match mark bits that Bulkhead uses, so that their packets would take a network's routes: %s: let these programs use other bits than %#x", describe(marks), network.MarkMask))
	}
	for _, v6 := range families(f.ipv6) {
		if priority, ok := l3mdev[v6]; f.haveVRF && (!ok || priority >= network.FirstRule) {
			out = append(out, fmt.Sprintf("the kernel's policy rule for VRF devices is missing, or comes too late, so that packets of networks use the main table: run %s rule add l3mdev priority %d", program(v6), l3mdevPriority))
		}
	}
	for _, d := range f.vrfs {
		if isShared(d.table) {
			out = append(out, fmt.Sprintf("VRF device %s has table %d, which Bulkhead uses for all networks: give it another table", d.name, d.table))
		}
	}
	slices.Sort(out)
	return out
}

// comesBefore reports whether r may match a packet of a network before the kernel's rule for VRF
// devices, or before ours if the packet has the network's mark.
func (f foreign) comesBefore(r kernelRule) bool {
	others := func(dev string) bool { return dev != "" && !slices.Contains(f.own, dev) }
	switch {
	case r.Priority > network.LastRule, r.Action == Nop, r.Action == Lookup && r.Table == unix.RT_TABLE_LOCAL, others(r.From), others(r.Out):
		return false
	case !r.Not && r.Mark&r.Mask != 0: // packets of networks do not have others' marks
		return false
	case !r.Not && r.Mask&network.MarkMask != 0: // only packets without a network's mark
		return r.Priority <= l3mdevPriority
	}
	return true
}

// mostRules is how many rules a message names.
const mostRules = 3

// describe names the first rules.
func describe(rules []kernelRule) string {
	slices.SortStableFunc(rules, func(a, b kernelRule) int {
		return cmp.Or(compareBool(a.IPv6, b.IPv6), cmp.Compare(a.Priority, b.Priority))
	})
	var texts []string
	for _, r := range rules {
		texts = append(texts, r.String())
	}
	if more := len(texts) - mostRules; more > 0 {
		texts = append(texts[:mostRules], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// program is the command that shows rules of an IP family.
func program(ipv6 bool) string {
	if ipv6 {
		return "ip -6"
	}
	return "ip"
}

// String is the rule in the words of the program ip.
func (r kernelRule) String() string {
	text := fmt.Sprintf("%s rule %d ", program(r.IPv6), r.Priority)
	if r.Not {
		text += "not "
	}
	text += "from all"
	if r.Source.IsValid() {
		text = strings.TrimSuffix(text, "all") + r.Source.String()
	}
	if r.To.IsValid() {
		text += " to " + r.To.String()
	}
	if r.Mask != 0 {
		text += fmt.Sprintf(" fwmark %#x/%#x", r.Mark, r.Mask)
	}
	if r.From != "" {
		text += " iif " + r.From
	}
	if r.Out != "" {
		text += " oif " + r.Out
	}
	switch {
	case r.L3mdev:
		return text + " lookup [l3mdev-table]"
	case r.Action == Lookup:
		return fmt.Sprintf("%s lookup %d", text, r.Table)
	case r.Action == Goto:
		return fmt.Sprintf("%s goto %d", text, r.Goto)
	default:
		return text
	}
}
