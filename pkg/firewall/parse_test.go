// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"testing"

	"github.com/vishvananda/netlink/nl"
)

// message is the payload of an nfnetlink event: four bytes of header, then
// attributes.
func message(attrs ...*nl.RtAttr) []byte {
	out := []byte{1, 0, 0, 0}
	for _, a := range attrs {
		out = append(out, a.Serialize()...)
	}
	return out
}

func TestEvents(t *testing.T) {
	name := func(s string) *nl.RtAttr { return nl.NewRtAttr(1, []byte(s)) }
	id := func(n uint32) *nl.RtAttr { return nl.NewRtAttr(attrGenID, binary.BigEndian.AppendUint32(nil, n)) }
	for what, c := range map[string]struct {
		data []byte
		ours bool
	}{
		"our table":              {message(name(Table + "\x00")), true},
		"our table, not first":   {message(nl.NewRtAttr(2, []byte("x\x00\x00\x00")), name(Table+"\x00")), true},
		"another":                {message(name("filter\x00")), false},
		"one that begins as it":  {message(name(Table + "2\x00")), false},
		"one that it begins as":  {message(name(Table[:3] + "\x00")), false},
		"another attribute":      {message(nl.NewRtAttr(3, []byte(Table+"\x00"))), false},
		"no attribute":           {message(), false},
		"too short for a header": {[]byte{1, 0}, false},
		"cut":                    {message(name(Table + "\x00"))[:9], false},
	} {
		if got := ofTable(c.data); got != c.ours {
			t.Errorf("%s: ours %t, want %t", what, got, c.ours)
		}
	}
	for what, c := range map[string]struct {
		data []byte
		want uint32
	}{
		"a generation": {message(id(7)), 7}, "behind another": {message(nl.NewRtAttr(9, []byte{1, 2, 3, 4}), id(1<<31+5)), 1<<31 + 5},
		"none": {message(), 0}, "too short": {message(nl.NewRtAttr(attrGenID, []byte{1, 2})), 0}, "no header": {nil, 0},
	} {
		if got := generationOf(c.data); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
}

func FuzzEvents(f *testing.F) {
	f.Add(message(nl.NewRtAttr(1, []byte(Table+"\x00"))))
	f.Add(message(nl.NewRtAttr(attrGenID, []byte{0, 0, 0, 7})))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 1, 0})
	f.Fuzz(func(_ *testing.T, data []byte) {
		ofTable(data)
		generationOf(data)
	})
}

// Elements read back as they were written, however nft prints them.
func TestElement(t *testing.T) {
	for _, c := range []struct {
		key  []string
		want string
	}{
		{[]string{"10.244.0.3"}, "10.244.0.3"}, {[]string{"fd00:0:0::3"}, "fd00::3"}, {[]string{`"ovn-k8s-mp7"`}, "ovn-k8s-mp7"},
		{[]string{`"ovn-k8s-mp7"`, "0x1007"}, "ovn-k8s-mp7 . 0x00001007"}, {[]string{"ovn-k8s-mp7", "4103"}, "ovn-k8s-mp7 . 0x00001007"},
		{[]string{"7"}, "7"},
	} {
		if got := element(c.key); got != c.want {
			t.Errorf("%q: %q, want %q", c.key, got, c.want)
		}
	}
}
