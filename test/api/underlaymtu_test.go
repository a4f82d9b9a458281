// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// A network whose MTU is more than the underlay carries is refused. One that exists when
// underlay-mtu is lowered goes on: its namespaces keep their NADs, and new ones get theirs.
func TestUnderlayMTULowered(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	request := func(team string) *udnv1.ClusterUserDefinedNetwork {
		c := newCUDN(team, team, "10.119.0.0/16")
		c.Spec.Network.Layer3.MTU = 1400
		return c
	}
	defer w.remove(w.namespace("mtu-old-1", true, "team=mtu-old"))
	defer w.remove(w.namespace("mtu-new-1", true, "team=mtu-new"))
	first := startController(t, testConfig(t))
	old := request("mtu-old")
	w.create(old)
	defer w.remove(old)
	w.waitCreated(old)
	id := w.nad("mtu-old-1", "mtu-old").Annotations[network.AnnotationNetworkID]
	first.stop()

	lowered, err := config.Parse("[default]\nunderlay-mtu = 1450\n[kubernetes]\nlease-duration = 2s\nlease-renew-deadline = 1s\n")
	if err != nil {
		t.Fatal(err)
	}
	startController(t, lowered)
	refused := request("mtu-new")
	w.create(refused)
	defer w.remove(refused)
	w.waitCondition(refused, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "SyncError", "mtu 1400 is more than 1350", "underlay-mtu")
	defer w.remove(w.namespace("mtu-old-2", true, "team=mtu-old"))
	Eventually(t, func() error {
		n := &nadv1.NetworkAttachmentDefinition{}
		if err := w.Get(w.ctx, client.ObjectKey{Namespace: "mtu-old-2", Name: "mtu-old"}, n); err != nil {
			return err
		}
		if got := n.Annotations[network.AnnotationNetworkID]; id == "" || got != id {
			return fmt.Errorf("the NAD in the new namespace has network id %q, want %q", got, id)
		}
		return nil
	})
	w.waitCreated(old)
}
