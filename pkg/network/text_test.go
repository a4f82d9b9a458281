// SPDX-License-Identifier: Apache-2.0

package network

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestShorten(t *testing.T) {
	const limit = 20
	for name, c := range map[string]struct{ text, want string }{
		"short":          {"node a", "node a"},
		"longest":        {strings.Repeat("x", 20), strings.Repeat("x", 20)},
		"too long":       {strings.Repeat("x", 21), strings.Repeat("x", 16) + " …"},
		"between runes":  {strings.Repeat("é", 11), strings.Repeat("é", 8) + " …"},
		"inside a rune":  {"x" + strings.Repeat("é", 10), "x" + strings.Repeat("é", 7) + " …"},
		"of three bytes": {strings.Repeat("…", 7), strings.Repeat("…", 5) + " …"},
	} {
		if got := Shorten(c.text, limit); got != c.want || len(got) > limit || !utf8.ValidString(got) {
			t.Errorf("%s: %q, %d bytes", name, got, len(got))
		}
	}
}
