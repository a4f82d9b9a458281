// SPDX-License-Identifier: Apache-2.0

package native

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
)

// Message is what a Proxy passes on: a JSON-RPC message (RFC 7047), or a new connection.
type Message struct {
	Method string // of a request or notification; "" of a reply and of a new connection
	Reply  bool   // of the server
	Write  bool   // a transaction that changes rows, or its reply
	Size   int    // of the parameters
}

// Verdict is what a Proxy does with a message.
type Verdict int

const (
	Pass    Verdict = iota
	Cut             // closes the connection in place of the message
	CutHalf         // closes the connection after half of the message
)

// Proxy is a unix socket in front of a database's. It shows each message to functions
// before it passes it on, so that a test sees what the database sees, and can end the
// connection or the client at any message.
type Proxy struct {
	listener  net.Listener
	target    string
	onRequest func(Message) Verdict
	onReply   func(Message) Verdict

	mu   sync.Mutex
	open map[*proxied]func() // ends of connections
}

// StartProxy starts a proxy from the socket path to the socket target. onRequest is called
// with each connection and each message of clients, onReply with those of the server. A
// nil function passes everything on without reading it.
func StartProxy(path, target string, onRequest, onReply func(Message) Verdict) (*Proxy, error) {
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen before the database: %w", err)
	}
	p := &Proxy{listener: l, target: target, onRequest: onRequest, onReply: onReply, open: map[*proxied]func(){}}
	go p.accept()
	return p, nil
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.Disconnect()
}

// Disconnect ends the connections that exist.
func (p *Proxy) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, end := range p.open {
		end()
	}
}

func (p *Proxy) accept() {
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
		if p.onRequest != nil && p.onRequest(Message{}) != Pass {
			_, _ = client.Close(), server.Close()
			continue
		}
		c := &proxied{}
		if p.onReply != nil {
			c.writes = map[string]struct{}{}
		}
		p.mu.Lock()
		p.open[c] = func() { _, _ = client.Close(), server.Close() }
		p.mu.Unlock()
		end := func() {
			_, _ = client.Close(), server.Close()
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.open, c)
		}
		go func() { c.copy(client, server, p.onReply); end() }()
		go func() { c.copy(server, client, p.onRequest); end() }()
	}
}

// proxied is a connection through a proxy.
type proxied struct {
	mu     sync.Mutex
	writes map[string]struct{} // ids of transactions that change rows and have no reply yet; nil if replies are not read
}

func (c *proxied) copy(to io.Writer, from io.Reader, show func(Message) Verdict) {
	if show == nil {
		_, _ = io.Copy(to, from)
		return
	}
	d := json.NewDecoder(from)
	for {
		var raw json.RawMessage
		if d.Decode(&raw) != nil {
			return
		}
		verdict := show(c.parse(raw))
		switch verdict {
		case Cut:
			return
		case CutHalf:
			raw = raw[:len(raw)/2]
		case Pass:
		}
		if _, err := to.Write(raw); err != nil || verdict == CutHalf {
			return
		}
	}
}

func (c *proxied) parse(raw []byte) Message {
	var message struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	_ = json.Unmarshal(raw, &message) // what is no message passes too
	m := Message{Method: message.Method, Reply: message.Method == "", Size: len(message.Params)}
	id := string(message.ID)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case m.Reply:
		_, m.Write = c.writes[id]
		delete(c.writes, id)
	case m.Method == "transact" && writes(message.Params):
		if m.Write = true; c.writes != nil {
			c.writes[id] = struct{}{}
		}
	}
	return m
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
