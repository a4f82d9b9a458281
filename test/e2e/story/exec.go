// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	//lint:ignore SA1019 what the executor of this client-go takes is still of this package
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"bulkhead/test/lab"
)

// toolsDir holds the story's programs on every node; pods that mount it have it as
// /tools.
const toolsDir = "/run/bulkhead-story"

// putTools builds the story's programs and sends them to the nodes.
func (w *World) putTools(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "bulkhead-story-")
	if err != nil {
		return fmt.Errorf("make a directory for the story's tools: %w", err)
	}
	defer os.RemoveAll(dir)
	build := func(arch, out string, packages ...string) error {
		cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, out)}, packages...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build the story's tools for %s: %w: %s", arch, err, out)
		}
		return nil
	}
	const adversary = "bulkhead/test/adversary/cmd/adversary"
	if err := build(runtime.GOARCH, ".", "bulkhead/test/e2e/cmd/netprobe", "bulkhead/test/e2e/cmd/killat", "bulkhead/cmd/bulkheadctl", adversary); err != nil {
		return err
	}
	if err := build(map[string]string{"amd64": "386", "arm64": "arm"}[runtime.GOARCH], adversary32, adversary); err != nil {
		return err
	}
	tools, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list the story's tools: %w", err)
	}
	for _, tool := range tools {
		data, err := os.ReadFile(filepath.Join(dir, tool.Name()))
		if err != nil {
			return fmt.Errorf("read a tool of the story: %w", err)
		}
		for _, n := range append(slices.Clone(w.Lab.Nodes()), w.Lab.External()) {
			if err := n.Put(ctx, toolsDir+"/"+tool.Name(), data, 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

// adversary32 is the adversary's program for a 32-bit architecture.
const adversary32 = "adversary32"

// stream is a command that runs in a pod.
type stream struct {
	what  string
	stdin *io.PipeWriter
	out   output
	err   bytes.Buffer // read after the command has ended
	done  chan error
	kill  context.CancelFunc
}

// start runs a command in one of the pod's containers, through the API server
// and the real kubelet, until it ends or ctx does.
func (w *World) start(ctx context.Context, p *pod, container string, command ...string) (*stream, error) {
	executor, err := w.executor(p, container, command...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	in, stdin := io.Pipe()
	s := &stream{what: fmt.Sprintf("in pod %s/%s: %s", p.Namespace, p.Name, strings.Join(command, " ")), stdin: stdin, done: make(chan error, 1), kill: cancel,
		out: output{line: make(chan struct{})}}
	go func() {
		defer cancel()
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: &s.out, Stderr: &s.err})
		stdin.Close() // unblock writers: nothing reads the pipe any more
		s.done <- err
	}()
	return s, nil
}

// executor runs a command in one of the pod's containers, over a connection that is
// opened inside the lab.
func (w *World) executor(p *pod, container string, command ...string) (remotecommand.Executor, error) {
	url := w.Lab.Client().CoreV1().RESTClient().Post().Resource("pods").Namespace(p.Namespace).Name(p.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdin: true, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	config := w.Lab.RESTConfig()
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("set up TLS to the API server: %w", err)
	}
	upgrader, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		PingPeriod:       30 * time.Second, // probers' connections idle: each ping costs emulated nodes time
		UpgradeTransport: &http.Transport{TLSClientConfig: tls, DialContext: config.Dial},
	})
	if err != nil {
		return nil, fmt.Errorf("set up streams to the API server: %w", err)
	}
	transport, err := rest.HTTPWrappersForConfig(config, upgrader)
	if err != nil {
		return nil, fmt.Errorf("set up streams to the API server: %w", err)
	}
	executor, err := remotecommand.NewSPDYExecutorForTransports(transport, upgrader, http.MethodPost, url)
	if err != nil {
		return nil, fmt.Errorf("set up streams to %s: %w", url, err)
	}
	return executor, nil
}

// output is what a command has printed so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	line chan struct{} // closed once there is a whole line
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	hadLine := bytes.IndexByte(o.text.Bytes(), '\n') >= 0
	n, err := o.text.Write(p)
	if !hadLine && bytes.IndexByte(p, '\n') >= 0 {
		close(o.line)
	}
	return n, err
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// firstLine waits until the command has printed a line, and returns it, even if the
// command has ended since. Ending without a line is an error.
func (s *stream) firstLine(ctx context.Context) (string, error) {
	select {
	case <-s.out.line:
	case err := <-s.done:
		s.done <- err // for wait
	case <-ctx.Done():
		return "", fmt.Errorf("%s: wait for its first line: %w", s.what, ctx.Err())
	}
	line, _, whole := strings.Cut(s.out.String(), "\n")
	if !whole {
		out, err := s.wait(ctx)
		return "", errors.Join(fmt.Errorf("%s: ended before its first line: %q", s.what, out), err)
	}
	return line, nil
}

// wait ends the command's standard input and returns what it printed.
func (s *stream) wait(ctx context.Context) (string, error) {
	s.stdin.Close()
	select {
	case err := <-s.done:
		if err != nil {
			return s.out.String(), fmt.Errorf("%s: %w: %s", s.what, err, strings.TrimSpace(s.err.String()))
		}
		return s.out.String(), nil
	case <-ctx.Done():
		s.kill()
		return "", fmt.Errorf("%s: %w", s.what, errors.Join(ctx.Err(), <-s.done))
	}
}

// exec runs a command in a pod and returns what it printed.
func (w *World) exec(ctx context.Context, p *pod, container string, command ...string) (string, error) {
	s, err := w.start(ctx, p, container, command...)
	if err != nil {
		return "", err
	}
	return s.wait(ctx)
}

// loopback are the loopback addresses of the lab's IP families.
func (w *World) loopback() []netip.Addr {
	return w.served([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()})
}

// addrs are a machine's addresses on the underlay.
func addrs(n *lab.Node) []netip.Addr { return n.Addresses() }
