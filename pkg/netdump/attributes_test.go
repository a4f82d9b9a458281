// SPDX-License-Identifier: Apache-2.0

package netdump

import (
	"testing"
)

// FuzzAttributes: no message makes the parser panic, and a value is a part of the message.
func FuzzAttributes(f *testing.F) {
	f.Add([]byte{8, 0, 1, 0, 1, 2, 3, 4})
	f.Add([]byte{5, 0, 1, 0, 1}) // without padding
	f.Add([]byte{3, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		attrs, err := Attributes(b)
		size := 0
		for _, a := range attrs {
			size += len(a.Value)
		}
		if err == nil && size > len(b) {
			t.Errorf("%d bytes of values in a message of %d", size, len(b))
		}
	})
}

func TestAttributes(t *testing.T) {
	attrs, err := Attributes([]byte{8, 0, 1, 0, 1, 2, 3, 4, 5, 0, 2, 0, 9})
	if err != nil || len(attrs) != 2 || len(attrs[1].Value) != 1 || attrs[1].Value[0] != 9 {
		t.Errorf("%v, %v", attrs, err)
	}
}
