// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// checkName resolves a name as the container's programs do, by /etc/resolv.conf, and
// returns its addresses, sorted and joined by commas.
func checkName(ctx context.Context, name string) (string, error) {
	addresses, err := (&net.Resolver{PreferGo: true}).LookupNetIP(ctx, "ip", name)
	var texts []string
	for _, a := range addresses {
		texts = append(texts, a.Unmap().String())
	}
	slices.Sort(texts)
	return strings.Join(texts, ","), err
}

// checkDNS asks a name server over UDP or TCP for its own name: the record hostname.bind,
// class CH (RFC 4892).
func checkDNS(ctx context.Context, protocol, addr string) (string, error) {
	request, err := (&dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 1},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("hostname.bind."), Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassCHAOS}},
	}).Pack()
	if err != nil {
		return "", err
	}
	var answer []byte
	if protocol == "tcp" {
		answer, err = exchangeFrame(ctx, addr, request)
	} else {
		answer, err = exchangeUDP(ctx, addr, 0, request)
	}
	if err != nil {
		return "", err
	}
	return serverName(answer)
}

// exchangeFrame sends a DNS message over TCP and returns the answer (RFC 1035 § 4.2.2: the
// length is before each message).
func exchangeFrame(ctx context.Context, addr string, request []byte) ([]byte, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(request))), request...)); err != nil {
		return nil, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	answer := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err = io.ReadFull(conn, answer)
	return answer, err
}

// serverName returns the text of the first TXT record of an answer.
func serverName(answer []byte) (string, error) {
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil {
		return "", fmt.Errorf("parse the answer: %w", err)
	}
	for _, r := range m.Answers {
		if txt, ok := r.Body.(*dnsmessage.TXTResource); ok && len(txt.TXT) > 0 {
			return txt.TXT[0], nil
		}
	}
	return "", errors.New("the answer has no text: " + m.RCode.String())
}
