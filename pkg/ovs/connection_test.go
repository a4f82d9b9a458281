// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ovn-kubernetes/libovsdb/client"

	"bulkhead/pkg/network"
)

// databaseServer is an ovsdb-server that can be stopped, and started again on
// the same database.
type databaseServer struct {
	t         *testing.T
	root, dir string
	process   *exec.Cmd
}

func newDatabaseServer(t *testing.T) *databaseServer {
	t.Helper()
	s := &databaseServer{t: t, root: rootfs(t), dir: t.TempDir()}
	out, err := fromRootfs(s.root, "usr/bin/ovsdb-tool", "create", filepath.Join(s.dir, "conf.db"),
		filepath.Join(s.root, "usr/share/openvswitch/vswitch.ovsschema")).CombinedOutput()
	if err != nil {
		t.Fatalf("ovsdb-tool create: %v: %s", err, out)
	}
	s.start()
	return s
}

func (s *databaseServer) start() {
	s.t.Helper()
	s.process = background(s.t, s.root, "usr/sbin/ovsdb-server", filepath.Join(s.dir, "conf.db"),
		"--remote=punix:"+filepath.Join(s.dir, "db.sock"), "--unixctl="+filepath.Join(s.dir, "ctl"), "--no-chdir")
}

func (s *databaseServer) stop() {
	s.t.Helper()
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

func (s *databaseServer) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.process.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

func (s *databaseServer) address() string { return "unix:" + filepath.Join(s.dir, "db.sock") }

// inTime runs f, which has to end by itself: nobody cancels its context.
func inTime(t *testing.T, what string, f func(context.Context) error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- f(context.Background()) }()
	select {
	case err := <-result:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("%s waits for ever", what)
		return nil
	}
}

// eventually asks again until f is satisfied.
func eventually(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	ctx := deadline(t)
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A database that hangs fails every transaction in its time, whatever the
// caller's context: also when the socket's buffer is full, and one of many
// operations, which are not tried one by one then. When the database goes on, so
// do we.
func TestTransactionOfDatabaseThatHangs(t *testing.T) {
	s := newDatabaseServer(t)
	c := connected(t, s.address())
	ctx := deadline(t)
	if err := c.SyncChassis(ctx, testNode(), testInputs); err != nil {
		t.Fatal(err)
	}
	c.db.timeout = 500 * time.Millisecond
	var nets []network.Network
	for id := 1; id <= 450; id++ {
		nets = append(nets, testNetwork(id))
	}
	s.signal(syscall.SIGSTOP)
	for range 4 {
		for what, f := range map[string]func(context.Context) error{
			"a pod's ports":    func(ctx context.Context) error { return c.EnsurePods(ctx, podPorts("s")) },
			"management ports": func(ctx context.Context) error { return c.SyncManagement(ctx, testNode(), nets) },
		} {
			if err := inTime(t, what, f); !errors.Is(err, errHangs) {
				t.Errorf("%s of a database that hangs: %v", what, err)
			}
		}
	}
	s.signal(syscall.SIGCONT)
	c.db.timeout = 0
	eventually(t, "it goes on", func(ctx context.Context) error {
		return errors.Join(c.EnsurePods(ctx, podPorts("s")), c.SyncManagement(ctx, testNode(), nets))
	})
	if have := must(c.Read(ctx, OwnerManagement)); len(have.Ports) != len(nets) {
		t.Errorf("%d management ports, want %d", len(have.Ports), len(nets))
	}
}

// While the database is away, readers are told so; when it is back, they read.
func TestReadWithoutDatabase(t *testing.T) {
	s := newDatabaseServer(t)
	c := connected(t, s.address())
	if err := c.SyncChassis(deadline(t), testNode(), testInputs); err != nil {
		t.Fatal(err)
	}
	s.stop()
	eventually(t, "the loss is noticed", func(context.Context) error {
		err := inTime(t, "a read", func(ctx context.Context) error { _, err := c.ListPods(ctx); return err })
		if !errors.Is(err, errNotConnected) {
			return errors.Join(errors.New("the last state is taken for the present one"), err)
		}
		return nil
	})
	err := inTime(t, "a transaction", func(ctx context.Context) error { return c.EnsurePods(ctx, podPorts("s")) })
	if !errors.Is(err, errNotConnected) {
		t.Errorf("a transaction without a database: %v", err)
	}
	s.start()
	eventually(t, "connected again", func(ctx context.Context) error { return c.EnsurePods(ctx, podPorts("s")) })
}

// A database that hangs while we connect is given up, and found when it goes on.
func TestConnectToDatabaseThatHangs(t *testing.T) {
	s := newDatabaseServer(t)
	c := connected(t, s.address())
	s.stop()
	s.start()
	eventually(t, "the socket is there", func(ctx context.Context) error { _, err := c.ListPods(ctx); return err })
	s.signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	started := time.Now()
	if late, err := Connect(ctx, s.address(), c.log); err == nil {
		late.Close()
		t.Error("connected to a database that hangs")
	}
	if d := time.Since(started); d > 10*time.Second {
		t.Errorf("gave up after %s", d)
	}
	s.signal(syscall.SIGCONT)
	late, err := Connect(deadline(t), s.address(), c.log)
	if err != nil {
		t.Fatal(err)
	}
	late.Close()
}

// A connection that is lost before anybody waits for that is found again.
func TestLossBeforeTheWait(t *testing.T) {
	s := newDatabaseServer(t)
	lost, again := make(chan struct{}), make(chan struct{})
	c := &Client{log: slog.New(slog.DiscardHandler), change: newNotifier()}
	var once sync.Once
	var first client.Client
	c.db = &connection{address: s.address(), log: c.log, found: func(cl client.Client) {
		once.Do(func() {
			first = cl
			close(lost)
			<-again
			for cl.Cache() != nil {
				time.Sleep(time.Millisecond)
			}
		})
		c.follow(cl) // the first time with nothing left of its cache
	}}
	c.db.open()
	defer c.Close()
	<-lost
	s.stop()
	s.start()
	close(again)
	eventually(t, "connected again", func(ctx context.Context) error { _, err := c.db.after(ctx, first); return err })
	initialise(t, c)
}
