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
	"bulkhead/pkg/ovsdb"
	"bulkhead/test/native"
)

// databaseServer is an ovsdb-server that can be stopped and restarted with the
// same database.
type databaseServer struct {
	t       *testing.T
	root    native.Tree
	dir     string
	process *exec.Cmd
}

func newDatabaseServer(t *testing.T) *databaseServer {
	t.Helper()
	s := &databaseServer{t: t, root: rootfs(t), dir: t.TempDir()}
	out, err := fromRootfs(s.root, "ovsdb-tool", "create", filepath.Join(s.dir, "conf.db"),
		s.root.Path("usr/share/openvswitch/vswitch.ovsschema")).CombinedOutput()
	if err != nil {
		t.Fatalf("ovsdb-tool create: %v: %s", err, out)
	}
	s.start()
	return s
}

func (s *databaseServer) start() {
	s.t.Helper()
	s.process = background(s.t, s.root, "ovsdb-server", filepath.Join(s.dir, "conf.db"),
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

// expectReturn runs f, which must return although its context does not end.
func expectReturn(t *testing.T, name string, f func(context.Context) error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- f(context.Background()) }()
	select {
	case err := <-result:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("%s does not return", name)
		return nil
	}
}

// eventually retries f until it succeeds.
func eventually(t *testing.T, name string, f func(context.Context) error) {
	t.Helper()
	ctx := deadline(t)
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ensurePod creates a pod's ports.
func ensurePod(c *Client) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := c.EnsurePods(ctx, podPorts("s"))
		return err
	}
}

// With an unresponsive database every transaction times out, whatever the
// caller's context: also if the socket's buffer is full, and with many
// operations, which are then not retried one by one. Transactions succeed when
// the database resumes.
func TestTransactionTimeout(t *testing.T) {
	s := newDatabaseServer(t)
	c := connect(t, s.address())
	ctx := deadline(t)
	if err := c.SyncChassis(ctx, testNode(), testInputs); err != nil {
		t.Fatal(err)
	}
	c.db.Timeout = 500 * time.Millisecond
	var nets []network.Network
	for id := 1; id <= 450; id++ {
		nets = append(nets, testNetwork(id))
	}
	s.signal(syscall.SIGSTOP)
	for range 4 {
		for name, f := range map[string]func(context.Context) error{
			"a pod's ports":    ensurePod(c),
			"management ports": func(ctx context.Context) error { return c.SyncManagement(ctx, testNode(), nets, nil) },
		} {
			if err := expectReturn(t, name, f); !errors.Is(err, ovsdb.ErrUnresponsive) {
				t.Errorf("%s with an unresponsive database: %v", name, err)
			}
		}
	}
	s.signal(syscall.SIGCONT)
	c.db.Timeout = 0
	eventually(t, "the database resumes", func(ctx context.Context) error {
		return errors.Join(ensurePod(c)(ctx), c.SyncManagement(ctx, testNode(), nets, nil))
	})
	if have := must(c.Read(ctx, OwnerManagement)); len(have.Ports) != len(nets) {
		t.Errorf("%d management ports, want %d", len(have.Ports), len(nets))
	}
}

// While the database is down, readers and writers get ovsdb.ErrNotConnected; they
// succeed when it is up again.
func TestDatabaseDown(t *testing.T) {
	s := newDatabaseServer(t)
	c := connect(t, s.address())
	if err := c.SyncChassis(deadline(t), testNode(), testInputs); err != nil {
		t.Fatal(err)
	}
	s.stop()
	eventually(t, "the loss is detected", func(context.Context) error {
		err := expectReturn(t, "a read", func(ctx context.Context) error { _, err := c.ListPods(ctx); return err })
		if !errors.Is(err, ovsdb.ErrNotConnected) {
			return errors.Join(errors.New("a read returns stale state"), err)
		}
		return nil
	})
	err := expectReturn(t, "a transaction", ensurePod(c))
	if !errors.Is(err, ovsdb.ErrNotConnected) {
		t.Errorf("a transaction without a database: %v", err)
	}
	s.start()
	eventually(t, "reconnected", ensurePod(c))
}

// Connect times out if the database is unresponsive, and succeeds when it resumes.
func TestConnectTimeout(t *testing.T) {
	s := newDatabaseServer(t)
	c := connect(t, s.address())
	s.stop()
	s.start()
	eventually(t, "the socket exists", func(ctx context.Context) error { _, err := c.ListPods(ctx); return err })
	s.signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	started := time.Now()
	if second, err := Connect(ctx, s.address(), c.log); err == nil {
		second.Close()
		t.Error("connected to an unresponsive database")
	}
	if d := time.Since(started); d > 10*time.Second {
		t.Errorf("Connect returned after %s", d)
	}
	s.signal(syscall.SIGCONT)
	second, err := Connect(deadline(t), s.address(), c.log)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

// The client reconnects even if the connection is lost before waitForLoss.
func TestConnectionLostBeforeWait(t *testing.T) {
	s := newDatabaseServer(t)
	lost, again := make(chan struct{}), make(chan struct{})
	c := newClient(s.address(), slog.New(slog.DiscardHandler))
	var once sync.Once
	var first client.Client
	c.db.OnConnect = func(cl client.Client) {
		once.Do(func() {
			first = cl
			close(lost)
			<-again
			for cl.Cache() != nil {
				time.Sleep(time.Millisecond)
			}
		})
		c.handleConnect(cl) // the first client has no cache any more
	}
	c.start()
	defer c.Close()
	<-lost
	s.stop()
	s.start()
	close(again)
	eventually(t, "reconnected", func(ctx context.Context) error { _, err := c.db.Wait(ctx, first); return err })
	initialise(t, c)
}
