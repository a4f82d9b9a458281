// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/bgp"
	"bulkhead/pkg/config"
)

// From BGPSessionStates to the condition of Nodes: frr-k8s installed late, a session that is down for
// longer than sessions may be, one that comes back, an edited condition, and sessions that are gone.
func TestBGPSessions(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.installFRR()
	cfg := testConfig(t)
	cfg.IDAge, cfg.BGP.Topology = 0, config.FullMesh
	controller := startController(t, cfg)
	var nodes []*corev1.Node
	for i := range 2 {
		n, _ := w.createNode(fmt.Sprint("session-node-", i))
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprint("172.19.0.", i+1)}, {Type: corev1.NodeInternalIP, Address: fmt.Sprint("fd00:19::", i+1)}}
		if err := w.Status().Update(w.ctx, n); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	w.installFRRCRD("bgpsessionstates")
	set := func(s *frrv1.BGPSessionState, state string) {
		t.Helper()
		s.Status.BGPStatus = state
		if err := w.Status().Update(w.ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	session := func(node, peer, vrf, state string) *frrv1.BGPSessionState {
		t.Helper()
		s := &frrv1.BGPSessionState{ObjectMeta: metav1.ObjectMeta{Namespace: frrNamespace, GenerateName: node + "-"}}
		Eventually(t, func() error { return w.Create(w.ctx, s) }) // discovery may not have the kind yet
		s.Status = frrv1.BGPSessionStateStatus{Node: node, Peer: peer, VRF: vrf}
		set(s, state)
		return s
	}
	// wait waits until a Node has the condition; status "" is none.
	wait := func(n *corev1.Node, status corev1.ConditionStatus, reason, message string) {
		t.Helper()
		Eventually(t, func() error {
			if err := w.Get(w.ctx, client.ObjectKeyFromObject(n), n); err != nil {
				return err
			}
			var got corev1.NodeCondition
			for _, c := range n.Status.Conditions {
				if c.Type == bgp.ConditionBGP {
					got = c
				}
			}
			if got.Status != status || got.Reason != reason || !strings.Contains(got.Message, message) {
				return fmt.Errorf("condition of %s is %+v, want %s %s with %q", n.Name, got, status, reason, message)
			}
			return nil
		})
	}
	v4 := session(nodes[0].Name, "172.19.0.2", "default", "Established")
	wait(nodes[0], corev1.ConditionFalse, bgp.ReasonEstablished, "")
	v6 := session(nodes[0].Name, "fd00-0019-0000-0000-0000-0000-0000-0002", "default", "Active")
	session(nodes[0].Name, "192.0.2.1", "default", "Idle")   // no node
	session(nodes[0].Name, "172.19.0.2", "lite1", "Connect") // no session of the fabric
	wait(nodes[0], corev1.ConditionTrue, bgp.ReasonSessionsDown, "1 of 2 BGP sessions with other nodes are down: session-node-1 at fd00:19::2 (Active)")
	wait(nodes[1], "", "", "")
	Eventually(t, func() error {
		var l eventsv1.EventList
		if err := w.List(w.ctx, &l, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return err
		}
		if !slices.ContainsFunc(l.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == nodes[0].Name && e.Reason == bgp.ReasonSessionsDown && strings.Contains(e.Note, "fd00:19::2")
		}) {
			return fmt.Errorf("no event %s among %d", bgp.ReasonSessionsDown, len(l.Items))
		}
		return nil
	})

	edit := client.RawPatch(types.StrategicMergePatchType, []byte(`{"status":{"conditions":[{"type":"`+string(bgp.ConditionBGP)+`","status":"False","reason":"Edited"}]}}`))
	if err := w.Status().Patch(w.ctx, nodes[0], edit); err != nil {
		t.Fatal(err)
	}
	wait(nodes[0], corev1.ConditionTrue, bgp.ReasonSessionsDown, "session-node-1 at fd00:19::2")
	set(v6, "Established")
	wait(nodes[0], corev1.ConditionFalse, bgp.ReasonEstablished, "")
	for _, s := range []*frrv1.BGPSessionState{v4, v6} {
		w.remove(s)
	}
	wait(nodes[0], corev1.ConditionUnknown, bgp.ReasonSessionsAbsent, "frr-status")

	controller.stop()
	cfg.BGP.Topology = ""
	startController(t, cfg)
	wait(nodes[0], "", "", "")
}
