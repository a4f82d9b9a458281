// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/cluster"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// The transport of the cluster default network is fixed at installation: a controller with
// another one ends, whether it leads or waits, and writes nothing. One node's edited
// annotation does not decide, and is put right.
func TestTransportChanged(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	cfg := testConfig(t)
	cfg.IDAge = 0
	installed := startController(t, cfg)
	w.createNode("transport-1")
	w.createNode("transport-2")
	edited, _ := w.createNode("transport-3")
	expectTransport := func(name, want string) {
		t.Helper()
		Eventually(t, func() error {
			n := &corev1.Node{}
			if err := w.Get(w.ctx, client.ObjectKey{Name: name}, n); err != nil {
				return err
			}
			if got := n.Annotations[network.AnnotationDefaultTransport]; got != want {
				return fmt.Errorf("node %s has transport %q, want %q", name, got, want)
			}
			return nil
		})
	}
	expectTransport("transport-1", network.TransportGeneve)

	other, err := config.Parse("[default]\ntransport = no-overlay\n[no-overlay]\noutbound-snat = enabled\nrouting = unmanaged\n[kubernetes]\nlease-duration = 2s\nlease-renew-deadline = 1s\n")
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		exited := make(chan error, 1)
		go func() { exited <- cluster.Run(t.Context(), other, env.Controller, testLog()) }()
		select {
		case err := <-exited:
			if !errors.Is(err, network.ErrTransport) {
				t.Errorf("%s: the controller ended with %v", when, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: a controller with another transport runs", when)
		}
	}
	refused("while another leads")
	installed.stop()

	// This node is added when no controller leads, another one is edited.
	late := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "transport-4"}}
	w.create(late)
	defer w.remove(late)
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"`+network.AnnotationDefaultTransport+`":"no-overlay"}}}`))
	if err := w.Patch(w.ctx, edited, patch); err != nil {
		t.Fatal(err)
	}
	refused("while none leads")
	if err := w.Get(w.ctx, client.ObjectKeyFromObject(late), late); err != nil || late.Annotations[network.AnnotationNodeID] != "" {
		t.Errorf("the refused controller wrote %v, %v", late.Annotations, err)
	}
	expectTransport("transport-3", network.TransportNoOverlay)

	startController(t, cfg)
	expectTransport("transport-3", network.TransportGeneve)
	expectTransport("transport-4", network.TransportGeneve)
}
