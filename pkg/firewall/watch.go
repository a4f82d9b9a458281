// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/netdump"
)

// From linux/netfilter/nf_tables.h.
const (
	groupNFTables = 7
	msgNewGen     = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	msgGetGen     = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN
	attrGenID     = 1 // NFTA_GEN_ID
)

// Watch calls changed with the number of each transaction on our table,
// including our own, and with 0 if events were lost, until ctx ends.
func Watch(ctx context.Context, changed func(generation uint32)) error {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER, groupNFTables)
	if err != nil {
		return fmt.Errorf("subscribe to nftables events: %w", err)
	}
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	ours := false
	for {
		msgs, from, err := s.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			changed(0)
			continue
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return fmt.Errorf("receive nftables events: %w", err)
		case from.Pid != nl.PidKernel:
			continue
		}
		for _, m := range msgs {
			if m.Header.Type != msgNewGen {
				ours = ours || isOurTable(m.Data)
				continue
			}
			// NEWGEN is the last event of a transaction.
			if ours {
				changed(generationOf(m.Data))
			}
			ours = false
		}
	}
}

// generation returns the number of the last transaction in this network namespace.
func generation() (uint32, error) {
	req := nl.NewNetlinkRequest(msgGetGen, 0)
	req.AddRawData([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0})
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, msgNewGen)
	if err != nil {
		return 0, fmt.Errorf("get the number of the last nftables transaction: %w", err)
	}
	if len(msgs) == 0 {
		return 0, errors.New("get the number of the last nftables transaction: no reply")
	}
	return generationOf(msgs[0]), nil
}

func generationOf(data []byte) uint32 {
	if len(data) < 4 {
		return 0
	}
	attrs, err := netdump.Attributes(data[4:])
	if err != nil {
		return 0
	}
	for _, a := range attrs {
		if a.Attr.Type == attrGenID && len(a.Value) >= 4 {
			return binary.BigEndian.Uint32(a.Value)
		}
	}
	return 0
}

// isOurTable reports whether an event is for our table. After the four bytes of
// struct nfgenmsg, attribute 1 is the table's name in every type of event.
func isOurTable(data []byte) bool {
	if len(data) < 4 {
		return false
	}
	attrs, err := netdump.Attributes(data[4:])
	if err != nil {
		return false
	}
	for _, a := range attrs {
		if a.Attr.Type&^unix.NLA_F_NESTED == 1 && string(a.Value) == Table+"\x00" {
			return true
		}
	}
	return false
}
