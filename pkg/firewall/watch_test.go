// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"testing"

	"github.com/vishvananda/netlink/nl"
)

// message returns the payload of an nfnetlink event: four bytes of header, then
// attributes.
func message(attrs ...*nl.RtAttr) []byte {
	out := []byte{1, 0, 0, 0}
	for _, a := range attrs {
		out = append(out, a.Serialize()...)
	}
	return out
}

func TestParseEvents(t *testing.T) {
	tableName := func(s string) *nl.RtAttr { return nl.NewRtAttr(1, []byte(s)) }
	id := func(n uint32) *nl.RtAttr { return nl.NewRtAttr(attrGenID, binary.BigEndian.AppendUint32(nil, n)) }
	for name, c := range map[string]struct {
		data []byte
		ours bool
	}{
		"our table":              {message(tableName(Table + "\x00")), true},
		"our table, not first":   {message(nl.NewRtAttr(2, []byte("x\x00\x00\x00")), tableName(Table+"\x00")), true},
		"another table":          {message(tableName("filter\x00")), false},
		"our name as a prefix":   {message(tableName(Table + "2\x00")), false},
		"a prefix of our name":   {message(tableName(Table[:3] + "\x00")), false},
		"another attribute":      {message(nl.NewRtAttr(3, []byte(Table+"\x00"))), false},
		"no attribute":           {message(), false},
		"too short for a header": {[]byte{1, 0}, false},
		"truncated":              {message(tableName(Table + "\x00"))[:9], false},
	} {
		if got := isOurTable(c.data); got != c.ours {
			t.Errorf("%s: ours %t, want %t", name, got, c.ours)
		}
	}
	for name, c := range map[string]struct {
		data []byte
		want uint32
	}{
		"only attribute": {message(id(7)), 7}, "second attribute": {message(nl.NewRtAttr(9, []byte{1, 2, 3, 4}), id(1<<31+5)), 1<<31 + 5},
		"none": {message(), 0}, "too short": {message(nl.NewRtAttr(attrGenID, []byte{1, 2})), 0}, "no header": {nil, 0},
	} {
		if got := generationOf(c.data); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func FuzzEvents(f *testing.F) {
	f.Add(message(nl.NewRtAttr(1, []byte(Table+"\x00"))))
	f.Add(message(nl.NewRtAttr(attrGenID, []byte{0, 0, 0, 7})))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 1, 0})
	f.Add([]byte{0, 0, 0, 0, 5, 0, 1, 0, 1}) // without padding
	f.Fuzz(func(_ *testing.T, data []byte) {
		isOurTable(data)
		generationOf(data)
	})
}
