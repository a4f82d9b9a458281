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

// Order is what a test can ask the supervisor to do to one of its processes:
// kube-apiserver, etcd, kube-controller-manager, kube-scheduler or a node.
type Order struct {
	Do   string `json:"do"`
	Name string `json:"name"`
}

// signals by order. Whatever is killed is started again.
var signals = map[string]syscall.Signal{"pause": syscall.SIGSTOP, "resume": syscall.SIGCONT, "kill": syscall.SIGKILL}

// control listens for orders, one to a connection.
func control(socket string, c *children) error {
	os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for orders: %w", err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				slog.Error("accept an order", "err", err)
				return
			}
			obey(conn, c)
		}
	}()
	return nil
}

func obey(conn net.Conn, c *children) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	var o Order
	err := json.NewDecoder(conn).Decode(&o)
	if err == nil {
		s, known := signals[o.Do]
		if err = fmt.Errorf("unknown order %q", o.Do); known {
			err = c.signal(o.Name, s)
		}
	}
	answer := ""
	if err != nil {
		answer = err.Error()
	}
	slog.Info("order", "do", o.Do, "name", o.Name, "refused", answer)
	json.NewEncoder(conn).Encode(answer)
}

// Command sends an order to the supervisor of a run directory.
func Command(run string, o Order) error {
	conn, err := net.DialTimeout("unix", filepath.Join(run, "control.sock"), 5*time.Second)
	if err != nil {
		return fmt.Errorf("reach the lab's supervisor: %w", err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	if err := json.NewEncoder(conn).Encode(o); err != nil {
		return fmt.Errorf("%s %s: %w", o.Do, o.Name, err)
	}
	var answer string
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return fmt.Errorf("%s %s: %w", o.Do, o.Name, err)
	}
	if answer != "" {
		return fmt.Errorf("%s %s: %s", o.Do, o.Name, answer)
	}
	return nil
}
