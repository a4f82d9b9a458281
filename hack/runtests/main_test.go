// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	events := `{"Action":"run","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"A/x"}
{"Action":"pass","Package":"p","Test":"A/x"}
{"Action":"output","Package":"p","Test":"A/y","Output":"why it failed\n"}
{"Action":"run","Package":"p","Test":"A/y"}
{"Action":"fail","Package":"p","Test":"A/y"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"B"}
{"Action":"skip","Package":"p","Test":"B"}
{"Action":"fail","Package":"p"}
`
	var out strings.Builder
	if got, want := count(strings.NewReader(events), &out, false), (counts{1, 1, 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !strings.Contains(out.String(), "why it failed") {
		t.Errorf("the reason is missing from %q", out.String())
	}
	if got, want := count(strings.NewReader(events), &out, true), (counts{1, 2, 0}); got != want {
		t.Errorf("no skips allowed: got %+v, want %+v", got, want)
	}
	build := `{"Action":"fail","Package":"p","FailedBuild":"p"}` + "\n"
	if got := count(strings.NewReader(build), &out, false); got.failed != 1 {
		t.Errorf("a package that does not build: %+v", got)
	}
}
