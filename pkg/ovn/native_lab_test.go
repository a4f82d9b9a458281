// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"os/exec"
	"testing"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovsdb"
	"bulkhead/test/native"
)

// debianTree returns the tree of OVN and Open vSwitch; the test is skipped without it.
func debianTree(t testing.TB) native.Tree {
	t.Helper()
	root, err := native.FindTree()
	if err != nil {
		t.Skip(err)
	}
	return root
}

// host is a native.Host of a test, which its failures end.
type host struct {
	*native.Host
	t testing.TB
}

func newHost(t testing.TB, r native.Tree, name, ns string) *host {
	t.Helper()
	n := must(native.NewHost(r, name, ns))(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(n.Output())
		}
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &host{Host: n, t: t}
}

// must returns a function that fails the test on the error, and else returns the value.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func mustRun(t testing.TB, argv ...string) string {
	t.Helper()
	return must(native.Run(nil, argv...))(t)
}

// must runs a program of the tree and returns its output.
func (h *host) must(program string, args ...string) string {
	h.t.Helper()
	return must(h.Run(program, args...))(h.t)
}

func (h *host) database(db string) *exec.Cmd {
	h.t.Helper()
	return must(h.Database(db))(h.t)
}

func (h *host) serveDatabase(db string) *exec.Cmd {
	h.t.Helper()
	return must(h.ServeDatabase(db))(h.t)
}

func (h *host) startCentral() {
	h.t.Helper()
	must(h.StartCentral())(h.t)
}

func (h *host) startOVS(node network.Node, underlay, cidr string) {
	h.t.Helper()
	must(h.StartOVS(node, underlay, cidr))(h.t)
}

func (h *host) warnings() []string {
	h.t.Helper()
	return must(h.Warnings())(h.t)
}

// databases returns connected clients of the zone's databases.
func (h *host) databases() (*NB, *SB) {
	h.t.Helper()
	log := quietLog()
	nb := NewNB(h.Sock("nb"), log, func() {}, func(string, Unit, bool) {})
	sb := NewSB(h.Sock("sb"), log, func() {}, func() {})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { nb.Run(ctx); ended <- struct{}{} }()
	go func() { sb.Run(ctx); ended <- struct{}{} }()
	h.t.Cleanup(func() { cancel(); <-ended; <-ended })
	eventually(h.t, "clients connect", func() error {
		if !nb.Connected() || !sb.Connected() {
			return ovsdb.ErrNotConnected
		}
		return nil
	})
	return nb, sb
}

func quietLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func eventually(t testing.TB, desc string, f func() error) {
	t.Helper()
	if err := native.Eventually(desc, f); err != nil {
		t.Fatal(err)
	}
}

// plug connects a namespace to a logical port, as CNI ADD does.
func (h *host) plug(lsp, uid, ns string, link string, mac string, ips []netip.Prefix, routes ...string) {
	h.t.Helper()
	if err := h.Plug(native.Port{LSP: lsp, UID: uid, NS: ns, Link: link, MAC: mac, IPs: ips, Routes: routes}); err != nil {
		h.t.Fatal(err)
	}
}

// namespace creates a network namespace that is deleted when the test ends.
func namespace(t testing.TB, name string) string {
	t.Helper()
	ns := must(native.Namespace(name))(t)
	t.Cleanup(func() { _ = native.DeleteNamespace(ns) })
	return ns
}
