// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// What a network, a node or a port gave back is not another's at once: not in
// this leader's time, and not in the next one's.
func TestIDsAreNotGivenAgain(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle()
	cfg := testConfig(t)
	ns := w.namespace("ids", true)
	defer w.remove(ns)
	plain := w.namespace("ids-ports", false)
	defer w.remove(plain)
	w.sharedNAD("ids-ports", "l2", "idsl2", `"topology":"layer2","subnets":"10.141.0.0/24"`)
	had := map[string]string{}
	fresh := func(kind, id, of string) {
		t.Helper()
		if was := had[kind+id]; was != "" || id == "" {
			t.Errorf("%s has the %s id %q, which %s had", of, kind, id, was)
		}
		had[kind+id] = of
	}
	for leader := range 3 {
		c := startController(t, cfg)
		for i := range 3 {
			name := fmt.Sprintf("net-%d-%d", leader, i)
			u := newUDN("ids", name, "10.100.0.0/16")
			w.create(u)
			w.created(u)
			fresh("network", w.nad("ids", name).Annotations[network.AnnotationNetworkID], name)
			w.remove(u)
			w.waitGone(u)

			node := fmt.Sprintf("ids-%d-%d", leader, i)
			n, id := w.nodeWithID(node)
			fresh("node", id, node)
			w.remove(n)
			w.waitGone(n)
			// Registered anew, it still runs its pods.
			if n, again := w.nodeWithID(node); again != id {
				t.Errorf("node %s had the id %s and has %s", node, id, again)
			} else {
				w.remove(n)
			}

			p := w.scheduled("ids-ports", name, map[string]string{"k8s.v1.cni.cncf.io/networks": "l2"})
			fresh("port", fmt.Sprint(w.given(p, "ids-ports/l2").TunnelID), name)
			w.removeNow(p)
			w.waitGone(p)
		}
		c.stop()
	}
}

// A NAD that somebody takes away by force takes nothing from the pods on it:
// the network's id stays theirs until the last is gone.
func TestIDIsKeptForPods(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle()
	startController(t, testConfig(t))
	ns, other := w.namespace("kept", true), w.namespace("kept-hand", true)
	defer w.remove(ns)
	defer w.remove(other)
	u := newUDN("kept", "net", "10.100.0.0/16")
	w.create(u)
	w.created(u)
	hand := w.handWritten("kept-hand", "hand", `{"cniVersion":"1.1.0","name":"kepthand","type":"ovn-k8s-cni-overlay","topology":"layer3","role":"primary","subnets":"10.9.0.0/16/24","netAttachDefName":"kept-hand/hand"}`)
	w.waitID("kept-hand", "hand", "kepthand")
	used := func() float64 { return metric(t, "bulkhead_allocator_used", "allocator", "network-ids") }
	pods := []*corev1.Pod{w.pod("kept", "p", "kept/net"), w.pod("kept-hand", "p", "kept-hand/hand")}
	for _, p := range pods {
		defer w.removeNow(p)
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
		// Somebody puts it back while the object is there: it is taken off again.
		Eventually(t, func() error {
			if err := client.IgnoreNotFound(w.Patch(w.ctx, o.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", force))); err != nil {
				return err
			}
			if err := w.Get(w.ctx, client.ObjectKeyFromObject(o), o); client.IgnoreNotFound(err) != nil {
				return err
			} else if err == nil {
				return fmt.Errorf("%s/%s is still there", o.GetNamespace(), o.GetName())
			}
			return nil
		})
	}
	// Another network comes and goes: what was to be given back would be by now.
	third := w.namespace("kept-third", true)
	defer w.remove(third)
	v := newUDN("kept-third", "net", "10.100.0.0/16")
	w.create(v)
	w.created(v)
	w.remove(v)
	w.waitGone(v)
	Eventually(t, func() error {
		if n := used(); n != 2 {
			return fmt.Errorf("%v network ids are in use, want the 2 whose pods are there", n)
		}
		return nil
	})
	for i, p := range pods {
		w.removeNow(p)
		Eventually(t, func() error {
			if n := used(); n != float64(1-i) {
				return fmt.Errorf("%v network ids are in use after the pods of %d networks are gone", n, i+1)
			}
			return nil
		})
	}
}
