// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// A check or a watch that could not find anything fails; it does not report
// "unreachable" or "no loss".
func TestNothingToProbe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, targets := range map[string][]string{
		"no targets":  nil,
		"no protocol": {"127.0.0.1"},
		"protocol":    {"dccp:127.0.0.1:80"},
		"port":        {"tcp:127.0.0.1"},
		"address":     {"icmp:invalid IP"},
		"DNS port":    {"dns-udp:127.0.0.1"},
		"no name":     {"name:"},
		"source":      {"udp@x:127.0.0.1:53"},
		"ICMP source": {"icmp@1:127.0.0.1"},
	} {
		if _, err := checkAll(ctx, targets, time.Millisecond); err == nil {
			t.Errorf("%s: check succeeds", name)
		}
	}
	if watch(ctx, "", "", time.Millisecond) == nil {
		t.Error("watch without targets succeeds")
	}
	stopped, stop := context.WithCancel(ctx)
	stop()
	if watch(stopped, "", "127.0.0.1:1", time.Millisecond) == nil {
		t.Error("watch succeeds though no traffic flowed")
	}
}

// TestAnswer: a request that takes long delays no other, and one that could not find
// anything has an error.
func TestAnswer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	in, requests := io.Pipe()
	replies, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- answer(ctx, in, out) }()
	enc, dec := json.NewEncoder(requests), json.NewDecoder(replies)
	for _, q := range []request{
		{ID: 1, TimeoutMillis: 2000, Targets: []string{"udp:" + silent.LocalAddr().String()}},
		{ID: 2, TimeoutMillis: 2000},
	} {
		if err := enc.Encode(q); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []reply{{ID: 2, Error: "no targets"}, {ID: 1}} {
		var r reply
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.ID != want.ID || !strings.Contains(r.Error, want.Error) || want.Error == "" && (len(r.Results) != 1 || r.Results[0].OK) {
			t.Errorf("reply %+v, want %+v", r, want)
		}
	}
	requests.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if answer(ctx, strings.NewReader("x"), &bytes.Buffer{}) == nil {
		t.Error("a request that cannot be read is ignored")
	}
}

// TestDNS: a name server's own name, over UDP and TCP; an answer without it is an error.
func TestDNS(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answer := func(request []byte) []byte {
		var m dnsmessage.Message
		if err := m.Unpack(request); err != nil || len(m.Questions) != 1 || m.Questions[0].Class != dnsmessage.ClassCHAOS {
			t.Errorf("request %v, %v", m, err)
			return nil
		}
		m.Response = true
		m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassCHAOS}, Body: &dnsmessage.TXTResource{TXT: []string{"server-1"}}}}
		out, err := m.Pack()
		if err != nil {
			t.Error(err)
		}
		return out
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(answer(buf[:n]), from)
		}
	}()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	go func() {
		conn, err := tcp.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buf := make([]byte, 512)
		n, _ := conn.Read(buf)
		out := answer(buf[2:n])
		_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...))
	}()
	for _, target := range []string{"dns-udp:" + udp.LocalAddr().String(), "dns-tcp:" + tcp.Addr().String()} {
		if got, err := checkAll(ctx, []string{target}, 10*time.Second); err != nil || !got[0].OK || got[0].Who != "server-1" {
			t.Errorf("%s: %+v, %v", target, got, err)
		}
	}
	if who, err := serverName(make([]byte, 12)); err == nil {
		t.Errorf("an empty answer is from %q", who)
	}
	if who, err := checkName(ctx, "localhost"); !strings.Contains(who, "127.0.0.1") || err != nil {
		t.Errorf("localhost is %q, %v", who, err)
	}
}

// TestServe: a server names itself, and says where a client has sent from.
func TestServe(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	source := free.LocalAddr().(*net.UDPAddr).Port
	free.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := listener.Addr().String()
	listener.Close()
	done := make(chan error, 1)
	go func() { done <- serve(ctx, "server-1", at) }()
	want := map[string]string{
		fmt.Sprintf("tcp@%d:%s", source, at): "server-1", fmt.Sprintf("udp@%d:%s", source, at): "server-1",
		"client-tcp:" + at: "127.0.0.1", "client-udp:" + at: "127.0.0.1",
	}
	for target, who := range want {
		for ok := false; !ok; {
			got, err := checkAll(ctx, []string{target}, time.Second)
			if err != nil || ctx.Err() != nil || got[0].OK && got[0].Who != who {
				t.Fatalf("%s: %+v, %v", target, got, err)
			}
			ok = got[0].OK // else the server does not listen yet
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
