// SPDX-License-Identifier: Apache-2.0

// Package remote runs commands on a machine of the lab, a node VM or the external host,
// and connects to others from there, with one TCP or unix connection for each. It uses a shared token and no encryption:
// it listens only on networks inside the lab's own network namespace.
package remote

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Request is the first message of a connection, a JSON object in a frame of kind
// frameRequest. Further frames follow in both directions.
type Request struct {
	Token string   `json:"token"`
	Argv  []string `json:"argv,omitempty"`
	// Dial, in place of a command, is the TCP address that the machine connects to. After
	// frameConnected the connection carries bytes in both directions and no frames.
	Dial string   `json:"dial,omitempty"`
	Dir  string   `json:"dir,omitempty"`
	Env  []string `json:"env,omitempty"`
	// PTY requests a terminal of Rows × Cols; all output is then stdout.
	PTY  bool   `json:"pty,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
}

// exitStatus is the content of the server's last frame.
type exitStatus struct {
	Code int `json:"code"`
	// Error says why the command could not be started.
	Error string `json:"error,omitempty"`
}

type windowSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Kinds of frames: first the client's, then the server's.
const (
	frameRequest  byte = 'R'
	frameStdin    byte = 'i'
	frameStdinEOF byte = 'e'
	frameWindow   byte = 'w'
	frameSignal   byte = 's'

	frameStdout    byte = 'o'
	frameStderr    byte = 'r'
	frameExit      byte = 'x'
	frameConnected byte = 'c'
)

// maxFrame limits the memory that a peer's frame can take.
const maxFrame = 1 << 20

// frameWriter writes frames; several goroutines may use it.
type frameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frameWriter) write(kind byte, payload []byte) error {
	buf := make([]byte, 5+len(payload))
	buf[0] = kind
	binary.BigEndian.PutUint32(buf[1:], uint32(len(payload)))
	copy(buf[5:], payload)
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.w.Write(buf)
	return err
}

func (f *frameWriter) writeJSON(kind byte, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return f.write(kind, payload)
}

// stream is an io.Writer that sends frames of one kind.
type stream struct {
	f    *frameWriter
	kind byte
}

func (s stream) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n := min(len(p)-done, 32<<10)
		if err := s.f.write(s.kind, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return len(p), nil
}

func readFrame(r io.Reader) (byte, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxFrame {
		return 0, nil, fmt.Errorf("frame of %d bytes is larger than the limit of %d", size, maxFrame)
	}
	payload := make([]byte, size)
	_, err := io.ReadFull(r, payload)
	return head[0], payload, err
}
