// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// A released id of a network, node or port is not allocated again at once,
// neither by the same leader nor by the next ones.
func TestIDsAreNotReused(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	cfg := testConfig(t)
	ns := w.namespace("ids", true)
	defer w.remove(ns)
	plain := w.namespace("ids-ports", false)
	defer w.remove(plain)
	w.createNADOf("ids-ports", "l2", "idsl2", `"topology":"layer2","subnets":"10.141.0.0/24"`)
	had := map[string]string{}
	checkNew := func(kind, id, owner string) {
		t.Helper()
		if was := had[kind+id]; was != "" || id == "" {
			t.Errorf("%s has the %s id %q, which %s had", owner, kind, id, was)
		}
		had[kind+id] = owner
	}
	for leader := range 3 {
		c := startController(t, cfg)
		for i := range 3 {
			name := fmt.Sprintf("net-%d-%d", leader, i)
			u := newUDN("ids", name, "10.100.0.0/16")
			w.create(u)
			w.waitCreated(u)
			checkNew("network", w.nad("ids", name).Annotations[network.AnnotationNetworkID], name)
			w.remove(u)
			w.waitGone(u)

			node := fmt.Sprintf("ids-%d-%d", leader, i)
			n, id := w.createNode(node)
			checkNew("node", id, node)
			w.remove(n)
			w.waitGone(n)
			// A node that registers again still runs its pods: it keeps its id.
			if n, again := w.createNode(node); again != id {
				t.Errorf("node %s had id %s and now has %s", node, id, again)
			} else {
				w.remove(n)
			}

			p := w.createPod("ids-ports", name, map[string]string{"k8s.v1.cni.cncf.io/networks": "l2"})
			checkNew("port", fmt.Sprint(w.waitEntry(p, "ids-ports/l2").TunnelID), name)
			w.deletePodNow(p)
			w.waitGone(p)
		}
		c.stop()
	}
}

// A network's id is released when its NADs are gone, also if a finalizer of its user's keeps the UserDefinedNetwork; and one
// whose NAD the API server rejects holds none. Otherwise one namespace could use up all ids of the cluster.
func TestIDsOfNetworksWithoutNAD(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	startController(t, testConfig(t))
	ns := w.namespace("hoard", false)
	defer w.remove(ns)
	used := func() float64 { return metric(t, "bulkhead_allocator_used", "allocator", "network-ids") }
	released := func(what string) {
		t.Helper()
		Eventually(t, func() error {
			if n := used(); n != 0 {
				return fmt.Errorf("%s: %v ids are in use", what, n)
			}
			return nil
		})
	}
	kept := newUDN("hoard", "kept", "10.100.0.0/16")
	kept.Spec.Layer3.Role = "Secondary"
	kept.Finalizers = []string{"example.com/kept"}
	w.create(kept)
	w.waitCreated(kept)
	if n := used(); n != 1 {
		t.Fatalf("%v ids are in use, want 1", n)
	}
	first, err := strconv.Atoi(w.nad("hoard", "kept").Annotations[network.AnnotationNetworkID])
	if err != nil {
		t.Fatal(err)
	}
	w.remove(kept)
	released("a deleted network with a finalizer")
	w.waitCondition(kept, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "NetworkAttachmentDefinitionDeleted", "until other programs have removed their finalizers")
	if err := w.Get(w.ctx, client.ObjectKeyFromObject(kept), kept); err != nil || kept.DeletionTimestamp == nil {
		t.Errorf("the network is to stay in deletion: %v", err)
	}
	without, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": nil}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Patch(w.ctx, kept, client.RawPatch("application/merge-patch+json", without)); err != nil {
		t.Fatal(err)
	}
	none := corev1.ResourceList{"count/network-attachment-definitions.k8s.cni.cncf.io": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "hoard", Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
	w.create(quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none} // as kube-controller-manager would
	if err := w.Status().Update(w.ctx, quota); err != nil {
		t.Fatal(err)
	}
	rejected := newUDN("hoard", "rejected", "10.100.0.0/16")
	rejected.Spec.Layer3.Role = "Secondary"
	w.create(rejected)
	w.waitCondition(rejected, "NetworkCreated", "False", "exceeded quota")
	released("a network without room for its NAD")
	reconciled := func() float64 { return metric(t, "controller_runtime_reconcile_errors_total", "controller", "network") }
	retries := reconciled() + 3
	Eventually(t, func() error {
		if n := reconciled(); n < retries {
			return fmt.Errorf("%v reconciles have failed, want %v", n, retries)
		}
		return nil
	})
	w.remove(quota)
	w.waitCreated(rejected)
	if id := w.nad("hoard", "rejected").Annotations[network.AnnotationNetworkID]; id != strconv.Itoa(first+1) {
		t.Errorf("after several attempts the network has the id %s, want %d: each attempt used up one", id, first+1)
	}
	w.remove(rejected)
	w.waitGone(rejected)
}

// When a NAD is deleted by removing its finalizers, the network's id stays
// allocated until the last pod on the network is gone.
func TestIDHeldWhilePodsUseNetwork(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	startController(t, testConfig(t))
	ns, other := w.namespace("kept", true), w.namespace("kept-hand", true)
	defer w.remove(ns)
	defer w.remove(other)
	u := newUDN("kept", "net", "10.100.0.0/16")
	w.create(u)
	w.waitCreated(u)
	hand := w.createNAD("kept-hand", "hand", `{"cniVersion":"1.1.0","name":"kepthand","type":"ovn-k8s-cni-overlay","topology":"layer3","role":"primary","subnets":"10.9.0.0/16/24","netAttachDefName":"kept-hand/hand"}`)
	w.waitID("kept-hand", "hand", "kepthand")
	used := func() float64 { return metric(t, "bulkhead_allocator_used", "allocator", "network-ids") }
	pods := []*corev1.Pod{w.createPodUsing("kept", "p", "kept/net"), w.createPodUsing("kept-hand", "p", "kept-hand/hand")}
	for _, p := range pods {
		defer w.deletePodNow(p)
	}
	nad := w.nad("kept", "net")
	w.remove(u)
	w.waitCondition(u, "NetworkCreated", "False", "in use by")
	force, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": nil}})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{nad, hand, u} {
		if o != u {
			w.remove(o)
		}
		// The controller restores the finalizer while the object exists: retry.
		Eventually(t, func() error {
			if err := client.IgnoreNotFound(w.Patch(w.ctx, o.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", force))); err != nil {
				return err
			}
			if err := w.Get(w.ctx, client.ObjectKeyFromObject(o), o); client.IgnoreNotFound(err) != nil {
				return err
			} else if err == nil {
				return fmt.Errorf("%s/%s still exists", o.GetNamespace(), o.GetName())
			}
			return nil
		})
	}
	// Once another network was created and deleted, the controller has also
	// reconciled the deletions above.
	third := w.namespace("kept-third", true)
	defer w.remove(third)
	v := newUDN("kept-third", "net", "10.100.0.0/16")
	w.create(v)
	w.waitCreated(v)
	w.remove(v)
	w.waitGone(v)
	Eventually(t, func() error {
		if n := used(); n != 2 {
			return fmt.Errorf("%v network ids are in use, want the 2 of networks with pods", n)
		}
		return nil
	})
	for i, p := range pods {
		w.deletePodNow(p)
		Eventually(t, func() error {
			if n := used(); n != float64(1-i) {
				return fmt.Errorf("%v network ids are in use after the pods of %d networks were deleted", n, i+1)
			}
			return nil
		})
	}
}
