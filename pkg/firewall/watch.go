// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of the kernel's interface (linux/netfilter/nf_tables.h).
const (
	groupNFTables = 7
	msgNewGen     = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	msgGetGen     = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN
	attrGenID     = 1 // NFTA_GEN_ID
)

// Watch calls changed with the number of each transaction that touched our
// table, our own included, and with 0 when events were lost, until ctx ends.
func Watch(ctx context.Context, changed func(generation uint32)) error {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER, groupNFTables)
	if err != nil {
		return fmt.Errorf("subscribe to nftables events: %w", err)
	}
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	touched := false
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
				touched = touched || ofTable(m.Data)
				continue
			}
			// The last of a transaction's events.
			if touched {
				changed(generationOf(m.Data))
			}
			touched = false
		}
	}
}

// generation is the number of the last transaction of this network namespace.
func generation() (uint32, error) {
	req := nl.NewNetlinkRequest(msgGetGen, 0)
	req.AddRawData([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0})
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, msgNewGen)
	if err != nil {
		return 0, fmt.Errorf("ask for the number of the last nftables transaction: %w", err)
	}
	if len(msgs) == 0 {
		return 0, errors.New("ask for the number of the last nftables transaction: no answer")
	}
	return generationOf(msgs[0]), nil
}

func generationOf(data []byte) uint32 {
	if len(data) < 4 {
		return 0
	}
	attrs, err := nl.ParseRouteAttr(data[4:])
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

// ofTable tells whether an event is of our table. Behind the four bytes of
// struct nfgenmsg, attribute 1 is the table's name in every kind of event.
func ofTable(data []byte) bool {
	if len(data) < 4 {
		return false
	}
	attrs, err := nl.ParseRouteAttr(data[4:])
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
