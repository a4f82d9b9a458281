// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
	adversary "bulkhead/test/adversary/writes"
)

// No write of a namespace's administrator or of a node's token changes another
// tenant's id, address or network.
func TestAdversaryWrites(t *testing.T) {
	needAPI(t)
	w := newPodFixture(t)
	startController(t, testConfig(t))
	s := adversary.Scenario{Attacker: "adv-amber", Victim: "adv-green", Network: "net", Pod: "attacker", VictimPod: "victim", Node: "adv-near", OtherNode: "adv-far"}
	for i, ns := range []string{s.Attacker, s.Victim} {
		defer w.remove(w.namespace(ns, true))
		u := newUDN(ns, s.Network, udnv1.CIDR(fmt.Sprintf("10.%d.0.0/16", 150+i)))
		w.create(u)
		w.waitCreated(u)
	}
	for _, n := range []string{s.Node, s.OtherNode} {
		w.createNode(n)
	}
	pods := map[string]string{s.Attacker: s.Pod, s.Victim: s.VictimPod}
	third := map[string]int{s.Attacker: 150, s.Victim: 151}
	for ns, name := range pods {
		key := network.NADKey(ns, s.Network)
		entry := `"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03","role":"infrastructure-locked"}`
		p := w.createPodOn(map[string]string{s.Attacker: s.Node, s.Victim: s.OtherNode}[ns], ns, name,
			map[string]string{network.AnnotationPodNetworks: fmt.Sprintf(`{%s,%q:{"ip_addresses":["10.%d.0.3/24"],"mac_address":"0a:58:0a:97:00:03","role":"primary"}}`, entry, key, third[ns])})
		if ns == s.Victim {
			n, err := w.entry(p, key)
			if err != nil {
				t.Fatal(err)
			}
			s.VictimEntry, s.OtherPod = n, [2]string{ns, name}
		}
	}
	s.AttackerID, s.VictimID = w.nad(s.Attacker, "net").Annotations[network.AnnotationNetworkID], w.nad(s.Victim, "net").Annotations[network.AnnotationNetworkID]
	victim := &corev1.Namespace{}
	if err := w.Get(w.ctx, client.ObjectKey{Name: s.Victim}, victim); err != nil {
		t.Fatal(err)
	}
	s.VictimUID = string(victim.UID)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.Victim, Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	w.create(service)
	s.VictimService, s.VictimServiceUID = service.Name, string(service.UID)
	s.Taken, s.Pods = []netip.Addr{netip.MustParseAddr(service.Spec.ClusterIP)}, []netip.Addr{s.VictimEntry.IPs[0].Addr()}
	grantEverything(t, w, s.Attacker, "adversary")
	tenant, node := nadClient(t, impersonate("adversary")), nodeClient(t, s.Node)
	kubelet := "system:node:" + s.Node
	grantClusterRole(t, w, "system:node", kubelet) // as the Node authorizer does
	as := impersonate(kubelet)
	as.Impersonate.Groups = []string{"system:nodes", "system:authenticated"}

	t.Cleanup(func() { w.forceDeleteAll(s.Attacker) })
	before, err := adversary.Read(w.ctx, w)
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{s.Attacker, s.Victim} {
		if key := "NetworkAttachmentDefinition " + ns + "/" + s.Network + " id"; before[key] == "" {
			t.Fatalf("no fact %q among %d", key, len(before))
		}
	}
	if len(s.VictimEntry.IPs) == 0 {
		t.Fatal("the victim has no address to steal")
	}
	mine := func(fact string) bool {
		for _, own := range []string{"Pod " + s.Attacker + "/made", "Pod " + s.Attacker + "/bound", "NetworkAttachmentDefinition " + s.Attacker + "/third"} {
			if strings.HasPrefix(fact, own) {
				return true
			}
		}
		return false
	}
	waitUnchanged := func(what string) {
		t.Helper()
		Eventually(t, func() error { // the controller repairs what a tenant may write
			now, err := adversary.Read(w.ctx, w)
			if err != nil {
				return err
			}
			if d := append(append(now.Differences(before, mine), now.SharedIDs()...), now.TakenOver(s)...); len(d) > 0 {
				return errors.New(what + ": " + strings.Join(d, "\n"))
			}
			return nil
		})
	}
	for _, part := range []struct {
		attacker string
		client   client.Client
		all      []adversary.Write
	}{
		{"an author of NADs", tenant, s.NADAuthor()}, {"an author of UserDefinedNetworks", tenant, s.UDNAuthor()},
		{"an author of pods", tenant, s.PodAuthor()}, {"the holder of a node's token", node, s.NodeToken()},
		{"a kubelet", nadClient(t, as), s.Kubelet()},
		{"an author of Services", tenant, s.ServiceAuthor()},
	} {
		r, err := adversary.Run(w.ctx, part.client, w, part.all)
		if err != nil {
			t.Errorf("%s: %v", part.attacker, err)
		}
		t.Logf("%s: %d writes, %d refused", part.attacker, len(part.all), r.Refused)
		waitUnchanged(part.attacker)
	}
	r, err := adversary.Run(w.ctx, tenant, w, s.Deletions())
	if err != nil {
		t.Errorf("deletions: %v", err)
	}
	t.Logf("deletions: %d writes, %d refused", len(s.Deletions()), r.Refused)
	// New networks do not get an id that the attacker's pod still uses.
	for i := range 3 {
		ns := fmt.Sprintf("adv-next-%d", i)
		defer w.remove(w.namespace(ns, true))
		u := newUDN(ns, "net", "10.152.0.0/16")
		w.create(u)
		defer w.remove(u)
		w.waitCreated(u)
		id := w.nad(ns, "net").Annotations[network.AnnotationNetworkID]
		for fact, value := range before {
			if strings.HasPrefix(fact, "NetworkAttachmentDefinition ") && strings.HasSuffix(fact, " id") && value == id {
				t.Errorf("a new network has the id %s, as %s", id, fact)
			}
		}
	}
	// The controller has created networks since the last attempt, so that it has
	// also reconciled the attempts.
	after, err := adversary.Read(w.ctx, w)
	if err != nil {
		t.Fatal(err)
	}
	attackersOrNew := func(fact string) bool {
		return strings.Contains(fact, " "+s.Attacker+"/") || strings.Contains(fact, "adv-next-")
	}
	if d := append(append(after.Differences(before, attackersOrNew), after.SharedIDs()...), after.TakenOver(s)...); len(d) > 0 {
		t.Errorf("at the end: %s", strings.Join(d, "\n"))
	}
}

// forceDeleteAll deletes the pods and networks of a namespace and removes their
// finalizers.
func (w fixture) forceDeleteAll(ns string) {
	w.t.Helper()
	for _, l := range []client.ObjectList{&corev1.PodList{}, &udnv1.UserDefinedNetworkList{}} {
		if err := w.List(w.ctx, l, client.InNamespace(ns)); err != nil {
			w.t.Fatal(err)
		}
		if err := meta.EachListItem(l, func(o runtime.Object) error {
			obj := o.(client.Object)
			if err := client.IgnoreNotFound(w.Delete(w.ctx, obj, client.GracePeriodSeconds(0))); err != nil {
				return err
			}
			return client.IgnoreNotFound(w.Patch(w.ctx, obj, client.RawPatch(types.JSONPatchType,
				[]byte(`[{"op":"add","path":"/metadata/finalizers","value":[]}]`))))
		}); err != nil {
			w.t.Fatal(err)
		}
	}
}
