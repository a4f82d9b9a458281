// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"bulkhead/pkg/network"
)

// maxNote is how many bytes an event's note may have (events.k8s.io/v1): the API server refuses
// the event otherwise.
const maxNote = 1024

// shortNotes is a recorder that cuts notes to maxNote.
type shortNotes struct{ events.EventRecorder }

func (r shortNotes) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	r.EventRecorder.Eventf(regarding, related, eventType, reason, action, "%s", network.Shorten(fmt.Sprintf(note, args...), maxNote))
}
