// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
)

// kernelRule is any program's policy rule. The fields besides Rule are those that our rules do not
// use.
type kernelRule struct {
	Rule
	Not    bool // the rule matches all other packets
	Source netip.Prefix
	Out    string // interface to which the sender's socket is bound
	L3mdev bool   // looks up the table of the packet's VRF device
}

// dumpRules returns the messages for the rules of both IP families.
func (k *Kernel) dumpRules() ([][]byte, error) {
	var out [][]byte
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		msgs, err := netdump.List(func() ([][]byte, error) {
			req := nl.NewNetlinkRequest(unix.RTM_GETRULE, unix.NLM_F_DUMP)
			req.AddData(nl.NewIfInfomsg(family))
			return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWRULE)
		})
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list rules: %w", err)
		}
		out = append(out, msgs...)
	}
	return out, nil
}

// parseRule parses a rule, and reports whether it is ours. What it cannot parse is not.
func parseRule(m []byte) (r kernelRule, isOurs bool) {
	if len(m) < unix.SizeofRtMsg {
		return r, false
	}
	msg := nl.DeserializeRtMsg(m)
	attrs, err := netdump.Attributes(m[msg.Len():])
	if err != nil {
		return r, false
	}
	r.IPv6, r.Table, r.Not = msg.Family == unix.AF_INET6, int(msg.Table), msg.Flags&unix.FIB_RULE_INVERT != 0
	if r.Action = RuleAction(msg.Type); r.Action == unix.RTN_UNICAST { // FR_ACT_TO_TBL
		r.Action = Lookup
	}
	native := nl.NativeEndian()
	for _, at := range attrs {
		v := at.Value
		number := 0
		if len(v) >= 4 {
			number = int(native.Uint32(v))
		}
		switch at.Attr.Type {
		case nl.FRA_PROTOCOL:
			isOurs = len(v) >= 1 && v[0] == Protocol
		case nl.FRA_TABLE:
			r.Table = number
		case nl.FRA_PRIORITY:
			r.Priority = number
		case nl.FRA_GOTO:
			r.Goto = number
		case nl.FRA_FWMARK:
			r.Mark = uint32(number)
		case nl.FRA_FWMASK:
			r.Mask = uint32(number)
		case nl.FRA_IIFNAME:
			r.From = unix.ByteSliceToString(v)
		case nl.FRA_OIFNAME:
			r.Out = unix.ByteSliceToString(v)
		case nl.FRA_L3MDEV:
			r.L3mdev = len(v) >= 1 && v[0] != 0
		case nl.FRA_SUPPRESS_PREFIXLEN:
			r.Specific = len(v) >= 4 && number == 0
		case nl.FRA_DST:
			r.To = rulePrefix(v, int(msg.Dst_len))
		case nl.FRA_SRC:
			r.Source = rulePrefix(v, int(msg.Src_len))
		}
	}
	return r, isOurs
}

func rulePrefix(addr []byte, bits int) netip.Prefix {
	a, ok := netip.AddrFromSlice(addr)
	if !ok {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, bits)
}
