// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bufio"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
)

// Server runs commands for clients that have the token.
type Server struct {
	Token string
	// Env is the environment of every command.
	Env []string
	// Prepare, if set, changes a command before it starts, for example its cgroup.
	Prepare func(*exec.Cmd)
}

// Serve accepts connections until the listener is closed.
func (s *Server) Serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			slog.Error("failed to accept a command connection", "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		go s.handle(conn)
	}
}

func (s *Server) handle(conn net.Conn) {
	defer conn.Close()
	in, out := bufio.NewReader(conn), &frameWriter{w: conn}
	kind, payload, err := readFrame(in)
	if err != nil || kind != frameRequest {
		return
	}
	var req Request
	if err := json.Unmarshal(payload, &req); err != nil {
		out.writeJSON(frameExit, exitStatus{Code: -1, Error: fmt.Sprintf("malformed request: %v", err)})
		return
	}
	if subtle.ConstantTimeCompare([]byte(req.Token), []byte(s.Token)) != 1 {
		out.writeJSON(frameExit, exitStatus{Code: -1, Error: "wrong token: the machine belongs to another lab"})
		return
	}
	if req.Dial != "" {
		if err := forward(conn, in, out, req.Dial); err != nil {
			out.writeJSON(frameExit, exitStatus{Code: -1, Error: err.Error()})
		}
		return
	}
	if len(req.Argv) == 0 {
		out.writeJSON(frameExit, exitStatus{Code: -1, Error: "empty command"})
		return
	}
	code, err := s.run(req, in, out)
	status := exitStatus{Code: code}
	if err != nil {
		status.Error = err.Error()
	}
	out.writeJSON(frameExit, status)
}

// run runs the command, copies its streams and returns its exit code. It kills the
// command's process group if the client disconnects before the command exits, so that
// an aborted test leaves nothing running.
func (s *Server) run(req Request, in io.Reader, out *frameWriter) (int, error) {
	cmd := exec.Command(req.Argv[0], req.Argv[1:]...)
	cmd.Dir = req.Dir
	cmd.Env = append(append(os.Environ(), s.Env...), req.Env...)
	if s.Prepare != nil {
		s.Prepare(cmd)
	}
	// A background child that keeps stdout open must not delay the exit status.
	cmd.WaitDelay = time.Second

	var stdin io.WriteCloser
	var terminal *os.File
	var copying sync.WaitGroup
	if req.PTY {
		f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: req.Rows, Cols: req.Cols})
		if err != nil {
			return -1, fmt.Errorf("start %s on a terminal: %w", req.Argv[0], err)
		}
		defer f.Close()
		terminal, stdin = f, f
		copying.Go(func() { io.Copy(stream{out, frameStdout}, f) })
	} else {
		pipe, err := cmd.StdinPipe()
		if err != nil {
			return -1, fmt.Errorf("create stdin of %s: %w", req.Argv[0], err)
		}
		stdin = pipe
		cmd.Stdout, cmd.Stderr = stream{out, frameStdout}, stream{out, frameStderr}
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.Setpgid = true
		if err := cmd.Start(); err != nil {
			return -1, fmt.Errorf("start %s: %w", req.Argv[0], err)
		}
	}
	var ended atomic.Bool
	go control(cmd.Process, &ended, stdin, terminal, in)

	err := cmd.Wait()
	ended.Store(true)
	if req.PTY {
		// The copy ends with EIO when the last process has closed the terminal.
		finished := make(chan struct{})
		go func() { copying.Wait(); close(finished) }()
		select {
		case <-finished:
		case <-time.After(time.Second):
		}
	}
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return 0, nil
	case errors.As(err, &exit):
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return 128 + int(ws.Signal()), nil
		}
		return exit.ExitCode(), nil
	default:
		return -1, fmt.Errorf("wait for %s: %w", req.Argv[0], err)
	}
}

// control forwards the client's frames to the command until the client disconnects.
func control(p *os.Process, ended *atomic.Bool, stdin io.WriteCloser, terminal *os.File, in io.Reader) {
	defer stdin.Close()
	for {
		kind, payload, err := readFrame(in)
		if err != nil {
			if !ended.Load() {
				syscall.Kill(-p.Pid, syscall.SIGKILL)
			}
			return
		}
		switch kind {
		case frameStdin:
			stdin.Write(payload)
		case frameStdinEOF:
			if terminal == nil {
				stdin.Close()
			}
		case frameSignal:
			if len(payload) == 1 {
				syscall.Kill(-p.Pid, syscall.Signal(payload[0]))
			}
		case frameWindow:
			var w windowSize
			if terminal != nil && json.Unmarshal(payload, &w) == nil {
				pty.Setsize(terminal, &pty.Winsize{Rows: w.Rows, Cols: w.Cols})
			}
		}
	}
}
