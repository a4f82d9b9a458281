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

// Process is a command that runs on another machine of the lab.
type Process struct {
	what string
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

// Start runs the request's command; its output goes to stdout and stderr as it
// comes. The command is killed when ctx ends or the connection is lost.
func Start(ctx context.Context, dial Dialer, req Request, stdout, stderr io.Writer) (*Process, error) {
	what := "an empty command"
	if len(req.Argv) > 0 {
		what = req.Argv[0]
	}
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	p := &Process{what: what, conn: conn, out: &frameWriter{w: conn}, done: make(chan struct{})}
	if err := p.out.writeJSON(frameRequest, req); err != nil {
		conn.Close()
		return nil, fmt.Errorf("ask for %s: %w", what, err)
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
			p.code, p.err = -1, fmt.Errorf("%s: connection ended before the command did: %w", p.what, err)
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
				p.err = fmt.Errorf("%s: %s", p.what, status.Error)
			}
			return
		}
	}
}

// Wait returns the exit code; an error means that there is none: the command
// could not be started, or its machine went away.
func (p *Process) Wait() (int, error) {
	<-p.done
	return p.code, p.err
}

// Done is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Write sends bytes to the command's standard input.
func (p *Process) Write(b []byte) (int, error) { return stream{p.out, frameStdin}.Write(b) }

// CloseStdin tells the command that its standard input has ended.
func (p *Process) CloseStdin() error {
	var err error
	p.closeStdin.Do(func() { err = p.out.write(frameStdinEOF, nil) })
	return err
}

// Signal sends a signal to the command's process group.
func (p *Process) Signal(s syscall.Signal) error { return p.out.write(frameSignal, []byte{byte(s)}) }

// Resize tells the command's terminal its new size.
func (p *Process) Resize(rows, cols uint16) error {
	return p.out.writeJSON(frameWindow, windowSize{Rows: rows, Cols: cols})
}
