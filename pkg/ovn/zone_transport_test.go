// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/pkg/network"
)

// A zone with another transport of the cluster default network than the node was installed
// with ends without changing a row: at its start, and when the node's id comes later.
func TestZoneTransport(t *testing.T) {
	other := map[string]string{network.AnnotationDefaultTransport: network.TransportNoOverlay}
	refused := func(t *testing.T, env *zoneEnv, trigger func()) {
		t.Helper()
		before := env.dump()
		z, done := env.newZone(), make(chan error, 1)
		go func() { done <- z.serve(t.Context()) }()
		synctest.Wait()
		trigger()
		select {
		case err := <-done:
			if !errors.Is(err, network.ErrTransport) {
				t.Errorf("the zone ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the zone runs")
		}
		if got := env.dump(); got != before {
			t.Errorf("databases were\n%s\nare\n%s", before, got)
		}
	}
	t.Run("restart", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			env := threeNodes(t)
			env.stop()
			env.annotateNode("node1", other)
			env.namespace("later", true)
			env.nad("later", "net", "later_net", 9, "10.99.0.0/16/24")
			refused(t, env, func() {})
			env.annotateNode("node1", map[string]string{network.AnnotationDefaultTransport: network.TransportGeneve})
			env.run()
			env.waitUntil("ready with the installed transport", env.zone.Ready)
		})
	})
	t.Run("first id", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			env := newZoneEnv(t)
			env.node(1, false)
			n := testNode(1, "node1", network.SharedGateway)
			annotations, err := n.AgentAnnotations()
			env.must(err)
			annotations[network.AnnotationNodeID], annotations[network.AnnotationDefaultTransport] = "1", network.TransportNoOverlay
			refused(t, env, func() { env.annotateNode("node1", annotations) })
		})
	})
	t.Run("changed while it runs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			env := threeNodes(t)
			env.annotateNode("node1", map[string]string{network.AnnotationDefaultTransport: network.TransportGeneve})
			env.settle()
			before := env.dump()
			env.annotateNode("node1", other)
			env.settle()
			if got := env.dump(); got != before || !env.zone.Ready() {
				t.Errorf("ready: %t; databases were\n%s\nare\n%s", env.zone.Ready(), before, got)
			}
		})
	})
}
