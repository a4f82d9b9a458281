// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
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
	inner := nb.conn.found
	nb.conn.found = func(c client.Client) {
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

// A database that hangs fails a transaction in its time, whatever the caller's
// context; when it goes on, so does the zone.
func TestTransactionOfDatabaseThatHangs(t *testing.T) {
	h := newHost(t, debianTree(t), "db", "")
	server := h.database("nb", "usr/share/ovn/ovn-nb.ovsschema")
	nb := NewNB(h.sock("nb"), quietLog(), func() {}, func(string, Part) {})
	nb.conn.timeout = 500 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { nb.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "connected", func() error {
		if !nb.Connected() {
			return errors.New("not yet")
		}
		return nil
	})
	node, n := testNode(1, "node1", network.SharedGateway), testTenant(1, "red_net", false)
	in := Inputs{Plan: testPlan(false), PhysicalNetwork: "physnet"}
	want, err := Build(n, node, in)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- nb.Apply(context.Background(), Diff(want, nil)[:1]) }()
	select {
	case err = <-result:
	case <-time.After(time.Minute):
		err = errors.New("it waits for ever")
	}
	if !errors.Is(err, errHangs) {
		t.Errorf("a transaction of a database that hangs: %v", err)
	}
	if err := server.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the zone goes on", func() error {
		have, err := nb.Read(ctx, Owner{Network: n.Name, Node: node.Name, Parts: AllParts})
		if err == nil {
			err = nb.Apply(ctx, Diff(want, have))
		}
		return err
	})
}
