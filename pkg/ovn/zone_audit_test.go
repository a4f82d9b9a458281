// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (env *zoneEnv) corrections() float64 {
	return testutil.ToFloat64(env.zone.metrics.corrections)
}

// An audit finds rows that were removed, changed or left without an event, in every
// network, and corrects them. It counts nothing while there is nothing to correct.
func TestZoneAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.service("plain", "web", 0, nil, "10.96.0.3")
		env.endpoints("plain", "web", "", "10.244.0.9")
		env.service("red", "web", 0, nil, "10.96.0.4")
		env.endpoints("red", "web", redNet, "10.10.0.4")
		env.run()
		want := map[string]string{"default 10.96.0.3:80": "10.244.0.9:8080", redNet + " 10.96.0.4:80": "10.10.0.4:8080"}
		env.waitForVIPs("at the start", want)
		leave := func(verb Verb, ids ...string) {
			t.Helper()
			var ops []Op
			for _, id := range ids {
				r, ok := env.row(id)
				if !ok {
					t.Fatalf("no row %s", id)
				}
				ops = append(ops, Op{Verb: verb, Row: r})
			}
			env.must(env.nb.Fake.Apply(context.Background(), ops))
		}
		const plain, red = "Service_plain/web_TCP_switch", redNet + "_Service_red/web_TCP_switch"

		time.Sleep(3 * auditInterval)
		synctest.Wait()
		if n := env.corrections(); n != 0 {
			t.Errorf("%v corrections of nothing", n)
		}
		leave(Delete, plain, red)
		if len(env.vips()) != 0 {
			t.Fatal("nothing is missing")
		}
		time.Sleep(auditInterval + 2*auditConfirm)
		env.waitForVIPs("rows that were lost", want)
		if n := env.corrections(); n != 2 {
			t.Errorf("%v corrections of 2 lost rows", n)
		}

		// A service whose rows stay although it is deleted.
		kept, _ := env.row(plain)
		env.must(env.kube.CoreV1().Services("plain").Delete(context.Background(), "web", metav1.DeleteOptions{}))
		gone := maps.Clone(want)
		delete(gone, "default 10.96.0.3:80")
		env.waitForVIPs("a deleted service", gone)
		env.must(env.nb.Fake.Apply(context.Background(), []Op{{Verb: Insert, Row: kept}}))
		if len(env.vips()) != 2 {
			t.Fatal("nothing is left over")
		}
		time.Sleep(auditInterval + 2*auditConfirm)
		env.waitForVIPs("a row that was left", gone)
		if n := env.corrections(); n != 3 {
			t.Errorf("%v corrections after a row that was left, want 3", n)
		}
	})
}

// A difference that an event is about to remove is not the audit's.
func TestZoneAuditAheadOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.service("plain", "web", 0, nil, "10.96.0.3")
		env.endpoints("plain", "web", "", "10.244.0.9")
		env.run()
		env.settle()
		r, _ := env.row("Service_plain/web_TCP_switch")
		env.must(env.nb.Fake.Apply(context.Background(), []Op{{Verb: Delete, Row: r}}))
		env.zone.queue.AddAudit("default")
		time.Sleep(auditConfirm / 2)
		synctest.Wait()
		if len(env.vips()) != 0 {
			t.Error("an audit corrects at once")
		}
		env.zone.queue.AddUnits("default", serviceUnit("plain/web"))
		env.waitForVIPs("after the event", map[string]string{"default 10.96.0.3:80": "10.244.0.9:8080"})
		if n := env.corrections(); n != 0 {
			t.Errorf("%v corrections of what an event has corrected", n)
		}
	})
}
