// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"slices"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// A primary network needs the namespace label.
func TestNamespaceLabel(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	startController(t, testConfig(t))

	plain, labelled := w.namespace("label-plain", false), w.namespace("label-primary", true)
	defer w.remove(plain)
	defer w.remove(labelled)

	// Without the label: an error and no NAD; the namespace's pods stay on the
	// default network.
	u := newUDN("label-plain", "net", "10.100.0.0/16")
	w.create(u)
	w.waitCondition(u, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "SyncError", "invalid primary network state", network.LabelPrimaryUDN)
	err := w.Get(w.ctx, client.ObjectKeyFromObject(u), &nadv1.NetworkAttachmentDefinition{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("NAD in a namespace without the label: %v, want not found", err)
	}
	Eventually(t, func() error {
		var l eventsv1.EventList
		if err := w.List(w.ctx, &l, client.InNamespace("label-plain")); err != nil {
			return err
		}
		for _, e := range l.Items {
			if e.Reason == "SyncError" && e.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return fmt.Errorf("no SyncError event among %d events", len(l.Items))
	})

	// With the label: a NAD that has its id from its creation.
	u = newUDN("label-primary", "net", "10.100.0.0/16", "fd10::/48")
	w.create(u)
	w.waitCreated(u)
	w.waitCondition(u, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionTrue, "Network allocation succeeded for all synced nodes.")
	nad := w.nad("label-primary", "net")
	if nad.Generation != 1 || nad.Annotations[network.AnnotationNetworkID] == "" || nad.Annotations[network.AnnotationNetworkName] != "label-primary_net" {
		t.Errorf("NAD generation %d annotations %v: want generation 1 with the id and the name", nad.Generation, nad.Annotations)
	}
	conf, err := network.ParseNetConf(nad.Spec.Config)
	if err != nil || conf.Subnets != "10.100.0.0/16/24,fd10::/48/64" || conf.JoinSubnet != "100.65.0.0/16,fd99::/64" || conf.NetAttachDefName != "label-primary/net" {
		t.Errorf("NAD config %s: %v", nad.Spec.Config, err)
	}
	ref := metav1.GetControllerOf(nad)
	if ref == nil || ref.UID != u.UID || ref.Kind != "UserDefinedNetwork" {
		t.Errorf("NAD's owner is %+v", ref)
	}
}

// Two primary networks select one namespace: the second reports a conflict, and
// gets the namespace when the first is deleted.
func TestOnePrimaryNetwork(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	startController(t, testConfig(t))
	for _, n := range []string{"a", "b", "c", "d", "e"} {
		labels := []string{"net1=" + fmt.Sprint(n <= "c"), "net2=" + fmt.Sprint(n >= "c")}
		ns := w.namespace("one-"+n, true, labels...)
		defer w.remove(ns)
	}
	net1, net2 := newCUDN("one-net1", "", "10.101.0.0/16"), newCUDN("one-net2", "", "10.102.0.0/16")
	net1.Spec.NamespaceSelector = metav1.LabelSelector{MatchLabels: map[string]string{"net1": "true"}}
	net2.Spec.NamespaceSelector = metav1.LabelSelector{MatchLabels: map[string]string{"net2": "true"}}
	w.create(net1)
	w.waitCreated(net1, "[one-a, one-b, one-c]")
	w.waitCondition(net1, udnv1.ConditionTransportAccepted, metav1.ConditionTrue, "GeneveTransportAccepted")
	w.create(net2)
	defer w.remove(net2)
	w.waitCondition(net2, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "NetworkAttachmentDefinitionSyncError",
		"primary network already exist in namespace one-c", "one-net1", "[one-d, one-e]")
	active := func(want ...string) {
		t.Helper()
		if got := net2.Status.ActiveNamespaces; !slices.Equal(got, want) {
			t.Errorf("status.activeNamespaces is %v, want %v", got, want)
		}
	}
	active("one-d", "one-e")
	ids := map[string]bool{}
	for _, n := range []string{"a", "b", "c"} {
		ids[w.nad("one-"+n, "one-net1").Annotations[network.AnnotationNetworkID]] = true
	}
	if len(ids) != 1 {
		t.Errorf("network one-net1 has ids %v, want one", ids)
	}
	if id := w.nad("one-d", "one-net2").Annotations[network.AnnotationNetworkID]; ids[id] {
		t.Errorf("two networks share id %s", id)
	}
	w.remove(net1)
	w.waitGone(net1)
	w.waitCreated(net2, "[one-c, one-d, one-e]")
	active("one-c", "one-d", "one-e")
}

// NADs follow the namespaces' labels and the network's selector.
func TestSelector(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	startController(t, testConfig(t))
	c := newCUDN("sel-net", "sel", "10.103.0.0/16")
	w.create(c)
	defer w.remove(c)
	w.waitCreated(c, "[]")
	one := w.namespace("sel-one", true, "team=sel")
	defer w.remove(one)
	w.waitCreated(c, "[sel-one]")
	two := w.namespace("sel-two", true, "team=other")
	defer w.remove(two)
	patch := func(o client.Object, body string) {
		t.Helper()
		if err := w.Patch(w.ctx, o, client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
			t.Fatal(err)
		}
	}
	patch(two, `{"metadata":{"labels":{"team":"sel"}}}`)
	w.waitCreated(c, "[sel-one, sel-two]")
	pod := w.createPodUsing("sel-one", "p", "sel-one/sel-net")
	patch(one, `{"metadata":{"labels":{"team":"other"}}}`)
	w.waitCondition(c, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "network in use by the following pods: [sel-one/p]")
	patch(one, `{"metadata":{"labels":{"team":"sel"}}}`)
	w.waitCreated(c, "[sel-one, sel-two]") // sel-one's NAD still exists
	patch(one, `{"metadata":{"labels":{"team":"other"}}}`)
	w.waitCondition(c, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "network in use")
	w.remove(pod)
	w.waitCreated(c, "[sel-two]")
	w.waitGone(&nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "sel-one", Name: "sel-net"}})
	patch(c, `{"spec":{"namespaceSelector":{"matchLabels":null,"matchExpressions":[{"key":"kubernetes.io/metadata.name","operator":"In","values":["sel-one"]}]}}}`)
	w.waitCreated(c, "[sel-one]")
	patch(c, `{"spec":{"namespaceSelector":{"matchExpressions":[{"key":"a","operator":"Near","values":["b"]}]}}}`)
	w.waitCondition(c, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "namespaceSelector is invalid", "[sel-one]")
}

// The controller leaves foreign NADs alone and repairs its own.
func TestForeignAndMalformedNAD(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	startController(t, testConfig(t))
	ns := w.namespace("foreign", true)
	defer w.remove(ns)
	foreign := &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "foreign", Name: "net"},
		Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: `{"type":"bridge"}`}}
	w.create(foreign)
	u := newUDN("foreign", "net", "10.104.0.0/16")
	w.create(u)
	w.waitCondition(u, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "foreign NetworkAttachmentDefinition with the desired name already exist [foreign/net]")
	if got := w.nad("foreign", "net"); got.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("the controller changed the foreign NAD: %+v", got)
	}
	w.remove(foreign)
	w.waitCreated(u)

	good := w.nad("foreign", "net")
	for _, body := range []string{
		`{"spec":{"config":"not JSON"}}`,
		`{"metadata":{"annotations":{"k8s.ovn.org/network-id":"9999"}}}`,
		`{"metadata":{"annotations":{"k8s.ovn.org/network-id":null}},"spec":{"config":"{}"}}`,
		`{"metadata":{"labels":null,"ownerReferences":null}}`,
		`{"metadata":{"annotations":null}}`,
		`{"metadata":{"annotations":null,"labels":null,"ownerReferences":null,"finalizers":null},"spec":{"config":"{}"}}`,
		`{"metadata":{"annotations":{"k8s.ovn.org/network-id":"77","k8s.ovn.org/network-name":"another"}}}`,
		`{"metadata":{"annotations":{"k8s.ovn.org/advertised-vrfs":"default"}}}`,
		// This must not release the network's id while pods use it.
		`{"metadata":{"ownerReferences":null,"finalizers":null}}`,
		`{"metadata":{"ownerReferences":null,"finalizers":null},"spec":{"config":"{\"cniVersion\":\"1.1.0\",\"name\":\"cluster_udn_other\",\"type\":\"ovn-k8s-cni-overlay\",\"topology\":\"layer3\",\"role\":\"primary\",\"subnets\":\"10.9.0.0/16/24\"}"}}`,
		`{"metadata":{"finalizers":["example.com/mine"]}}`,
	} {
		if err := w.Patch(w.ctx, good.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
			t.Fatal(err)
		}
		Eventually(t, func() error {
			n := w.nad("foreign", "net")
			ref := metav1.GetControllerOf(n)
			_, labelled := n.Labels[network.LabelUDN]
			if n.Spec.Config != good.Spec.Config || n.Annotations[network.AnnotationAdvertisedVRFs] != "" || n.Annotations[network.AnnotationNetworkID] != good.Annotations[network.AnnotationNetworkID] ||
				n.Annotations[network.AnnotationNetworkName] != good.Annotations[network.AnnotationNetworkName] || ref == nil || ref.UID != u.UID || !labelled || len(n.Finalizers) == 0 || n.Finalizers[len(n.Finalizers)-1] != network.FinalizerUDN {
				return fmt.Errorf("not repaired after patch %s: %+v %s", body, n.ObjectMeta, n.Spec.Config)
			}
			return nil
		})
	}
	n := w.nad("foreign", "net")
	if err := w.Patch(w.ctx, n, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+network.FinalizerUDN+`"]}}`))); err != nil {
		t.Fatal(err)
	}

	// A hand-written primary NAD conflicts; both NADs stay.
	w.create(&nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "foreign", Name: "hand"},
		Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: `{"cniVersion":"1.1.0","name":"hand","type":"ovn-k8s-cni-overlay","topology":"layer3","role":"primary","subnets":"10.9.0.0/16/24"}`}})
	w.waitCondition(u, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "primary network already exist", "foreign/hand")
	w.nad("foreign", "net")
	w.remove(w.nad("foreign", "hand"))
	w.waitCreated(u)

	// A NAD deleted by hand is recreated with the same id.
	uid := good.UID
	w.remove(w.nad("foreign", "net"))
	Eventually(t, func() error {
		n := &nadv1.NetworkAttachmentDefinition{}
		if err := w.Get(w.ctx, client.ObjectKeyFromObject(good), n); err != nil {
			return err
		}
		if n.UID == uid || n.Annotations[network.AnnotationNetworkID] != good.Annotations[network.AnnotationNetworkID] {
			return fmt.Errorf("NAD is %s with id %s", n.UID, n.Annotations[network.AnnotationNetworkID])
		}
		return nil
	})
	w.waitCreated(u)
}

// Networks that the API accepts and the controller refuses: the status says why.
func TestRefusedNetworks(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	startController(t, testConfig(t))
	for i, c := range []struct{ cidr, join, want string }{
		{"10.244.128.0/20", "", "cluster-subnets"},
		{"10.96.1.0/24", "", "service-cidrs"},
		{"100.64.0.0/20", "", "join-subnets"},
		{"169.254.0.0/20", "", "masquerade-subnets"},
		{"100.88.3.0/24", "", "transit-subnets"},
		{"100.65.0.0/20", "", "overlaps its join subnet"},
		{"10.105.0.0/16", "100.64.0.0/16", "join-subnets"},
		{"10.105.0.0/16", "10.105.128.0/17", "overlaps its join subnet"},
		{"10.105.0.0/16", "100.70.0.0/24", "too small"},
		{"10.105.0.0/31", "", "host subnet length"},
	} {
		name := fmt.Sprintf("refused-%d", i)
		ns := w.namespace(name, true)
		defer w.remove(ns)
		u := newUDN(name, "net", udnv1.CIDR(c.cidr))
		if c.join != "" {
			u.Spec.Layer3.JoinSubnets = udnv1.DualStackCIDRs{udnv1.CIDR(c.join)}
		}
		w.create(u)
		w.waitCondition(u, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "SyncError", c.want)
		if len(u.Finalizers) > 0 {
			t.Errorf("%s: a refused network has finalizers %v", name, u.Finalizers)
		}
	}
}
