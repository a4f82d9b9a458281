// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
)

// Process is a command that runs on a machine of the lab.
type Process struct {
	name string
	conn net.Conn
	out  *frameWriter

	stop func() bool
	done chan struct{}
	code int
	err  error

	closeStdin sync.Once
}

// Dialer connects to one machine's Server.
type Dialer func(ctx context.Context) (net.Conn, error)

// Start starts the request's command and copies its output to stdout and stderr. The
// server kills the command when ctx ends or the connection is lost.
func Start(ctx context.Context, dial Dialer, req Request, stdout, stderr io.Writer) (*Process, error) {
	name := "an empty command"
	if len(req.Argv) > 0 {
		name = req.Argv[0]
	}
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	p := &Process{name: name, conn: conn, out: &frameWriter{w: conn}, done: make(chan struct{})}
	if err := p.out.writeJSON(frameRequest, req); err != nil {
		conn.Close()
		return nil, fmt.Errorf("request %s: %w", name, err)
	}
	p.stop = context.AfterFunc(ctx, func() { conn.Close() })
	go p.receive(ctx, stdout, stderr)
	return p, nil
}

func (p *Process) receive(ctx context.Context, stdout, stderr io.Writer) {
	defer close(p.done)
	defer p.conn.Close()
	defer p.stop()
	in := bufio.NewReader(p.conn)
	for {
		kind, payload, err := readFrame(in)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			p.code, p.err = -1, fmt.Errorf("%s: the connection was closed before the command exited: %w", p.name, err)
			return
		}
		switch kind {
		case frameStdout:
			stdout.Write(payload)
		case frameStderr:
			stderr.Write(payload)
		case frameExit:
			var status exitStatus
			if err := json.Unmarshal(payload, &status); err != nil {
				status = exitStatus{Code: -1, Error: fmt.Sprintf("malformed exit status: %v", err)}
			}
			p.code = status.Code
			if status.Error != "" {
				p.err = fmt.Errorf("%s: %s", p.name, status.Error)
			}
			return
		}
	}
}

// Wait waits until the command exits and returns its exit code. It returns an error if
// the command could not be started or the connection was lost.
func (p *Process) Wait() (int, error) {
	<-p.done
	return p.code, p.err
}

// Done is closed when the command has exited.
func (p *Process) Done() <-chan struct{} { return p.done }

// Write sends bytes to the command's standard input.
func (p *Process) Write(b []byte) (int, error) { return stream{p.out, frameStdin}.Write(b) }

// CloseStdin closes the command's standard input.
func (p *Process) CloseStdin() error {
	var err error
	p.closeStdin.Do(func() { err = p.out.write(frameStdinEOF, nil) })
	return err
}

// Signal sends a signal to the command's process group.
func (p *Process) Signal(s syscall.Signal) error { return p.out.write(frameSignal, []byte{byte(s)}) }

// Resize sets the size of the command's terminal.
func (p *Process) Resize(rows, cols uint16) error {
	return p.out.writeJSON(frameWindow, windowSize{Rows: rows, Cols: cols})
}
