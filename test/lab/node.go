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

// Node is a machine of the lab that runs commands: a cluster node, or the
// external host. Commands travel beside the node's network, so they arrive
// whatever a test does to that.
type Node struct {
	Name string

	machine host.Machine
	token   string
	dial    remote.Dialer
}

// IPv4 is the machine's address on the underlay.
func (n *Node) IPv4() netip.Addr { return n.machine.Addresses[0].Addr() }

// IPv6 is the machine's second address; invalid in a single-family lab.
func (n *Node) IPv6() netip.Addr {
	if len(n.machine.Addresses) < 2 {
		return netip.Addr{}
	}
	return n.machine.Addresses[1].Addr()
}

// Result is what a command said and how it ended.
type Result struct {
	Stdout, Stderr string
	ExitCode       int
}

// Run runs a shell script as root and waits for it. The error is about the
// lab; a script that fails is an ExitCode.
func (n *Node) Run(ctx context.Context, script string) (Result, error) {
	p, err := n.Start(ctx, script)
	if err != nil {
		return Result{ExitCode: -1}, err
	}
	p.CloseStdin()
	return p.Wait()
}

// Start starts a shell script and returns while it runs. It is killed when ctx
// ends or this process does.
func (n *Node) Start(ctx context.Context, script string) (*Process, error) {
	p := &Process{node: n.Name}
	var err error
	p.Process, err = n.start(ctx, remote.Request{Argv: []string{"/bin/sh", "-c", script}}, &p.stdout, &p.stderr)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Put writes a file on the node, in place of one that may be in use.
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

// Exec runs a program with the given streams, for the command line.
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

// Process is a script that runs on a node. It takes bytes for its standard
// input, see Write, CloseStdin and Signal.
type Process struct {
	*remote.Process
	node           string
	stdout, stderr buffer
}

// Wait waits for the script to end.
func (p *Process) Wait() (Result, error) {
	code, err := p.Process.Wait()
	if err != nil {
		err = fmt.Errorf("on %s: %w", p.node, err)
	}
	return Result{Stdout: p.stdout.String(), Stderr: p.stderr.String(), ExitCode: code}, err
}

// Kill ends the script and what it started.
func (p *Process) Kill() error { return p.Signal(syscall.SIGKILL) }

// Stdout is what the script has written so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr is what the script has complained about so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// buffer is read while it is written.
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
	// A log that grows meanwhile makes tar complain; what it sent is still good.
	r, err := n.Run(ctx, "cd /var/log && tar --exclude=./containers -cf - . 2>/dev/null")
	if err != nil {
		return err
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
