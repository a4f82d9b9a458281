// SPDX-License-Identifier: Apache-2.0

package story

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/test/lab"
)

func TestReach(t *testing.T) {
	want := map[string]string{"tcp:a": "red/a", "icmp:a": "red/a", "udp:b": "red/b"}
	for name, c := range map[string]struct {
		answer func(target string, try int) probe
		tries  int
		again  int
		err    string
	}{
		"at once":        {func(to string, _ int) probe { return probe{OK: true, Who: who(to)} }, 1, 0, ""},
		"one late":       {func(to string, try int) probe { return probe{OK: to != "udp:b" || try > 2, Who: who(to)} }, 3, 2, ""},
		"never":          {func(to string, _ int) probe { return probe{OK: to != "tcp:a", Who: who(to), Detail: "timeout"} }, 0, 0, `tcp:a ("red/a") not reached within ` + patience.String() + `: timeout`},
		"another":        {func(string, int) probe { return probe{OK: true, Who: "red/b"} }, 1, 0, `tcp:a reached "red/b" instead of "red/a"`},
		"another, later": {func(string, int) probe { return probe{OK: true, Who: "red/a"} }, 1, 0, `udp:b reached "red/a" instead of "red/b"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				again, err := reach(func(list []string) ([]probe, error) {
					if tries++; !slices.IsSorted(list) {
						t.Errorf("targets %q", list)
					}
					time.Sleep(5 * time.Second)
					var out []probe
					for _, to := range list {
						p := c.answer(to, tries)
						p.Target = to
						out = append(out, p)
					}
					return out, nil
				}, want)
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, want %q", err, c.err)
				}
				if c.tries > 0 && (tries != c.tries || again != c.again) {
					t.Errorf("%d tries, %d again; want %d, %d", tries, again, c.tries, c.again)
				}
			})
		})
	}
}

// TestSlow: probes that wait for other checks' fail only if nothing new answers for long.
func TestSlow(t *testing.T) {
	list := []string{"tcp:a", "tcp:b", "tcp:c", "tcp:d"}
	// ask takes most of the time that a check waits, and the next target answers, up to limit.
	ask := func(limit int) func([]string) ([]probe, error) {
		answering := 0
		return func(targets []string) ([]probe, error) {
			time.Sleep(patience * 3 / 4)
			answering = min(answering+1, limit)
			var out []probe
			for _, to := range targets {
				out = append(out, probe{Target: to, OK: slices.Contains(list[:answering], to), Who: "s"})
			}
			return out, nil
		}
	}
	want := map[string]string{}
	for _, to := range list {
		want[to] = "s"
	}
	synctest.Test(t, func(t *testing.T) {
		if _, err := reach(ask(4), want); err != nil {
			t.Error(err)
		}
		if _, err := answered(ask(4), list, []string{"s"}, 1); err != nil {
			t.Error(err)
		}
		if _, err := reach(ask(3), want); err == nil || !strings.Contains(err.Error(), `tcp:d ("s") not reached within`) {
			t.Errorf("reach: %v", err)
		}
		if _, err := answered(ask(3), list, []string{"s"}, 1); err == nil || !strings.Contains(err.Error(), "and no more within") {
			t.Errorf("answered: %v", err)
		}
	})
}

// TestNoTargets: a check whose list of targets is empty fails, and not only reach.
func TestNoTargets(t *testing.T) {
	if _, err := reach(func([]string) ([]probe, error) { return nil, nil }, nil); err == nil {
		t.Error("reach passes without targets")
	}
	if _, err := (&World{}).check(t.Context(), &pod{Name: "a"}, "", time.Second); err == nil {
		t.Error("a probe from a pod passes without targets")
	}
	if _, err := nodeProbe(t.Context(), &lab.Node{}, time.Second); err == nil {
		t.Error("a probe from a node passes without targets")
	}
}

// who is the server that answers at a target; a ping names none.
func who(target string) string {
	if strings.HasPrefix(target, "icmp") {
		return ""
	}
	return "red/" + target[len(target)-1:]
}
