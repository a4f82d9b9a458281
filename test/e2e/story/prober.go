// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"k8s.io/client-go/tools/remotecommand"
)

// probe is a result of netprobe.
type probe struct {
	Target string
	OK     bool
	Who    string
	Detail string
	Millis int64
}

// check has netprobe in the pod check targets.
func (w *World) check(ctx context.Context, p *pod, container string, timeout time.Duration, targets ...string) ([]probe, error) {
	if len(targets) == 0 {
		return nil, fmt.Errorf("no targets to probe from %s", p.Name)
	}
	for {
		pr, used, err := w.prober(ctx, p, container)
		if err != nil {
			return nil, err
		}
		got, err := pr.ask(ctx, timeout, targets)
		if used && errors.Is(err, errProberEnded) {
			continue // its container or its connection has ended since it was started
		}
		if err != nil {
			return nil, fmt.Errorf("netprobe in pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		return got, nil
	}
}

// proberOf names the container that a prober runs in.
type proberOf struct {
	pod       *pod
	container string
}

// prober returns the container's prober and whether it was used before.
func (w *World) prober(ctx context.Context, p *pod, container string) (pr *prober, used bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := proberOf{p, container}
	if pr := w.probers[key]; pr != nil && !pr.hasEnded() {
		return pr, true, nil
	}
	executor, err := w.executor(p, container, "/tools/netprobe", "answer")
	if err != nil {
		return nil, false, err
	}
	// Other checks use it after this one.
	pr = startProber(context.WithoutCancel(ctx), executor.StreamWithContext)
	w.probers[key] = pr
	return pr, false, nil
}

// endProbers ends all probers.
func (w *World) endProbers() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pr := range maps.Values(w.probers) {
		pr.end()
	}
	clear(w.probers)
}

// prober is a netprobe that stays in a container and probes on request. An exec per check
// would cost an emulated node seconds, and what a command prints just before it exits is
// lost now and then on a busy machine.
type prober struct {
	stdin    *io.PipeWriter
	requests chan []byte
	ended    chan struct{}
	err      error // why; read after ended

	mu      sync.Mutex
	last    int // request
	waiting map[int]chan reply
}

// errProberEnded: the prober ended before it replied.
var errProberEnded = errors.New("ended before it replied")

// request and reply are netprobe's, by its JSON.
type request struct {
	ID            int      `json:"id"`
	TimeoutMillis int64    `json:"timeoutMillis"`
	Targets       []string `json:"targets"`
}

type reply struct {
	ID      int
	Results []probe
	Error   string
}

// startProber starts "netprobe answer" by stream, which returns when it has ended or ctx
// is done.
func startProber(ctx context.Context, stream func(context.Context, remotecommand.StreamOptions) error) *prober {
	ctx, cancel := context.WithCancel(ctx)
	in, stdin := io.Pipe()
	out, stdout := io.Pipe()
	p := &prober{stdin: stdin, requests: make(chan []byte), ended: make(chan struct{}), waiting: map[int]chan reply{}}
	var stderr bytes.Buffer
	go func() {
		defer cancel()
		err := stream(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: stdout, Stderr: &stderr})
		stdin.Close() // unblock the writer
		stdout.Close()
		p.err = errProberEnded
		if err != nil {
			p.err = fmt.Errorf("%w: %w: %s", errProberEnded, err, bytes.TrimSpace(stderr.Bytes()))
		}
		close(p.ended)
	}()
	go func() {
		for {
			select {
			case q := <-p.requests:
				_, _ = stdin.Write(q) // the prober's end is reported by ended
			case <-p.ended:
				return
			}
		}
	}()
	go func() {
		for dec := json.NewDecoder(out); ; {
			var r reply
			if err := dec.Decode(&r); err != nil { // the end, or not a reply
				cancel()
				_, _ = io.Copy(io.Discard, out)
				return
			}
			p.mu.Lock()
			if c := p.waiting[r.ID]; c != nil {
				c <- r
				delete(p.waiting, r.ID)
			}
			p.mu.Unlock()
		}
	}()
	return p
}

// end closes netprobe's input, so that it exits.
func (p *prober) end() { p.stdin.Close() }

func (p *prober) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// ask returns a result per target. It wraps errProberEnded if the prober ends meanwhile.
func (p *prober) ask(ctx context.Context, timeout time.Duration, targets []string) ([]probe, error) {
	c := make(chan reply, 1)
	p.mu.Lock()
	p.last++
	id := p.last
	p.waiting[id] = c
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, id)
	}()
	raw, err := json.Marshal(request{ID: id, TimeoutMillis: timeout.Milliseconds(), Targets: targets})
	if err != nil {
		return nil, err
	}
	select {
	case p.requests <- append(raw, '\n'):
	case <-p.ended:
		return nil, p.err
	case <-ctx.Done():
		return nil, fmt.Errorf("send a request: %w", ctx.Err())
	}
	select {
	case r := <-c:
		return r.resultsOf(targets)
	case <-p.ended: // or both
		select {
		case r := <-c:
			return r.resultsOf(targets)
		default:
			return nil, p.err
		}
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a reply: %w", ctx.Err())
	}
}

func (r reply) resultsOf(targets []string) ([]probe, error) {
	if r.Error != "" {
		return nil, errors.New(r.Error)
	}
	if len(r.Results) != len(targets) {
		return nil, fmt.Errorf("%d results for %d targets", len(r.Results), len(targets))
	}
	return r.Results, nil
}
