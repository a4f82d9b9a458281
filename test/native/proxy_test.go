// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"testing"
)

// The proxy tells transactions that change rows from others, and their replies, and cuts
// a connection before or within a message.
func TestProxy(t *testing.T) {
	messages := []string{
		`{"id":1,"method":"monitor_cond_since","params":["OVN_Northbound",{},{}]}`,
		`{"id":2,"method":"transact","params":["OVN_Northbound",{"op":"select","table":"NB_Global","where":[]}]}`,
		`{"id":3,"method":"transact","params":["OVN_Northbound",{"op":"wait","table":"A"},{"op":"insert","table":"A","row":{}}]}`,
		`{"id":4,"method":"transact","params":["OVN_Northbound",{"op":"mutate","table":"A","mutations":[]}]}`,
	}
	for name, c := range map[string]struct {
		at      int // the request, with the connection as the first
		verdict Verdict
		want    []string // requests that reach the server whole
		rest    string   // what reaches it after them
	}{
		"everything passes":      {0, Pass, messages, ""},
		"cut at the connection":  {1, Cut, nil, ""},
		"cut before a request":   {4, Cut, messages[:2], ""},
		"cut within the request": {4, CutHalf, messages[:2], messages[2][:len(messages[2])/2]},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, err := net.Listen("unix", filepath.Join(dir, "db"))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var requests, replies []Message
			p, err := StartProxy(filepath.Join(dir, "proxy"), filepath.Join(dir, "db"), func(m Message) Verdict {
				if requests = append(requests, m); len(requests) == c.at {
					return c.verdict
				}
				return Pass
			}, func(m Message) Verdict { replies = append(replies, m); return Pass })
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			client, err := net.Dial("unix", filepath.Join(dir, "proxy"))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			server, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			for i, m := range messages {
				if _, err := io.WriteString(client, m); err != nil {
					break // cut
				}
				want := m
				if i >= len(c.want) {
					want = c.rest
				}
				got := make([]byte, len(want))
				if _, err := io.ReadFull(server, got); err != nil || string(got) != want {
					t.Fatalf("the server reads %q, %v, want %q", got, err, want)
				}
				if i >= len(c.want) {
					break
				}
				if _, err := fmt.Fprintf(server, `{"id":%d,"result":[],"error":null}`, i+1); err != nil {
					t.Fatal(err)
				}
				if _, err := client.Read(make([]byte, 100)); err != nil {
					t.Fatal(err)
				}
			}
			if c.verdict != Pass {
				if n, err := server.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("after the cut the server reads %d bytes, %v", n, err)
				}
				if n, err := client.Read(make([]byte, 1)); err == nil {
					t.Errorf("after the cut the client reads %d bytes", n)
				}
				return
			}
			wrote := func(m Message) bool { return m.Write }
			if got := slices.IndexFunc(requests, wrote); len(requests) != 5 || got != 3 || !requests[4].Write || requests[3].Size < 50 {
				t.Errorf("requests %+v, want the connection and four messages, the last two of which write", requests)
			}
			if got := slices.IndexFunc(replies, wrote); len(replies) != 4 || got != 2 || !replies[3].Write || !replies[3].Reply {
				t.Errorf("replies %+v, want four, the last two to writes", replies)
			}
		})
	}
}
