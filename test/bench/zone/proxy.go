// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// traffic is what a client has sent to a database.
type traffic struct {
	writes int       // transactions that insert, update, mutate or delete
	bytes  int64     // of these transactions
	last   time.Time // of the last of them
}

// proxy is a unix socket in front of a database's, which counts what passes. So the
// zone's transactions are counted where the database sees them.
type proxy struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	total traffic
}

func startProxy(path, target string) (*proxy, error) {
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen before the database: %w", err)
	}
	p := &proxy{listener: l, target: target}
	go p.accept()
	return p, nil
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("unix", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		go func() {
			_, _ = io.Copy(client, server)
			_ = client.Close()
		}()
		go func() {
			p.count(io.TeeReader(client, server))
			_ = server.Close()
		}()
	}
}

// count counts the transactions among a client's JSON-RPC messages.
func (p *proxy) count(r io.Reader) {
	d := json.NewDecoder(r)
	for {
		var message struct {
			Method string          `json:"method"`
			Params json.RawMessage `json:"params"`
		}
		if d.Decode(&message) != nil {
			return
		}
		if message.Method != "transact" || !writes(message.Params) {
			continue
		}
		p.mu.Lock()
		p.total.writes++
		p.total.bytes += int64(len(message.Params))
		p.total.last = time.Now()
		p.mu.Unlock()
	}
}

// writes reports whether a transaction (RFC 7047, section 4.1.3) changes rows.
func writes(params json.RawMessage) bool {
	var elements []json.RawMessage // the database's name, then the operations
	if json.Unmarshal(params, &elements) != nil {
		return false
	}
	return slices.ContainsFunc(elements, func(e json.RawMessage) bool {
		var op struct {
			Op string `json:"op"`
		}
		return json.Unmarshal(e, &op) == nil && slices.Contains([]string{"insert", "update", "mutate", "delete"}, op.Op)
	})
}

func (p *proxy) traffic() traffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// since returns the traffic after before.
func (t traffic) since(before traffic) traffic {
	return traffic{t.writes - before.writes, t.bytes - before.bytes, t.last}
}

func (p *proxy) close() { _ = p.listener.Close() }
