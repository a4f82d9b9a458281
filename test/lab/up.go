package lab

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"bulkhead/test/lab/internal/build"
	"bulkhead/test/lab/internal/host"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// nodesDeadline is generous: two emulated nodes on cores that others use too.
const nodesDeadline = 10 * time.Minute

// Up builds what is missing, replaces a lab that runs in the same directory and
// returns when the new one is ready. The lab then stays, whatever becomes of
// this process; if ctx or this process ends before, nothing is left of it.
// Progress gets a line for each step.
func Up(ctx context.Context, o Options, progress io.Writer) (*Lab, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("the lab makes network namespaces and mounts, which needs root")
	}
	run, say := runDir(), sayer(progress)
	unlock, err := prepareRun(ctx, run, say)
	if err != nil {
		return nil, err
	}
	defer unlock()
	artifacts, program, err := buildAll(ctx, o, run, say)
	if err != nil {
		return nil, err
	}
	kvm := o.KVM == "on"
	if o.KVM == "auto" {
		if kvm, err = host.ProbeKVM(ctx, artifacts.Kernel); err != nil {
			return nil, err
		}
		say("processor: %s", map[bool]string{true: "KVM", false: "software emulation (no working KVM here)"}[kvm])
	}
	token := make([]byte, 16)
	if _, err := rand.Read(token); err != nil {
		return nil, fmt.Errorf("make the lab's token: %w", err)
	}
	spec := host.Spec{Run: run, Dual: o.Families == "dual", KVM: kvm, Token: hex.EncodeToString(token), Artifacts: artifacts}
	spec.Nodes, spec.External = host.Plan(o.Nodes, spec.Dual)
	return start(ctx, o, spec, program, say)
}

// start starts the supervisor, waits for the nodes and installs the product.
// Until consent is given at its end, every way out of here ends the lab.
func start(outer context.Context, o Options, spec host.Spec, program string, say func(string, ...any)) (l *Lab, err error) {
	ctx := outer
	server, lines, consent, err := host.Start(program, spec)
	if err != nil {
		return nil, err
	}
	defer lines.Close()
	ended := make(chan struct{})
	go func() { server.Wait(); close(ended) }()
	defer func() {
		if err != nil {
			if l != nil && outer.Err() == nil {
				err = errors.Join(err, l.unready(outer), l.CollectLogs(outer))
				if o.Keep && consent() == nil {
					err = fmt.Errorf("%w\nthe lab is kept as it is; logs are in %s", err, l.LogDir())
					return
				}
			}
			server.Process.Kill()
			<-ended
			// Everything but the logs.
			err = errors.Join(fmt.Errorf("%w\nlogs are in %s", err, host.LogDir(spec.Run)), keepLogs(spec.Run))
			l = nil
		}
	}()
	started, err := host.StartTime(server.Process.Pid)
	if err != nil {
		return nil, fmt.Errorf("the lab's supervisor ended at once: %w", err)
	}
	state := host.State{Spec: spec, PID: server.Process.Pid, Started: started}
	if err := host.WriteState(state); err != nil {
		return nil, err
	}
	if err := follow(ctx, lines, say); err != nil {
		return nil, err
	}
	l = newLab(state)
	// From here on a lab without its supervisor fails soon.
	ctx, cancel := context.WithTimeoutCause(ctx, nodesDeadline, fmt.Errorf("not within %s", nodesDeadline))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ended:
			fail(errors.New("the lab's supervisor ended"))
		case <-ctx.Done():
		}
	}()
	if err := l.waitNodes(ctx, say); err != nil {
		return l, err
	}
	if o.Install {
		if err := l.install(ctx, o.Repo, say); err != nil {
			return l, err
		}
	}
	state.Ready = true
	if err := host.WriteState(state); err != nil {
		return l, err
	}
	if err := consent(); err != nil {
		return l, fmt.Errorf("let the lab stay: %w", err)
	}
	say("lab is up; logs are in %s", l.LogDir())
	return l, nil
}

// follow prints the supervisor's progress until it is ready.
func follow(ctx context.Context, lines io.ReadCloser, say func(string, ...any)) error {
	stop := context.AfterFunc(ctx, func() { lines.Close() })
	defer stop()
	failure := "the lab's supervisor ended"
	for scan := bufio.NewScanner(lines); scan.Scan(); {
		line := scan.Text()
		if host.IsReady(line) {
			return nil
		}
		if reason, bad := strings.CutPrefix(line, "error: "); bad {
			failure = reason
			continue
		}
		say("%s", line)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.New(failure)
}

// waitNodes waits until each node accepts commands and is registered. A node
// is Ready only with the product's pod network.
func (l *Lab) waitNodes(ctx context.Context, say func(string, ...any)) error {
	for _, n := range l.Nodes() {
		if err := l.Wait(ctx, n.Name+" to be registered", func(ctx context.Context) (bool, string, error) {
			_, err := l.Client().CoreV1().Nodes().Get(ctx, n.Name, getOptions)
			if err != nil {
				return false, fmt.Sprintf("%v; console: %s/%s.console", err, l.LogDir(), n.Name), nil
			}
			return true, "", nil
		}); err != nil {
			return err
		}
		say("%s is registered", n.Name)
	}
	return nil
}

func ready(n *corev1.Node) (bool, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, "no Ready condition yet"
}

// Caches are what Build built, in the user's cache directory.
type Caches struct {
	Kubernetes string // directory of the control plane's and kubelet's programs
	RootFS     string // the nodes' Debian tree: look, do not write
}

// Build fills the caches, and nothing else.
func Build(ctx context.Context, o Options, progress io.Writer) (Caches, error) {
	o, err := o.complete()
	if err != nil {
		return Caches{}, err
	}
	work, err := os.MkdirTemp("", "lab-build-")
	if err != nil {
		return Caches{}, fmt.Errorf("make a place to build in: %w", err)
	}
	defer os.RemoveAll(work)
	if err := os.Mkdir(filepath.Join(work, "log"), 0o755); err != nil {
		return Caches{}, fmt.Errorf("make a place for logs: %w", err)
	}
	a, _, err := buildAll(ctx, o, work, sayer(progress))
	return Caches{Kubernetes: a.Kubernetes, RootFS: a.RootFS}, err
}

func buildAll(ctx context.Context, o Options, run string, say func(string, ...any)) (build.Artifacts, string, error) {
	if err := build.CheckTools(); err != nil {
		return build.Artifacts{}, "", err
	}
	log, err := os.Create(filepath.Join(host.LogDir(run), "build.log"))
	if err != nil {
		return build.Artifacts{}, "", fmt.Errorf("open the build's log: %w", err)
	}
	defer log.Close()
	// The supervisor is a program of its own, whoever calls this package.
	program := filepath.Join(run, "lab")
	if err := build.Go(ctx, o.Repo, program, "./test/lab/cmd/lab", log); err != nil {
		return build.Artifacts{}, "", err
	}
	a, err := build.All(ctx, build.Options{Repo: o.Repo, Work: run, Lab: program, Product: o.Install, Log: log, Progress: say})
	if err != nil {
		tail, _ := os.ReadFile(log.Name())
		return a, program, fmt.Errorf("%w\n%s", err, lastLines(tail, 15))
	}
	return a, program, nil
}

func lastLines(text []byte, n int) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte("\n"))
}

// prepareRun takes down what an earlier lab left in the run directory and
// empties it. The lock keeps two at once from mixing.
func prepareRun(ctx context.Context, run string, say func(string, ...any)) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(run), 0o755); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	lock, err := os.OpenFile(run+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lab's lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("another lab is being brought up in %s (set %s for one beside it)", run, RunVariable)
	}
	unlock = func() { lock.Close() }
	if state, err := host.ReadState(run); err == nil {
		say("taking down the lab that runs (process %d)", state.PID)
		if err := stop(ctx, state); err != nil {
			unlock()
			return nil, err
		}
	}
	if err := clean(run); err != nil {
		unlock()
		return nil, err
	}
	if err := os.MkdirAll(host.LogDir(run), 0o700); err != nil {
		unlock()
		return nil, fmt.Errorf("make the log directory: %w", err)
	}
	return unlock, nil
}

// ours are the entries of a run directory; nothing else in it is ever removed.
var ours = []string{"state.json", "spec.json", "share", "share.img", "pki", "etcd", "tools", "product", "lab", "*.sock", "log", "*.new"}

func clean(run string) error {
	for _, pattern := range ours {
		found, err := filepath.Glob(filepath.Join(run, pattern))
		if err != nil {
			return fmt.Errorf("look for an earlier lab's files: %w", err)
		}
		for _, path := range found {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("remove an earlier lab's files: %w", err)
			}
		}
	}
	return nil
}

// keepLogs removes what a lab that has ended leaves, but for its logs.
func keepLogs(run string) error {
	logs, aside := host.LogDir(run), host.LogDir(run)+".kept"
	if err := os.RemoveAll(aside); err != nil {
		return fmt.Errorf("remove older logs: %w", err)
	}
	if err := os.Rename(logs, aside); err != nil {
		return fmt.Errorf("keep the logs: %w", err)
	}
	if err := clean(run); err != nil {
		return err
	}
	return os.Rename(aside, logs)
}

// stop ends a supervisor: politely, then not.
func stop(ctx context.Context, state host.State) error {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := syscall.Kill(state.PID, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end the lab's supervisor %d: %w", state.PID, err)
		}
		for range 100 {
			if host.Gone(state) {
				return nil
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return fmt.Errorf("the lab's supervisor %d does not end", state.PID)
}

// sayer prints lines with the seconds since it was made; steps run side by side.
func sayer(w io.Writer) func(string, ...any) {
	if w == nil {
		w = io.Discard
	}
	begun, mu := time.Now(), sync.Mutex{}
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, "%6.1f s  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
	}
}
