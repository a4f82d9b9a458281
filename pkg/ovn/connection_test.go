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
)

// A connection that is lost before anybody waits for that is found again: once,
// the zone waited for ever.
func TestLossBeforeTheWait(t *testing.T) {
	h := newHost(t, debianTree(t), "db", "")
	server := h.database("nb", "usr/share/ovn/ovn-nb.ovsschema")
	var found atomic.Int32
	lost, again := make(chan struct{}), make(chan struct{})
	nb := NewNB(h.sock("nb"), quietLog(), func() {}, func(string, Part) {})
	inner := nb.conn.onConnect
	nb.conn.onConnect = func(c client.Client) {
		if found.Add(1) == 1 {
			close(lost)
			<-again
			for c.Cache() != nil {
				time.Sleep(time.Millisecond)
			}
			inner(c) // with nothing left of its cache
			return
		}
		inner(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { nb.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	<-lost
	stop(server)
	h.serveDatabase("nb")
	close(again)
	eventually(t, "connected again", func() error {
		if found.Load() < 2 || !nb.Connected() {
			return fmt.Errorf("found %d times, connected %t", found.Load(), nb.Connected())
		}
		return nil
	})
}

// A database that hangs fails transactions in their time, whatever the caller's
// context, also when it takes nothing more from the socket; when it goes on, so
// does the zone.
func TestTransactionOfDatabaseThatHangs(t *testing.T) {
	h := newHost(t, debianTree(t), "db", "")
	servers := []*exec.Cmd{h.database("nb", "usr/share/ovn/ovn-nb.ovsschema"), h.database("sb", "usr/share/ovn/ovn-sb.ovsschema")}
	all := func(sig syscall.Signal) {
		for _, s := range servers {
			if err := s.Process.Signal(sig); err != nil {
				t.Error(err)
			}
		}
	}
	nb := NewNB(h.sock("nb"), quietLog(), func() {}, func(string, Part) {})
	sb := NewSB(h.sock("sb"), quietLog(), func() {}, func() {})
	nb.conn.timeout, sb.conn.timeout = 200*time.Millisecond, 200*time.Millisecond
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
	var ops []Op // more than a transaction's, each of which is more than a socket holds
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
	for range maxInFlight + 2 { // also with as many left behind as there may be
		for what, c := range map[string]struct {
			apply func() error
			left  string
		}{
			"rows":                  {func() error { return nb.Apply(context.Background(), ops) }, fmt.Sprintf("%d operations not tried", len(ops)-maxOps)},
			"a row":                 {func() error { return nb.Apply(context.Background(), ops[:1]) }, ""},
			"one row after another": {func() error { return nb.apply(context.Background(), ops[:3], 1) }, "2 operations not tried"},
			"chassis":               {func() error { return sb.ApplyChassis(context.Background(), chassis) }, "2 operations not tried"},
		} {
			result := make(chan error, 1)
			go func() { result <- c.apply() }()
			var err error
			select {
			case err = <-result:
			case <-time.After(10 * time.Second):
				t.Fatalf("%s of a database that hangs: no end", what)
			}
			if !errors.Is(err, errUnresponsive) || !strings.Contains(err.Error(), c.left) {
				t.Fatalf("%s of a database that hangs: %.500v, want %q in it", what, err, c.left)
			}
		}
	}
	all(syscall.SIGCONT)
	n := testTenant(1, "net1", false)
	want, err := Build(n, node, in)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the zone goes on", func() error {
		have, err := nb.Read(ctx, Owner{Network: n.Name, Node: node.Name, Parts: AllParts})
		if err == nil {
			err = nb.Apply(ctx, Diff(want, have))
		}
		if err != nil {
			return err
		}
		there, err := sb.ReadChassis(ctx)
		if err == nil {
			err = sb.ApplyChassis(ctx, DiffChassis(BuildChassis(node, []network.Node{peer(2)}), there))
		}
		return err
	})
}
