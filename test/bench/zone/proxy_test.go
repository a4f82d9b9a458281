// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"
)

func TestProxyCountsWrites(t *testing.T) {
	p := &proxy{}
	p.count(io.TeeReader(strings.NewReader(
		`{"id":1,"method":"monitor_cond_since","params":["OVN_Northbound",{},{}]}`+
			`{"id":2,"method":"transact","params":["OVN_Northbound",{"op":"select","table":"NB_Global","where":[]}]}`+
			`{"id":3,"method":"transact","params":["OVN_Northbound",{"op":"wait","table":"A"},{"op":"insert","table":"A","row":{}}]}`+
			`{"id":4,"method":"transact","params":["OVN_Northbound",{"op":"mutate","table":"A","mutations":[]}]}`+
			`{"id":5,"method":"echo","params":[]}`), io.Discard))
	if got := p.traffic(); got.writes != 2 || got.bytes < 100 || got.last.IsZero() {
		t.Errorf("counted %+v, want 2 writes", got)
	}
}
