// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"
)

// watchFlows calls changed with the cookie of each of the bridge's flows that changes, and
// with 0 if any may have: ovs-vswitchd restarted, or events were lost. It monitors all flows
// over an OpenFlow connection to the bridge's management socket, which ends with the process.
// If the switch rejects the monitor, watchFlows reconnects every second and calls changed each
// time. It logs why a monitor ended, unless the one before ended for the same reason.
func watchFlows(ctx context.Context, socket string, log *slog.Logger, changed func(cookie uint64)) {
	go func() {
		for last := ""; ctx.Err() == nil; {
			err := monitorFlows(ctx, socket, changed)
			if ctx.Err() == nil && err != nil && err.Error() != last {
				last = err.Error()
				log.Warn("the external bridge's flow monitor ended; until the next one starts, others' changes are found once a minute", "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
}

// OpenFlow 1.0, which every Open vSwitch supports, with Nicira's flow monitor.
const (
	ofVersion      = 1
	ofHello        = 0
	ofError        = 1
	ofEchoRequest  = 2
	ofEchoReply    = 3
	ofVendor       = 4
	ofStatsRequest = 16
	ofStatsReply   = 17
	ofHeader       = 8 // length of version, type, length and transaction id

	nicira = 0x2320
)

// monitorRequest requests events for added, deleted and modified flows in all
// tables. The switch replies as soon as the monitor is active.
func monitorRequest() []byte {
	const monitor, added, deleted, modified, anyPort, allTables = 2, 1 << 1, 1 << 2, 1 << 3, 0xffff, 0xff
	b := []byte{ofVersion, ofStatsRequest, 0, 40, 0, 0, 0, 2}
	b = binary.BigEndian.AppendUint32(b, 0xffff<<16) // vendor statistics, no flags
	b = binary.BigEndian.AppendUint32(b, nicira)
	b = binary.BigEndian.AppendUint64(b, monitor<<32) // with padding
	b = binary.BigEndian.AppendUint32(b, 1)           // the monitor's id
	b = binary.BigEndian.AppendUint16(b, added|deleted|modified)
	b = binary.BigEndian.AppendUint16(b, anyPort)
	b = binary.BigEndian.AppendUint16(b, 0) // length of the match: an empty match matches all flows
	return append(b, allTables, 0, 0, 0, 0, 0)
}

// monitorFlows calls changed with 0 when the monitor is active, and then as watchFlows says.
// It replies to echo requests. It returns when the connection ends.
func monitorFlows(ctx context.Context, socket string, changed func(cookie uint64)) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write(append([]byte{ofVersion, ofHello, 0, ofHeader, 0, 0, 0, 1}, monitorRequest()...)); err != nil {
		return err
	}
	active := false
	for {
		var head [ofHeader]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		length := binary.BigEndian.Uint16(head[2:])
		if length < ofHeader {
			return errors.New("OpenFlow message shorter than its header")
		}
		body := make([]byte, length-ofHeader)
		if _, err := io.ReadFull(conn, body); err != nil {
			return err
		}
		switch head[1] {
		case ofStatsReply: // the first one has all flows that exist, or none
			for _, cookie := range changedCookies(body, active) {
				changed(cookie)
			}
			active = true
		case ofVendor: // the monitor pauses, or continues
			changed(0)
		case ofError:
			changed(0)
			return fmt.Errorf("the switch rejects the flow monitor: % x", body)
		case ofEchoRequest:
			head[1] = ofEchoReply
			if _, err := conn.Write(append(head[:], body...)); err != nil {
				return err
			}
		}
	}
}

// changedCookies returns the cookies in the body of a reply of the flow monitor (struct
// nx_flow_update_full of nicira-ext.h), or 0 for what it does not understand.
func changedCookies(body []byte, active bool) []uint64 {
	const (
		header      = 16 // of statistics: type, flags, vendor, subtype, padding
		abbreviated = 3  // event: a change of this connection's own; smaller ones have a cookie
		minimum     = 24
	)
	if !active || len(body) < header {
		return []uint64{0}
	}
	var out []uint64
	for body = body[header:]; len(body) >= 4; {
		length, event := int(binary.BigEndian.Uint16(body)), binary.BigEndian.Uint16(body[2:])
		if length < 4 || length > len(body) || event > abbreviated || event < abbreviated && length < minimum {
			return append(out, 0)
		}
		if event < abbreviated {
			out = append(out, binary.BigEndian.Uint64(body[16:]))
		}
		body = body[length:]
	}
	return out
}
