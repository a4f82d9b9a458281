// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// signalRequest asks the supervisor to signal one of its processes: kube-apiserver,
// etcd, kube-controller-manager, kube-scheduler or a node.
type signalRequest struct {
	Action  string `json:"action"` // a key of signals
	Process string `json:"process"`
}

// signals by action. The supervisor restarts what is killed.
var signals = map[string]syscall.Signal{"pause": syscall.SIGSTOP, "resume": syscall.SIGCONT, "kill": syscall.SIGKILL}

// control listens for signal requests, one per connection.
func control(socket string, c *children) error {
	os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen on the control socket: %w", err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				slog.Error("failed to accept a control connection", "error", err)
				return
			}
			handle(conn, c)
		}
	}()
	return nil
}

func handle(conn net.Conn, c *children) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	var r signalRequest
	err := json.NewDecoder(conn).Decode(&r)
	if err == nil {
		s, known := signals[r.Action]
		if err = fmt.Errorf("unknown action %q", r.Action); known {
			err = c.signal(r.Process, s)
		}
	}
	response := ""
	if err != nil {
		response = err.Error()
	}
	slog.Info("signal request", "action", r.Action, "process", r.Process, "error", response)
	json.NewEncoder(conn).Encode(response)
}

// Signal asks the supervisor of a run directory to pause, resume or kill one of its
// processes.
func Signal(run, action, process string) error {
	conn, err := net.DialTimeout("unix", filepath.Join(run, "control.sock"), 5*time.Second)
	if err != nil {
		return fmt.Errorf("connect to the lab's supervisor: %w", err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	if err := json.NewEncoder(conn).Encode(signalRequest{action, process}); err != nil {
		return fmt.Errorf("%s %s: %w", action, process, err)
	}
	var response string
	if err := json.NewDecoder(conn).Decode(&response); err != nil {
		return fmt.Errorf("%s %s: %w", action, process, err)
	}
	if response != "" {
		return fmt.Errorf("%s %s: %s", action, process, response)
	}
	return nil
}
