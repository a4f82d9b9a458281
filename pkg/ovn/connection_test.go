// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ovn-kubernetes/libovsdb/client"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovsdb"
	"bulkhead/test/native"
)

// A connection that is lost before waitForLoss is called is noticed, and the client
// reconnects.
func TestConnectionLostBeforeWait(t *testing.T) {
	h := newHost(t, debianTree(t), "db", "")
	server := h.database("nb")
	var connects atomic.Int32
	lost, again := make(chan struct{}), make(chan struct{})
	nb := NewNB(h.Sock("nb"), quietLog(), func() {}, func(string, Unit, bool) {})
	inner := nb.conn.OnConnect
	nb.conn.OnConnect = func(c client.Client) {
		if connects.Add(1) == 1 {
			close(lost)
			<-again
			for c.Cache() != nil {
				time.Sleep(time.Millisecond)
			}
			inner(c) // its cache is gone
			return
		}
		inner(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { nb.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	<-lost
	native.Kill(server)
	h.serveDatabase("nb")
	close(again)
	eventually(t, "connected again", func() error {
		if connects.Load() < 2 || !nb.Connected() {
			return fmt.Errorf("connected %d times, connected now: %t", connects.Load(), nb.Connected())
		}
		return nil
	})
}

// Transactions with a hanging database fail within their timeout, for any caller's
// context and also when the socket's buffer is full. When the database continues, so
// does the client.
func TestTransactionWithHangingDatabase(t *testing.T) {
	h := newHost(t, debianTree(t), "db", "")
	servers := []*exec.Cmd{h.database("nb"), h.database("sb")}
	all := func(sig syscall.Signal) {
		for _, s := range servers {
			if err := s.Process.Signal(sig); err != nil {
				t.Error(err)
			}
		}
	}
	nb := NewNB(h.Sock("nb"), quietLog(), func() {}, func(string, Unit, bool) {})
	sb := NewSB(h.Sock("sb"), quietLog(), func() {}, func() {})
	nb.conn.Timeout, sb.conn.Timeout = 200*time.Millisecond, 200*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { nb.Run(ctx) })
	running.Go(func() { sb.Run(ctx) })
	defer running.Wait()
	defer cancel()
	eventually(t, "connected", func() error {
		if !nb.Connected() || !sb.Connected() {
			return errors.New("not yet")
		}
		return nil
	})
	node := testNode(1, "node1", network.SharedGateway)
	in := Inputs{Plan: testPlan(false), PhysicalNetwork: "physnet"}
	var ops []Op // several transactions, each larger than a socket's buffer
	for id := 1; len(ops) <= 2*maxOps; id++ {
		want, err := Build(testTenant(id, fmt.Sprintf("net%d", id), false), node, in)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, Diff(want, nil)...)
	}
	peer := func(id int) network.Node { return testNode(id, fmt.Sprintf("node%d", id), network.SharedGateway) }
	chassis := DiffChassis(BuildChassis(node, []network.Node{peer(2), peer(3), peer(4)}), nil)
	defer all(syscall.SIGCONT)
	all(syscall.SIGSTOP)
	for range ovsdb.MaxTransactions + 2 { // also with ovsdb.MaxTransactions blocked transactions
		for name, c := range map[string]struct {
			apply func() error
			text  string
		}{
			"rows":                  {func() error { return nb.Apply(context.Background(), ops) }, fmt.Sprintf("%d operations not tried", len(steps(ops))-maxOps)},
			"a row":                 {func() error { return nb.Apply(context.Background(), ops[:1]) }, ""},
			"one row after another": {func() error { return nb.apply(context.Background(), ops[len(ops)-3:], 1) }, "2 operations not tried"},
			"chassis":               {func() error { return sb.ApplyChassis(context.Background(), chassis) }, "and 2 more"},
		} {
			result := make(chan error, 1)
			go func() { result <- c.apply() }()
			var err error
			select {
			case err = <-result:
			case <-time.After(10 * time.Second):
				t.Fatalf("%s with a hanging database: no end", name)
			}
			if !errors.Is(err, ovsdb.ErrUnresponsive) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("%s with a hanging database: %.500v, want %q in it", name, err, c.text)
			}
		}
	}
	all(syscall.SIGCONT)
	n := testTenant(1, "net1", false)
	want, err := Build(n, node, in)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the client continues", func() error {
		have, err := nb.Read(ctx, Selection{Network: n.Name, Node: node.Name})
		if err == nil {
			err = nb.Apply(ctx, Diff(want, have))
		}
		if err != nil {
			return err
		}
		remote, err := sb.ReadChassis(ctx)
		if err == nil {
			err = sb.ApplyChassis(ctx, DiffChassis(BuildChassis(node, []network.Node{peer(2)}), remote))
		}
		return err
	})
}
