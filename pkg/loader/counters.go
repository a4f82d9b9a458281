// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf/ringbuf"
)

// Verdict is a program's decision.
type Verdict uint32

const (
	Pass Verdict = iota
	Refuse
)

func (v Verdict) String() string {
	if v == Refuse {
		return "refuse"
	}
	return "pass"
}

// String returns the reason's label in metrics and logs.
func (r Reason) String() string {
	if r >= reasonMax {
		return fmt.Sprintf("reason-%d", uint32(r))
	}
	return reasonInfo[r].label
}

// Text explains the reason to operators.
func (r Reason) Text() string {
	if r >= reasonMax {
		return "reason unknown to this version"
	}
	return reasonInfo[r].text
}

// Verdict returns the verdict that the reason belongs to.
func (r Reason) Verdict() Verdict {
	if r >= reasonMax {
		return Refuse
	}
	return reasonInfo[r].verdict
}

// Counter is the count of one reason, summed over the CPUs.
type Counter struct {
	Verdict Verdict
	Reason  Reason
	Count   uint64
}

// Counters reads all counters, zeros included, in the order of the reasons.
func (l *Loader) Counters() ([]Counter, error) {
	out := make([]Counter, 0, reasonMax)
	for r := Reason(0); r < reasonMax; r++ {
		var perCPU []uint64
		if err := l.maps["bh_counters"].Lookup(uint32(r), &perCPU); err != nil {
			return nil, fmt.Errorf("read counter %s: %w", r, err)
		}
		c := Counter{Verdict: r.Verdict(), Reason: r}
		for _, n := range perCPU {
			c.Count += n
		}
		out = append(out, c)
	}
	return out, nil
}

// Event is one refusal.
type Event struct {
	SinceBoot time.Duration // CLOCK_MONOTONIC
	CgroupID  uint64        // of the process, not of its pod
	TGID      uint32        // in the initial pid namespace
	NetworkID uint32
	Family    uint8 // AF_INET, AF_INET6, or 0 if there is no address
	Protocol  uint8
	Addr      netip.AddrPort // invalid if there is no address
	Reason    Reason
}

// Events reads refusals from the ring buffer. Only one reader may exist at a time.
type Events struct{ r *ringbuf.Reader }

// Events opens the ring buffer. If it is full, events are dropped; the counters
// still count them.
func (l *Loader) Events() (*Events, error) {
	r, err := ringbuf.NewReader(l.maps["bh_events"])
	if err != nil {
		return nil, fmt.Errorf("open ring buffer bh_events: %w", err)
	}
	return &Events{r}, nil
}

// Close makes a blocked Next return os.ErrClosed.
func (e *Events) Close() error { return e.r.Close() }

// Next waits for an event. After the deadline it returns os.ErrDeadlineExceeded; the
// zero deadline never expires.
func (e *Events) Next(deadline time.Time) (Event, error) {
	e.r.SetDeadline(deadline)
	rec, err := e.r.Read()
	if err != nil {
		return Event{}, fmt.Errorf("read ring buffer bh_events: %w", err)
	}
	return decodeEvent(rec.RawSample)
}

func decodeEvent(raw []byte) (Event, error) {
	var b vrfbindBhEvent
	if err := binary.Read(bytes.NewReader(raw), binary.NativeEndian, &b); err != nil {
		return Event{}, errors.Join(fmt.Errorf("decode an event of %d bytes", len(raw)), err)
	}
	ev := Event{SinceBoot: time.Duration(b.Ktime), CgroupID: b.Cgroup, TGID: b.Tgid, NetworkID: b.Netid, Family: b.Family, Protocol: b.Proto, Reason: Reason(b.Reason)}
	if b.Family != 0 {
		ev.Addr = netip.AddrPortFrom(wordsAddr(b.Addr), b.Port)
	}
	return ev, nil
}
