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
		const plain, red = "Service_plain/web_TCP_switch", redNet + "_Service_red/web_TCP_switch"
		keptRow, _ := env.row(plain)
		// audited changes rows behind the zone's back, and waits until all networks are audited.
		audited := func(what string, want map[string]string, corrections float64, ops ...Op) {
			t.Helper()
			env.must(env.nb.Fake.Apply(context.Background(), ops))
			if maps.Equal(env.vips(), want) != (len(ops) == 0) {
				t.Fatalf("%s: services are %v already", what, env.vips())
			}
			time.Sleep(auditInterval + 2*auditConfirm)
			env.waitForVIPs(what, want)
			env.corrected += corrections
			if n := testutil.ToFloat64(env.zone.metrics.corrections); n != env.corrected {
				t.Errorf("%s: %v corrections, want %v", what, n, env.corrected)
			}
		}
		deletion := func(id string) Op {
			r, _ := env.row(id)
			return Op{Verb: Delete, Row: r}
		}
		audited("nothing to correct", want, 0)
		audited("rows that were lost", want, 2, deletion(plain), deletion(red))
		env.must(env.kube.CoreV1().Services("plain").Delete(context.Background(), "web", metav1.DeleteOptions{}))
		delete(want, "default 10.96.0.3:80")
		env.waitForVIPs("a deleted service", want)
		audited("a row that was left", want, 1, Op{Verb: Insert, Row: keptRow})
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
	})
}
