// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// children are the supervisor's processes by name. A loop restarts each process that
// exits, so that a test can kill or reboot it.
type children struct {
	log     string
	mu      sync.Mutex
	running map[string]*os.Process
}

// start starts a program with its output in the log file <name>.log.
func (c *children) start(name string, attr *syscall.SysProcAttr, argv ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(c.log, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, attr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[name] = cmd.Process
	return cmd, nil
}

// keepRunning starts a program and restarts it forever. It returns when the first
// instance has started.
func (c *children) keepRunning(name string, argv ...string) error {
	cmd, err := c.start(name, nil, argv...)
	if err != nil {
		return err
	}
	go func() {
		for {
			err := cmd.Wait()
			slog.Warn("process exited, restarting it", "name", name, "error", err)
			time.Sleep(time.Second)
			if cmd, err = c.start(name, nil, argv...); err != nil {
				slog.Error("failed to restart process", "name", name, "error", err)
				return
			}
		}
	}()
	return nil
}

// signal sends a signal to a child by its name.
func (c *children) signal(name string, s syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.running[name]
	if !ok {
		return fmt.Errorf("the lab has no process %q", name)
	}
	if err := p.Signal(s); err != nil {
		return fmt.Errorf("signal %s: %w", name, err)
	}
	return nil
}
