// SPDX-License-Identifier: Apache-2.0

package network

import "strings"

// MaxEvent is the most bytes of an event's message: what users write may be in it, and the API server keeps events for an hour.
const MaxEvent = 1024

// Shorten returns text if it has at most limit bytes, and otherwise its start with an
// ellipsis, in at most limit bytes of valid UTF-8: for what the API server limits, such as
// messages of conditions and notes of events.
func Shorten(text string, limit int) string {
	const end = " …"
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(end)], "") + end
}
