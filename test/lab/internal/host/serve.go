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

// File descriptors that the supervisor inherits from the one who brings it up.
const (
	// consentFD: reads "ok" once the lab is to stay; if it ends before, whoever
	// brought the lab up is gone, and so is the lab.
	consentFD = 3
	// progressFD: one line for each thing that is done, the last "ready".
	progressFD = 4
	readyLine  = "ready"
)

// Start starts the supervisor of a lab. The caller reads its progress until
// the line that IsReady knows, and then calls consent to let the lab stay.
func Start(lab string, s Spec) (cmd *exec.Cmd, progress io.ReadCloser, consent func() error, err error) {
	for _, d := range []string{"log", "share", "pki"} {
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			return nil, nil, nil, fmt.Errorf("make the run directory: %w", err)
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
	consentR, consentW, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer consentR.Close()
	progressR, progressW, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer progressW.Close()
	cmd = exec.Command(lab, "serve", s.Run)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{consentR, progressW}
	cmd.Dir = s.Run
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		// Process 1 of a namespace: when it dies, the kernel kills the rest.
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, nil, fmt.Errorf("start the lab's supervisor: %w", err)
	}
	consent = func() error {
		_, err := consentW.Write([]byte("ok"))
		return errors.Join(err, consentW.Close())
	}
	return cmd, progressR, consent, nil
}

// IsReady tells whether a line of progress is the last one.
func IsReady(line string) bool { return line == readyLine }

// Serve is the supervisor. It returns when it is told to end; its process must
// then exit, which ends everything it started.
func Serve(run string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	data, err := os.ReadFile(filepath.Join(run, "spec.json"))
	if err != nil {
		return fmt.Errorf("read the lab's description: %w", err)
	}
	var s Spec
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("parse the lab's description: %w", err)
	}
	go func() {
		consent := os.NewFile(consentFD, "consent")
		said, _ := io.ReadAll(consent)
		if string(said) != "ok" {
			cancel(errors.New("the process that was bringing the lab up has ended"))
		}
	}()
	progress := os.NewFile(progressFD, "progress")
	say := func(format string, args ...any) {
		slog.Info(fmt.Sprintf(format, args...))
		fmt.Fprintf(progress, format+"\n", args...)
	}
	if err := s.bringUp(ctx, say); err != nil {
		say("error: %v", err)
		return err
	}
	say(readyLine)
	progress.Close()
	<-ctx.Done()
	slog.Info("lab ends", "why", context.Cause(ctx))
	return nil
}

func (s Spec) bringUp(ctx context.Context, say func(string, ...any)) error {
	if err := sys.Private(); err != nil {
		return err
	}
	c := &children{log: LogDir(s.Run), running: map[string]*os.Process{}}
	if err := s.makeNetwork(); err != nil {
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
	say("networks and certificates")
	group, ctx := errgroup.WithContext(ctx)
	begun := time.Now()
	// Machines first: they take longest.
	for _, n := range s.Nodes {
		group.Go(func() error { return s.keepVM(c, n) })
	}
	group.Go(func() error { return s.startExternal(c) })
	group.Go(func() error {
		if err := s.startControlPlane(ctx, c); err != nil {
			return err
		}
		say("control plane (%.1f s)", time.Since(begun).Seconds())
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
		return fmt.Errorf("describe the external host: %w", err)
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
	go func() { slog.Warn("external host ended", "err", cmd.Wait()) }()
	if err := connectExternal(cmd.Process.Pid); err != nil {
		return err
	}
	return sys.WaitFile(ExternalSocket(s.Run), 10*time.Second)
}
