// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// A network goes when the last pod that uses it has, by the pod's event.
func TestDeletionWaitsForPods(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	startController(t, testConfig(t))
	ns := w.namespace("del", true, "team=del")
	defer w.remove(ns)
	c := newCUDN("del-net", "del", "10.110.0.0/16")
	w.create(c)
	w.created(c, "[del]")
	running, done := w.pod("del", "running", "del/del-net"), w.pod("del", "done", "del/del-net")
	other := w.pod("del", "other")
	defer w.remove(other)
	w.remove(c)
	w.waitCondition(c, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "NetworkAttachmentDefinitionSyncError",
		"failed to delete NetworkAttachmentDefinition [del/del-net]: network in use by the following pods: [del/done, del/running]")
	if nad := w.nad("del", "del-net"); nad.DeletionTimestamp == nil {
		t.Error("the NAD of a network that goes is open to new pods")
	}
	// A pod that has finished uses nothing any more.
	if err := w.Status().Patch(w.ctx, done, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))); err != nil {
		t.Fatal(err)
	}
	w.waitCondition(c, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "[del/running]")
	start := time.Now()
	w.remove(running)
	w.waitGone(c)
	w.waitGone(&nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "del", Name: "del-net"}})
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("deletion took %s after the last pod was gone: it waited for a timer", took)
	}
	// The id is free, and the name.
	again := newCUDN("del-net", "del", "10.110.0.0/16")
	w.create(again)
	w.created(again, "[del]")
	w.remove(again)
	w.waitGone(again)
}

// A namespace that is deleted as a whole goes, with networks of both kinds.
func TestNamespaceDeletion(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	startController(t, testConfig(t))
	mine, shared, other := w.namespace("nsdel-udn", true), w.namespace("nsdel-cudn", true, "team=nsdel"), w.namespace("nsdel-stays", true, "team=nsdel")
	defer w.remove(other)
	u, c := newUDN("nsdel-udn", "net", "10.111.0.0/16"), newCUDN("nsdel", "nsdel", "10.112.0.0/16")
	w.create(u)
	w.create(c)
	defer w.remove(c)
	w.created(u)
	w.created(c, "[nsdel-cudn, nsdel-stays]")
	w.pod("nsdel-udn", "p", "nsdel-udn/net")
	w.pod("nsdel-cudn", "p", "nsdel-cudn/nsdel")
	w.remove(mine)
	w.remove(shared)
	w.waitGone(mine)
	w.waitGone(shared)
	w.created(c, "[nsdel-stays]")
}

// settle waits until what earlier tests deleted is gone, so that nobody writes
// for it any more.
func (w world) settle() {
	w.t.Helper()
	c := startController(w.t, testConfig(w.t))
	EventuallyWithin(w.t, 10*time.Minute, func() error { // some tests leave hundreds
		for _, l := range []client.ObjectList{&nadv1.NetworkAttachmentDefinitionList{}, &udnv1.UserDefinedNetworkList{}, &udnv1.ClusterUserDefinedNetworkList{}} {
			if err := w.List(w.ctx, l, client.Limit(1)); err != nil {
				return err
			}
			if meta.LenList(l) > 0 {
				return fmt.Errorf("objects of %T are left", l)
			}
		}
		return nil
	})
	c.stop()
}

// A controller that restarts and finds everything as it should be writes
// nothing; a new network costs three writes.
func TestRestartWritesNothing(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle()
	// The namespaces come first: watches of different kinds keep no order
	// among each other, and a network seen before its namespace has its status
	// written twice.
	const networks = 20
	for i := range networks {
		team := fmt.Sprintf("restart-%d", i)
		defer w.remove(w.namespace(team, true, "team="+team))
	}
	defer w.remove(w.namespace("restart-probe", true, "team=restart-probe"))
	first := startController(t, testConfig(t))
	var cudns []*udnv1.ClusterUserDefinedNetwork
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "restart-node"}}
	w.create(node)
	defer w.remove(node)
	for i := range networks {
		team := fmt.Sprintf("restart-%d", i)
		c := newCUDN(team, team, "10.113.0.0/16")
		w.create(c)
		defer w.remove(c)
		cudns = append(cudns, c)
	}
	bad := newCUDN("restart-bad", "restart-1", "10.244.0.0/24")
	w.create(bad)
	defer w.remove(bad)
	for _, c := range cudns {
		w.created(c)
	}
	w.waitCondition(bad, udnv1.ConditionNetworkCreated, metav1.ConditionFalse)
	first.stop()
	n, list := first.total()
	t.Logf("%d writes for %d networks and one refused", n, networks)
	if limit := 3*networks + 1 + 1; n > limit {
		t.Errorf("%d writes, want at most %d (3 a network, 1 for the refused one, 1 node id):%s", n, limit, list)
	}

	second := startController(t, testConfig(t))
	probe := newCUDN("restart-probe", "restart-probe", "10.113.0.0/16")
	w.create(probe)
	defer w.remove(probe)
	w.created(probe) // all that was there is queued before it
	second.stop()
	if n, list := second.total(); n != 3 {
		t.Errorf("after a restart %d writes, want the 3 of the new network:%s", n, list)
	}
}

// Ids survive the death of the leader, and its successor gives no id twice.
func TestLeaderKilled(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	ids := map[string]string{}
	make10 := func(prefix string) {
		t.Helper()
		var cudns []*udnv1.ClusterUserDefinedNetwork
		for i := range 10 {
			name := fmt.Sprintf("%s-%d", prefix, i)
			ns := w.namespace(name, true, "team="+name)
			t.Cleanup(func() { w.remove(ns) })
			c := newCUDN(name, name, "10.114.0.0/16")
			w.create(c)
			t.Cleanup(func() { w.remove(c) })
			cudns = append(cudns, c)
		}
		for _, c := range cudns {
			w.created(c)
			id := w.nad(c.Name, c.Name).Annotations[network.AnnotationNetworkID]
			if other, taken := ids[id]; taken {
				t.Errorf("networks %s and %s have the id %s", other, c.Name, id)
			}
			ids[id] = c.Name
		}
	}
	leader := startControllerProcess(t)
	make10("kill-before")
	standby := startController(t, testConfig(t))
	if err := leader.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	make10("kill-after")
	t.Logf("networks of the successor were ready %s after the leader was killed", time.Since(start).Round(100*time.Millisecond))
	standby.stop()
	for id, name := range ids {
		if got := w.nad(name, name).Annotations[network.AnnotationNetworkID]; got != id {
			t.Errorf("network %s changed its id from %s to %s", name, id, got)
		}
	}
}
