// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
)

// What is not served of a Service is reported when it changes, and again after an hour, however often the Service is built.
func TestServiceReports(t *testing.T) {
	events := record.NewFakeRecorder(10)
	z := newZoneEnv(t).newZone()
	z.events = events
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "plain", Name: "web"}}
	now := time.Unix(0, 0)
	for _, step := range []struct {
		after time.Duration
		text  string
		want  int
	}{
		{0, "203.0.113.1", 1}, {time.Minute, "203.0.113.1", 0}, {time.Minute, "203.0.113.2", 1}, {repeatReport, "203.0.113.2", 1},
		{time.Minute, "", 0}, {time.Minute, "203.0.113.2", 1},
	} {
		now = now.Add(step.after)
		r := serviceReport{zone: z, service: service}
		if step.text != "" {
			r.warn("not served", "address", step.text)
			r.event(reasonExternalIP, "not served: %s", step.text)
		}
		r.tell(now)
		if n := len(events.Events); n != step.want {
			t.Errorf("%s at %s: %d events, want %d", step.text, now, n, step.want)
		}
		for range len(events.Events) {
			<-events.Events
		}
	}
	if len(z.lastReports) != 1 {
		t.Errorf("reports are kept of %d services, want 1", len(z.lastReports))
	}
}
