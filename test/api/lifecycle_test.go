// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// A network is deleted when its last pod is gone, by the pod's event.
func TestDeletionWaitsForPods(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	startController(t, testConfig(t))
	ns := w.namespace("del", true, "team=del")
	defer w.remove(ns)
	c := newCUDN("del-net", "del", "10.110.0.0/16")
	w.create(c)
	w.waitCreated(c, "[del]")
	running, done := w.createPodUsing("del", "running", "del/del-net"), w.createPodUsing("del", "done", "del/del-net")
	other := w.createPodUsing("del", "other")
	defer w.remove(other)
	w.remove(c)
	w.waitCondition(c, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "NetworkAttachmentDefinitionSyncError",
		"failed to delete NetworkAttachmentDefinition [del/del-net]: network in use by the following pods: [del/done, del/running]")
	if nad := w.nad("del", "del-net"); nad.DeletionTimestamp == nil {
		t.Error("the NAD of a network that is being deleted has no deletionTimestamp: new pods can use it")
	}
	// A completed pod does not use the network.
	if err := w.Status().Patch(w.ctx, done, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))); err != nil {
		t.Fatal(err)
	}
	w.waitCondition(c, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "[del/running]")
	start := time.Now()
	w.remove(running)
	w.waitGone(c)
	w.waitGone(&nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "del", Name: "del-net"}})
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the network was deleted %s after its last pod: it waited for a timer", took)
	}
	// The name and an id are free.
	again := newCUDN("del-net", "del", "10.110.0.0/16")
	w.create(again)
	w.waitCreated(again, "[del]")
	w.remove(again)
	w.waitGone(again)
}

// A NAD that a tenant keeps with a finalizer of another program is named in the condition, and recreated when it is gone.
func TestNADKeptByAnother(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	startController(t, testConfig(t))
	ns := w.namespace("held-nad", true, "team=held-nad")
	defer w.remove(ns)
	c := newCUDN("held-nad-net", "held-nad", "10.113.0.0/16")
	w.create(c)
	w.waitCreated(c, "[held-nad]")
	nad := w.nad("held-nad", "held-nad-net")
	blocks := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "held-nad", Name: "mine", Finalizers: []string{"example.com/mine"}, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: nadv1.SchemeGroupVersion.String(), Kind: "NetworkAttachmentDefinition", Name: nad.Name, UID: nad.UID, BlockOwnerDeletion: new(bool)}}}}
	*blocks.OwnerReferences[0].BlockOwnerDeletion = true
	w.create(blocks)
	if err := w.Delete(w.ctx, nad, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil { // adds a finalizer
		t.Fatal(err)
	}
	w.waitCondition(c, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "held-nad/held-nad-net was deleted, and cannot be recreated before these finalizers of other programs are removed: foregroundDeletion")
	if err := w.Patch(w.ctx, blocks, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		t.Fatal(err)
	}
	w.waitCreated(c, "[held-nad]")
	w.remove(c)
	w.waitGone(c)
}

// The deletion of a UserDefinedNetwork that waits for pods has an event.
func TestBlockedDeletionHasAnEvent(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	startController(t, testConfig(t))
	ns := w.namespace("waits", true)
	defer w.remove(ns)
	u := newUDN("waits", "net", "10.114.0.0/16")
	w.create(u)
	w.waitCreated(u)
	pod := w.createPodUsing("waits", "running", "waits/net")
	w.remove(u)
	w.waitCondition(u, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "network in use by the following pods: [waits/running]")
	Eventually(t, func() error {
		var l eventsv1.EventList
		if err := w.List(w.ctx, &l, client.InNamespace("waits")); err != nil {
			return err
		}
		if !slices.ContainsFunc(l.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Kind == "UserDefinedNetwork" && strings.Contains(e.Note, "network in use by the following pods")
		}) {
			return fmt.Errorf("no event of the network that waits for its pod: %v", l.Items)
		}
		return nil
	})
	w.remove(pod)
	w.waitGone(u)
}

// A secondary network that is recreated as primary, while a pod still uses the old NAD, waits for the pod, and its
// controller does so too.
func TestRecreatedAsPrimary(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	startController(t, testConfig(t))
	ns := w.namespace("again", true)
	defer w.remove(ns)
	secondary := newUDN("again", "net", "10.111.0.0/16")
	secondary.Spec.Layer3.Role = udnv1.NetworkRoleSecondary
	w.create(secondary)
	w.waitCreated(secondary)
	pod := w.createPodUsing("again", "running", "again/net")
	w.remove(secondary)
	if err := w.Patch(w.ctx, secondary, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		t.Fatal(err)
	}
	w.waitGone(secondary)
	primary := newUDN("again", "net", "10.111.0.0/16")
	w.create(primary)
	w.waitCondition(primary, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "of a deleted UserDefinedNetwork of this name still exists")
	before := reconciles(t, "network")
	other := newUDN("again", "other", "10.112.0.0/16")
	other.Spec.Layer3.Role = udnv1.NetworkRoleSecondary
	w.create(other)
	defer w.remove(other)
	w.waitCreated(other)
	if n := reconciles(t, "network") - before; n > 30 {
		t.Errorf("%v reconciliations while the network waits for a pod, want at most 30", n)
	}
	w.remove(pod)
	w.waitCreated(primary)
	w.remove(primary)
	w.waitGone(primary)
}

// A namespace can be deleted with its pods and networks of both kinds.
func TestNamespaceDeletion(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	startController(t, testConfig(t))
	mine, shared, other := w.namespace("nsdel-udn", true), w.namespace("nsdel-cudn", true, "team=nsdel"), w.namespace("nsdel-stays", true, "team=nsdel")
	defer w.remove(other)
	u, c := newUDN("nsdel-udn", "net", "10.111.0.0/16"), newCUDN("nsdel", "nsdel", "10.112.0.0/16")
	w.create(u)
	w.create(c)
	defer w.remove(c)
	w.waitCreated(u)
	w.waitCreated(c, "[nsdel-cudn, nsdel-stays]")
	w.createPodUsing("nsdel-udn", "p", "nsdel-udn/net")
	w.createPodUsing("nsdel-cudn", "p", "nsdel-cudn/nsdel")
	w.remove(mine)
	w.remove(shared)
	w.waitGone(mine)
	w.waitGone(shared)
	w.waitCreated(c, "[nsdel-stays]")
}

// waitClean waits until the networks that earlier tests deleted are gone, so that
// the controller no longer writes for them.
func (w fixture) waitClean() {
	w.t.Helper()
	c := startController(w.t, testConfig(w.t))
	EventuallyWithin(w.t, 10*time.Minute, func() error { // some tests leave hundreds behind
		for _, l := range []client.ObjectList{&nadv1.NetworkAttachmentDefinitionList{}, &udnv1.UserDefinedNetworkList{}, &udnv1.ClusterUserDefinedNetworkList{}} {
			if err := w.List(w.ctx, l, client.Limit(1)); err != nil {
				return err
			}
			if meta.LenList(l) > 0 {
				return fmt.Errorf("objects of %T remain", l)
			}
		}
		return nil
	})
	c.stop()
}

// A restarted controller writes nothing when everything is up to date; a new
// network takes three writes.
func TestRestartWritesNothing(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	// The namespaces are created first: watches of different kinds are not ordered,
	// and the controller writes the status of a network twice if it receives the
	// network before its namespace.
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
		w.waitCreated(c)
	}
	w.waitCondition(bad, udnv1.ConditionNetworkCreated, metav1.ConditionFalse)
	first.stop()
	n, list := first.total()
	t.Logf("%d writes for %d networks and a refused one", n, networks)
	if limit := 3*networks + 1 + 1; n > limit {
		t.Errorf("%d writes, want at most %d (3 per network, 1 for the refused one, 1 for the node id):%s", n, limit, list)
	}

	second := startController(t, testConfig(t))
	probe := newCUDN("restart-probe", "restart-probe", "10.113.0.0/16")
	w.create(probe)
	defer w.remove(probe)
	w.waitCreated(probe) // the queue has all existing networks before it
	second.stop()
	if n, list := second.total(); n != 3 {
		t.Errorf("after a restart %d writes, want the 3 of the new network:%s", n, list)
	}
}

// Networks keep their ids when the leader is killed, and its successor allocates
// no id twice.
func TestLeaderKilled(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	ids := map[string]string{}
	create10 := func(prefix string) {
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
			w.waitCreated(c)
			id := w.nad(c.Name, c.Name).Annotations[network.AnnotationNetworkID]
			if other, taken := ids[id]; taken {
				t.Errorf("networks %s and %s share id %s", other, c.Name, id)
			}
			ids[id] = c.Name
		}
	}
	leader := startControllerProcess(t)
	create10("kill-before")
	standby := startController(t, testConfig(t))
	if err := leader.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	create10("kill-after")
	t.Logf("the successor's networks were ready %s after the leader was killed", time.Since(start).Round(100*time.Millisecond))
	standby.stop()
	for id, name := range ids {
		if got := w.nad(name, name).Annotations[network.AnnotationNetworkID]; got != id {
			t.Errorf("network %s had id %s and now has %s", name, id, got)
		}
	}
}
