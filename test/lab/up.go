// SPDX-License-Identifier: Apache-2.0

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
	"bulkhead/test/lab/internal/guest"
	"bulkhead/test/lab/internal/host"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// nodesDeadline is long enough for two emulated nodes on busy cores.
const nodesDeadline = 20 * time.Minute

// UpOrAttach returns the running lab if attach is set, and otherwise a new one. While this process
// lives, no other replaces it.
func UpOrAttach(ctx context.Context, o Options, attach bool, progress io.Writer) (*Lab, error) {
	if !attach {
		return Up(ctx, o, progress)
	}
	l, err := Attach()
	if err != nil {
		return nil, err
	}
	if l.lock, err = lockRun(l.state.Run, unix.LOCK_SH); err != nil {
		return nil, err
	}
	return l, nil
}

// lockRun locks the lab of a run directory: LOCK_EX to start one, LOCK_SH to use it.
func lockRun(run string, how int) (*os.File, error) {
	lock, err := os.OpenFile(run+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lab's lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), how|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("another process starts or uses the lab in %s: wait until it ends, or set %s to use another directory", run, RunVariable)
	}
	return lock, nil
}

// Up builds what is missing, stops a lab that runs in the same directory, and returns
// when the new lab is ready. The lab then outlives this process; if ctx or this process
// ends before, the lab is stopped and removed. Up writes one line per step to progress.
func Up(ctx context.Context, o Options, progress io.Writer) (l *Lab, err error) {
	if o, err = o.complete(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("the lab creates network namespaces and mounts, which needs root")
	}
	run, report := runDir(), newReporter(progress)
	lock, err := prepareRun(ctx, run, report)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	artifacts, program, err := buildAll(ctx, o, run, report)
	if err != nil {
		return nil, err
	}
	kvm := o.KVM == "on"
	if o.KVM == "auto" {
		if kvm, err = host.ProbeKVM(ctx, artifacts.Kernel); err != nil {
			return nil, err
		}
		report("processor: %s", map[bool]string{true: "KVM", false: "software emulation (no working KVM here)"}[kvm])
	}
	token := make([]byte, 16)
	if _, err := rand.Read(token); err != nil {
		return nil, fmt.Errorf("generate the lab's token: %w", err)
	}
	spec := host.Spec{Run: run, Families: host.Families(o.Families), AgentUplink: o.AgentUplink, KVM: kvm, Token: hex.EncodeToString(token), Artifacts: artifacts}
	spec.Nodes, spec.External = host.Plan(o.Nodes, spec.Families)
	if l, err = start(ctx, o, spec, program, report); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH); err != nil {
		return nil, errors.Join(fmt.Errorf("share the lab's lock: %w", err), l.Down(context.WithoutCancel(ctx)))
	}
	l.lock = lock
	return l, nil
}

// start starts the supervisor, waits for the nodes and installs the product. If it
// fails before detach, it stops the lab.
func start(outer context.Context, o Options, spec host.Spec, program string, report func(string, ...any)) (l *Lab, err error) {
	ctx := outer
	server, lines, detach, err := host.Start(program, spec)
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
				if o.Keep && detach() == nil {
					err = fmt.Errorf("%w\nthe lab is kept; logs are in %s", err, l.LogDir())
					return
				}
			}
			server.Process.Kill()
			<-ended
			err = errors.Join(fmt.Errorf("%w\nlogs are in %s", err, host.LogDir(spec.Run)), keepLogs(spec.Run))
			l = nil
		}
	}()
	started, err := host.StartTime(server.Process.Pid)
	if err != nil {
		return nil, fmt.Errorf("the lab's supervisor exited at once: %w", err)
	}
	state := host.State{Spec: spec, PID: server.Process.Pid, Started: started}
	if err := host.WriteState(state); err != nil {
		return nil, err
	}
	if err := follow(ctx, lines, report); err != nil {
		return nil, err
	}
	l = newLab(state)
	// From here on, the context ends when the supervisor exits.
	ctx, cancel := context.WithTimeoutCause(ctx, nodesDeadline, fmt.Errorf("not within %s", nodesDeadline))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ended:
			fail(errors.New("the lab's supervisor exited"))
		case <-ctx.Done():
		}
	}()
	if err := l.waitNodes(ctx, report); err != nil {
		return l, err
	}
	if o.Install {
		if err := l.install(ctx, o, report); err != nil {
			return l, err
		}
	}
	state.Ready, state.BGP = true, o.BGP
	if err := host.WriteState(state); err != nil {
		return l, err
	}
	if err := detach(); err != nil {
		return l, fmt.Errorf("detach the lab from this process: %w", err)
	}
	report("lab is up; logs are in %s", l.LogDir())
	return l, nil
}

// follow reports the supervisor's progress until it is ready.
func follow(ctx context.Context, lines io.ReadCloser, report func(string, ...any)) error {
	stop := context.AfterFunc(ctx, func() { lines.Close() })
	defer stop()
	failure := "the lab's supervisor exited"
	for scan := bufio.NewScanner(lines); scan.Scan(); {
		line := scan.Text()
		if host.IsReady(line) {
			return nil
		}
		if reason, bad := strings.CutPrefix(line, "error: "); bad {
			failure = reason
			continue
		}
		report("%s", line)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.New(failure)
}

// bootTime is far longer than a node needs to boot, in a slow hour too. An emulated kernel can
// lose its timers while it boots ("rcu_preempt kthread starved" on the console), and then does
// nothing any more.
const bootTime = 2 * time.Minute

// resetStalled kills the machines of nodes that have not booted in time; the supervisor starts
// them again, and they have twice as long.
func (l *Lab) resetStalled(ctx context.Context, report func(string, ...any)) {
	var booting sync.WaitGroup
	for _, n := range l.Nodes() {
		booting.Go(func() {
			for limit := bootTime; ; limit *= 2 { // the next start may be slow, too
				select {
				case <-ctx.Done():
					return
				case <-time.After(limit):
				}
				console, err := os.ReadFile(filepath.Join(l.LogDir(), n.Name+".console"))
				if err != nil || bytes.Contains(console, []byte(guest.Booted)) {
					return
				}
				report("%s has not booted within %s: starting it again", n.Name, limit)
				if err := l.Kill(n.Name); err != nil {
					report("%s cannot be started again: %v", n.Name, err)
				}
			}
		})
	}
	booting.Wait()
}

// waitNodes waits until each node is registered. Nodes become Ready only with the
// product's pod network.
func (l *Lab) waitNodes(ctx context.Context, report func(string, ...any)) error {
	watched, stop := context.WithCancel(ctx)
	defer stop()
	go l.resetStalled(watched, report)
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
		report("%s is registered", n.Name)
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

// Caches are the directories that Build filled, in the user's cache directory.
type Caches struct {
	Kubernetes string // directory of the control plane's and kubelet's programs
	RootFS     string // the nodes' root file system, read-only
}

// Build fills the caches.
func Build(ctx context.Context, o Options, progress io.Writer) (Caches, error) {
	o, err := o.complete()
	if err != nil {
		return Caches{}, err
	}
	work, err := os.MkdirTemp("", "lab-build-")
	if err != nil {
		return Caches{}, fmt.Errorf("create a directory to build in: %w", err)
	}
	defer os.RemoveAll(work)
	if err := os.Mkdir(filepath.Join(work, "log"), 0o755); err != nil {
		return Caches{}, fmt.Errorf("create a directory for logs: %w", err)
	}
	a, _, err := buildAll(ctx, o, work, newReporter(progress))
	return Caches{Kubernetes: a.Kubernetes, RootFS: a.RootFS}, err
}

func buildAll(ctx context.Context, o Options, run string, report func(string, ...any)) (build.Artifacts, string, error) {
	if err := build.CheckTools(); err != nil {
		return build.Artifacts{}, "", err
	}
	log, err := os.Create(filepath.Join(host.LogDir(run), "build.log"))
	if err != nil {
		return build.Artifacts{}, "", fmt.Errorf("open the build's log: %w", err)
	}
	defer log.Close()
	// The supervisor is a separate program, because tests also call this package.
	program := filepath.Join(run, "lab")
	if err := build.Go(ctx, o.Repo, program, "./test/lab/cmd/lab", log); err != nil {
		return build.Artifacts{}, "", err
	}
	a, err := build.All(ctx, build.Options{Repo: o.Repo, Work: run, Lab: program, Product: o.Install, Conformance: o.Conformance, Log: log, Progress: report})
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

// prepareRun stops a lab that runs in the run directory and removes its files. A lock
// prevents two processes from using the directory at once.
func prepareRun(ctx context.Context, run string, report func(string, ...any)) (lock *os.File, err error) {
	if err := os.MkdirAll(filepath.Dir(run), 0o755); err != nil {
		return nil, fmt.Errorf("create the run directory: %w", err)
	}
	if lock, err = lockRun(run, unix.LOCK_EX); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	if state, err := host.ReadState(run); err == nil {
		report("stopping the running lab (process %d)", state.PID)
		if err := stop(ctx, state); err != nil {
			return nil, err
		}
	}
	if err := clean(run); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(host.LogDir(run), 0o700); err != nil {
		return nil, fmt.Errorf("create the log directory: %w", err)
	}
	return lock, nil
}

// runFiles are the entries of a run directory that clean removes; it keeps all others.
var runFiles = []string{"state.json", "spec.json", "share", "share.img", "initramfs", "pki", "etcd", "tools", "product", "lab", "*.sock", "log", "*.new"}

func clean(run string) error {
	for _, pattern := range runFiles {
		found, err := filepath.Glob(filepath.Join(run, pattern))
		if err != nil {
			return fmt.Errorf("list an earlier lab's files: %w", err)
		}
		for _, path := range found {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("remove an earlier lab's files: %w", err)
			}
		}
	}
	return nil
}

// keepLogs removes the files of a stopped lab, except its logs.
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

// stop stops a supervisor by SIGTERM, or by SIGKILL if it does not exit.
func stop(ctx context.Context, state host.State) error {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := syscall.Kill(state.PID, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the lab's supervisor (process %d): %w", state.PID, err)
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
	return fmt.Errorf("the lab's supervisor (process %d) does not exit", state.PID)
}

// newReporter returns a function that prints lines with the seconds since its creation.
// Concurrent steps may call it.
func newReporter(w io.Writer) func(string, ...any) {
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
