// SPDX-License-Identifier: Apache-2.0

package story

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Attempts count once the controls beside them answer. What answers in any try has answered.
func TestAttempts(t *testing.T) {
	controls := map[string]string{"tcp:own": "red/own"}
	var list []string
	for i := range 50 {
		list = append(list, fmt.Sprint("tcp:", i))
	}
	for name, c := range map[string]struct {
		ok      func(target string, try int) (ok bool, who string)
		tries   int
		reached []string
		err     string
	}{
		"nothing answers but the control":    {func(to string, _ int) (bool, string) { return to == "tcp:own", "red/own" }, 4, nil, ""},
		"the control answers the third time": {func(to string, try int) (bool, string) { return to == "tcp:own" && try >= 3, "red/own" }, 6, nil, ""},
		"one answers before the control": {func(to string, try int) (bool, string) {
			return to == "tcp:own" && try > 1 || to == "tcp:7" && try == 1, "red/own"
		}, 5, []string{"tcp:7"}, ""},
		"another answers as the control": {func(to string, _ int) (bool, string) { return to == "tcp:own", "red/other" }, 0, nil, `tcp:own ("red/own"): "red/other"`},
		"nothing answers":                {func(string, int) (bool, string) { return false, "" }, 0, nil, "attempts prove nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				w := &World{shared: &shared{asking: make(chan struct{}, sideBySide)}}
				got, err := w.attempts(func(timeout time.Duration, list []string) ([]probe, error) {
					tries++
					time.Sleep(timeout)
					var out []probe
					for _, to := range list {
						ok, who := c.ok(to, tries)
						out = append(out, probe{Target: to, OK: ok, Who: who})
					}
					return out, nil
				}, list, controls)
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Fatalf("%v, want %q", err, c.err)
				}
				if err != nil {
					return
				}
				var reached []string
				for i, g := range got {
					if g.Target != list[i] {
						t.Errorf("result %d is of %q", i, g.Target)
					}
					if g.OK {
						reached = append(reached, g.Target)
					}
				}
				if len(got) != len(list) || tries != c.tries || !slices.Equal(reached, c.reached) {
					t.Errorf("%d results, %d tries, reached %q; want %d, %d, %q", len(got), tries, reached, len(list), c.tries, c.reached)
				}
			})
		})
	}
	if _, err := (&World{}).attempts(nil, list, nil); err == nil {
		t.Error("attempts without controls are accepted")
	}
}
