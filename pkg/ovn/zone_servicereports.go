// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
)

// serviceReport collects what is not served of a Service.
type serviceReport struct {
	zone    *Zone
	service *corev1.Service
	text    string
	send    []func()
}

// lastReport is what was reported of a Service last.
type lastReport struct {
	text string
	at   time.Time
}

// repeatReport is how often the same report is repeated: events expire after an hour. Services are built more often, at audits.
const repeatReport = time.Hour

func (r *serviceReport) warn(message string, args ...any) {
	r.text += fmt.Sprintln(append([]any{message}, args...)...)
	r.send = append(r.send, func() { r.zone.log.Warn(message, args...) })
}

func (r *serviceReport) event(reason, format string, args ...any) {
	r.text += reason + ": " + fmt.Sprintf(format, args...) + "\n"
	r.send = append(r.send, func() { r.zone.serviceEvent(r.service, reason, format, args...) })
}

// tell sends the report if it is new.
func (r *serviceReport) tell(now time.Time) {
	key := r.service.Namespace + "/" + r.service.Name
	last := r.zone.lastReports[key]
	switch {
	case len(r.send) == 0:
		delete(r.zone.lastReports, key)
	case last.text != r.text || now.Sub(last.at) >= repeatReport:
		r.zone.lastReports[key] = lastReport{r.text, now}
		for _, send := range r.send {
			send()
		}
	}
}

// serviceEvent reports a problem to the Service's author.
func (z *Zone) serviceEvent(s *corev1.Service, reason, format string, args ...any) {
	z.events.Event(&corev1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: s.Namespace, Name: s.Name, UID: s.UID}, corev1.EventTypeWarning, reason, network.Shorten(fmt.Sprintf(format, args...), network.MaxEvent))
}
