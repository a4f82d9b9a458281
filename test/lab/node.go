// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"bulkhead/test/lab/internal/host"
	"bulkhead/test/lab/internal/remote"
)

// Node is a machine of the lab that runs commands: a cluster node or the external host.
// Commands do not use the node's network, so that they work whatever a test does to it.
type Node struct {
	Name string

	machine host.Machine
	token   string
	dial    remote.Dialer
}

// Addresses are the machine's on the underlay, of the lab's IP families, IPv4 first.
func (n *Node) Addresses() []netip.Addr {
	var list []netip.Addr
	for _, a := range n.machine.Addresses {
		list = append(list, a.Addr())
	}
	return list
}

// Result is a command's output and exit code.
type Result struct {
	Stdout, Stderr string
	ExitCode       int
}

// Run runs a shell script as root and waits for it. It returns an error if the script
// could not run; if the script fails, Result.ExitCode is not 0.
func (n *Node) Run(ctx context.Context, script string) (Result, error) {
	p, err := n.Start(ctx, script)
	if err != nil {
		return Result{ExitCode: -1}, err
	}
	p.CloseStdin()
	return p.Wait()
}

// Script is Run for a script that must succeed.
func (n *Node) Script(ctx context.Context, script string) error {
	r, err := n.Run(ctx, script)
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("on %s: exit %d: %s%s", n.Name, r.ExitCode, r.Stdout, r.Stderr)
	}
	return err
}

// Start starts a shell script as root. The script is killed when ctx or this process
// ends.
func (n *Node) Start(ctx context.Context, script string) (*Process, error) {
	p := &Process{node: n.Name}
	var err error
	p.Process, err = n.start(ctx, remote.Request{Argv: []string{"/bin/sh", "-c", script}}, &p.stdout, &p.stderr)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Put writes a file on the node. It replaces an existing file, which may be in use.
func (n *Node) Put(ctx context.Context, path string, data []byte, mode os.FileMode) error {
	p, err := n.Start(ctx, fmt.Sprintf("mkdir -p %[1]s && cat >%[2]s.new && chmod %[3]o %[2]s.new && mv %[2]s.new %[2]s", quote(filepath.Dir(path)), quote(path), mode.Perm()))
	if err != nil {
		return err
	}
	if _, err := p.Write(data); err != nil {
		return fmt.Errorf("send %s to %s: %w", path, n.Name, err)
	}
	p.CloseStdin()
	r, err := p.Wait()
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("write %s on %s: %s", path, n.Name, strings.TrimSpace(r.Stderr))
	}
	return err
}

// Exec runs a program with the streams.
func (n *Node) Exec(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	p, err := n.start(ctx, remote.Request{Argv: argv}, stdout, stderr)
	if err != nil {
		return -1, err
	}
	go func() {
		io.Copy(p, stdin)
		p.CloseStdin()
	}()
	return p.Wait()
}

func (n *Node) start(ctx context.Context, req remote.Request, stdout, stderr io.Writer) (*remote.Process, error) {
	req.Token = n.token
	p, err := remote.Start(ctx, n.dial, req, stdout, stderr)
	if err != nil {
		return nil, fmt.Errorf("on %s: %w", n.Name, err)
	}
	return p, nil
}

// Process is a script that runs on a node. See Write and CloseStdin for its standard
// input.
type Process struct {
	*remote.Process
	node           string
	stdout, stderr buffer
}

// Wait waits until the script exits.
func (p *Process) Wait() (Result, error) {
	code, err := p.Process.Wait()
	if err != nil {
		err = fmt.Errorf("on %s: %w", p.node, err)
	}
	return Result{Stdout: p.stdout.String(), Stderr: p.stderr.String(), ExitCode: code}, err
}

// Kill kills the script and the processes that it started.
func (p *Process) Kill() error { return p.Signal(syscall.SIGKILL) }

// Stdout is the script's standard output so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr is the script's standard error so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// buffer is a bytes.Buffer that can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// collect fetches a machine's /var/log as one archive and unpacks it.
func (l *Lab) collect(ctx context.Context, n *Node) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	// tar fails if a log grows meanwhile; its output is still complete.
	r, err := n.Run(ctx, "cd /var/log && tar --exclude=./containers -cf - . 2>/dev/null")
	if err != nil {
		return err
	}
	if r.Stdout == "" {
		return fmt.Errorf("tar printed no logs of %s: exit code %d", n.Name, r.ExitCode)
	}
	in := tar.NewReader(strings.NewReader(r.Stdout))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unpack the logs of %s: %w", n.Name, err)
		}
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) {
			continue
		}
		path := filepath.Join(l.LogDir(), n.Name, h.Name)
		data, err := io.ReadAll(in)
		if err != nil {
			return fmt.Errorf("unpack the logs of %s: %w", n.Name, err)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("unpack the logs of %s: %w", n.Name, err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return fmt.Errorf("unpack the logs of %s: %w", n.Name, err)
		}
	}
}
