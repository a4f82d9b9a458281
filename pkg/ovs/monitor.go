// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// watchSwitch sends whenever the bridge's flows may be others than before:
// somebody changed them, or ovs-vswitchd is another process. It holds an OpenFlow
// connection to the bridge's management socket, which lives exactly as long as
// the process, and monitors all flows. Where the switch refuses that, the
// connection is made again and again, and each time sends.
func watchSwitch(ctx context.Context, socket string) <-chan struct{} {
	out := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			_ = monitorFlows(ctx, socket, func() {
				select {
				case out <- struct{}{}:
				default:
				}
			})
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	return out
}

// OpenFlow 1.0, which every Open vSwitch speaks, with Nicira's flow monitor.
const (
	ofVersion      = 1
	ofHello        = 0
	ofError        = 1
	ofEchoRequest  = 2
	ofEchoReply    = 3
	ofVendor       = 4
	ofStatsRequest = 16
	ofStatsReply   = 17
	ofHeader       = 8 // version, type, length, transaction

	nicira = 0x2320
)

// monitorAll asks to be told of flows that are added, deleted and modified, in
// all tables. An answer comes at once: by then the monitor is in place.
func monitorAll() []byte {
	const monitor, added, deleted, modified, anyPort, allTables = 2, 1 << 1, 1 << 2, 1 << 3, 0xffff, 0xff
	b := []byte{ofVersion, ofStatsRequest, 0, 40, 0, 0, 0, 2}
	b = binary.BigEndian.AppendUint32(b, 0xffff<<16) // statistics of a vendor, no flags
	b = binary.BigEndian.AppendUint32(b, nicira)
	b = binary.BigEndian.AppendUint64(b, monitor<<32) // and padding
	b = binary.BigEndian.AppendUint32(b, 1)           // the monitor's id
	b = binary.BigEndian.AppendUint16(b, added|deleted|modified)
	b = binary.BigEndian.AppendUint16(b, anyPort)
	b = binary.BigEndian.AppendUint16(b, 0) // a match of no length matches all
	return append(b, allTables, 0, 0, 0, 0, 0)
}

// monitorFlows calls touched when the monitor is in place and whenever it tells
// something, and answers echo requests until the connection ends.
func monitorFlows(ctx context.Context, socket string, touched func()) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write(append([]byte{ofVersion, ofHello, 0, ofHeader, 0, 0, 0, 1}, monitorAll()...)); err != nil {
		return err
	}
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
		case ofStatsReply, ofVendor: // flows, or that some are not told for now
			touched()
		case ofError:
			touched()
			return fmt.Errorf("the switch refuses to tell of its flows: % x", body)
		case ofEchoRequest:
			head[1] = ofEchoReply
			if _, err := conn.Write(append(head[:], body...)); err != nil {
				return err
			}
		}
	}
}
