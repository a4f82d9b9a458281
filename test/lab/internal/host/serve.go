// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"bulkhead/test/lab/internal/guest"
	"bulkhead/test/lab/internal/sys"

	"golang.org/x/sync/errgroup"
)

// File descriptors that the supervisor inherits from `lab up`.
const (
	// detachFD delivers "ok" when the lab shall outlive `lab up`. If it is closed
	// before, `lab up` has exited, and the supervisor exits too.
	detachFD = 3
	// progressFD receives one line per finished step; the last one is readyLine.
	progressFD = 4
	readyLine  = "ready"
)

// Start starts the supervisor of a lab. The caller reads progress until a line for
// which IsReady returns true, and then calls detach to let the lab outlive the caller.
func Start(lab string, s Spec) (cmd *exec.Cmd, progress io.ReadCloser, detach func() error, err error) {
	for _, d := range []string{"log", "share", "pki"} {
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			return nil, nil, nil, fmt.Errorf("create the run directory: %w", err)
		}
	}
	if err := writeJSON(s.path("spec.json"), s); err != nil {
		return nil, nil, nil, err
	}
	log, err := os.OpenFile(filepath.Join(LogDir(s.Run), "supervisor.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open the supervisor's log: %w", err)
	}
	defer log.Close()
	detachR, detachW, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("create a pipe: %w", err)
	}
	defer detachR.Close()
	progressR, progressW, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("create a pipe: %w", err)
	}
	defer progressW.Close()
	cmd = exec.Command(lab, "serve", s.Run)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{detachR, progressW}
	cmd.Dir = s.Run
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		// Process 1 of a process namespace: when it exits, the kernel kills all others.
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, nil, fmt.Errorf("start the lab's supervisor: %w", err)
	}
	detach = func() error {
		_, err := detachW.Write([]byte("ok"))
		return errors.Join(err, detachW.Close())
	}
	return cmd, progressR, detach, nil
}

// IsReady reports whether a line of progress is the last one.
func IsReady(line string) bool { return line == readyLine }

// Serve runs the supervisor until SIGTERM. The process must then exit, upon which the
// kernel kills everything that it started.
func Serve(run string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	data, err := os.ReadFile(filepath.Join(run, "spec.json"))
	if err != nil {
		return fmt.Errorf("read the lab's spec: %w", err)
	}
	var s Spec
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("parse the lab's spec: %w", err)
	}
	go func() {
		message, _ := io.ReadAll(os.NewFile(detachFD, "detach"))
		if string(message) != "ok" {
			cancel(errors.New("lab up exited before the lab was ready"))
		}
	}()
	progress := os.NewFile(progressFD, "progress")
	report := func(format string, args ...any) {
		slog.Info(fmt.Sprintf(format, args...))
		fmt.Fprintf(progress, format+"\n", args...)
	}
	if err := s.bringUp(ctx, report); err != nil {
		report("error: %v", err)
		return err
	}
	report(readyLine)
	progress.Close()
	<-ctx.Done()
	slog.Info("stopping the lab", "reason", context.Cause(ctx))
	return nil
}

func (s Spec) bringUp(ctx context.Context, report func(string, ...any)) error {
	if err := sys.Private(); err != nil {
		return err
	}
	c := &children{log: LogDir(s.Run), running: map[string]*os.Process{}}
	if err := s.createNetwork(); err != nil {
		return err
	}
	if err := s.writePKI(); err != nil {
		return err
	}
	if err := s.fillShare(ctx); err != nil {
		return err
	}
	if err := control(s.path("control.sock"), c); err != nil {
		return err
	}
	if err := s.startEgress(ctx); err != nil {
		return err
	}
	report("networks and certificates")
	group, ctx := errgroup.WithContext(ctx)
	begun := time.Now()
	// Nodes first: they take longest.
	for _, n := range s.Nodes {
		group.Go(func() error { return s.keepVM(c, n) })
	}
	group.Go(func() error { return s.startExternal(c) })
	group.Go(func() error {
		if err := s.startControlPlane(ctx, c); err != nil {
			return err
		}
		report("control plane (%.1f s)", time.Since(begun).Seconds())
		return nil
	})
	return group.Wait()
}

// startExternal starts the external host in namespaces inside the supervisor's.
func (s Spec) startExternal(c *children) error {
	argument, err := json.Marshal(guest.External{
		Config: s.machineConfig(s.External), Root: s.Artifacts.RootFS, Share: s.path("share"), Socket: ExternalSocket(s.Run),
	})
	if err != nil {
		return fmt.Errorf("encode the external host's configuration: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cmd, err := c.start("external", &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}, exe, "external", string(argument))
	if err != nil {
		return err
	}
	go func() { slog.Warn("external host exited", "error", cmd.Wait()) }()
	if err := connectExternal(cmd.Process.Pid); err != nil {
		return err
	}
	return sys.WaitFile(ExternalSocket(s.Run), 10*time.Second)
}
