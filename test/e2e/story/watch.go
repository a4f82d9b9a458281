// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// watch is continuous traffic from a pod, by netprobe watch.
type watch struct{ *stream }

// watched is what netprobe watch counts from the moment that traffic flows.
type watched struct {
	Sent                   int
	Lost                   []int // sequence numbers
	LongestLossMillis      int64 // the longest time in which all pings were lost
	Duplicates             int   // replies to a ping beyond the first
	SendError              string
	SlowestMillis          int64
	StreamLines            int
	StreamLongestGapMillis int64
	StreamError            string
}

// watch starts traffic from a pod and waits until it flows.
func (w *World) watch(ctx context.Context, from *pod, args ...string) (*watch, error) {
	s, err := w.start(ctx, from, "", append([]string{"/tools/netprobe", "watch"}, args...)...)
	if err != nil {
		return nil, err
	}
	line, err := s.firstLine(ctx)
	if err == nil && line != "flowing" {
		err = fmt.Errorf("%s: traffic does not begin to flow: %s", s.what, line)
	}
	if err != nil {
		s.kill()
		return nil, err
	}
	return &watch{s}, nil
}

// result ends the traffic and returns what netprobe counted.
func (s *watch) result(ctx context.Context) (watched, error) {
	out, err := s.wait(ctx)
	if err != nil {
		return watched{}, err
	}
	var r watched
	_, result, _ := strings.Cut(out, "\n")
	if err := json.Unmarshal([]byte(result), &r); err != nil {
		return watched{}, fmt.Errorf("read netprobe's output %q: %w", out, err)
	}
	return r, nil
}

// pingsError is an error if pings could not be sent, were answered twice, or are too few
// to say anything.
func (r watched) pingsError() error {
	if r.Duplicates > 0 || r.SendError != "" || r.Sent < 100 {
		return fmt.Errorf("%d pings sent, %d answered twice, send error %q", r.Sent, r.Duplicates, r.SendError)
	}
	return nil
}
