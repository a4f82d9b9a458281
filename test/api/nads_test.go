// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/cluster/nad"
	"bulkhead/pkg/network"
)

// createNAD creates a NAD as an administrator would.
func (w fixture) createNAD(ns, name, config string) *nadv1.NetworkAttachmentDefinition {
	w.t.Helper()
	n := &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: config}}
	w.create(n)
	return n
}

// waitID waits until the NAD has the network's name and an id, and returns the id.
func (w fixture) waitID(ns, name, of string) string {
	w.t.Helper()
	var id string
	Eventually(w.t, func() error {
		n := w.nad(ns, name)
		id = n.Annotations[network.AnnotationNetworkID]
		if id == "" || n.Annotations[network.AnnotationNetworkName] != of || !slices.Contains(n.Finalizers, network.FinalizerNAD) {
			return fmt.Errorf("annotations %v, finalizers %v", n.Annotations, n.Finalizers)
		}
		return nil
	})
	return id
}

// waitEvent waits for an event about the NAD.
func (w fixture) waitEvent(ns, name, reason, text string) {
	w.t.Helper()
	Eventually(w.t, func() error {
		var l eventsv1.EventList
		if err := w.List(w.ctx, &l, client.InNamespace(ns)); err != nil {
			return err
		}
		var seen []string
		for _, e := range l.Items {
			if e.Regarding.Name == name && e.Reason == reason && strings.Contains(e.Note, text) {
				return nil
			}
			seen = append(seen, e.Regarding.Name+": "+e.Reason+": "+e.Note)
		}
		return fmt.Errorf("no event %s of %s/%s with %q among %q", reason, ns, name, text, seen)
	})
	if id := w.nad(ns, name).Annotations[network.AnnotationNetworkID]; id != "" && reason == nad.ReasonInvalid {
		w.t.Errorf("NAD %s/%s was refused but has id %s", ns, name, id)
	}
}

// Hand-written NADs are validated and get ids, one per network.
func TestHandWrittenNADs(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	c := startController(t, testConfig(t))
	for _, n := range []string{"nad-a", "nad-b"} {
		defer w.remove(w.namespace(n, true))
	}
	defer w.remove(w.namespace("nad-plain", false))
	const config = `{"cniVersion":"1.1.0","name":"hand","type":"ovn-k8s-cni-overlay","topology":"layer2","role":"secondary","subnets":"10.140.0.0/16","netAttachDefName":"%s"}`
	w.createNAD("nad-a", "net", fmt.Sprintf(config, "nad-a/net"))
	id := w.waitID("nad-a", "net", "hand")
	w.createNAD("nad-b", "net", fmt.Sprintf(config, "nad-b/net"))
	if other := w.waitID("nad-b", "net", "hand"); other != id {
		t.Errorf("one network has ids %s and %s", id, other)
	}

	for name, bad := range map[string]struct{ ns, config, want string }{
		"otherwise":    {"nad-a", `{"cniVersion":"1.1.0","name":"hand","type":"ovn-k8s-cni-overlay","topology":"layer2","subnets":"10.141.0.0/16"}`, "has another configuration"},
		"json":         {"nad-a", `{"type":"ovn-k8s-cni-overlay","name":7}`, "config"},
		"unknown-key":  {"nad-a", `{"type":"ovn-k8s-cni-overlay","name":"odd","topology":"layer2","subnet":"10.1.0.0/16"}`, "subnet"},
		"tenants-name": {"nad-a", `{"type":"ovn-k8s-cni-overlay","name":"cluster_udn_red","topology":"layer3","subnets":"10.1.0.0/16/24"}`, `choose a name without \"_\"`},
		"overlap":      {"nad-a", `{"type":"ovn-k8s-cni-overlay","name":"over","topology":"layer2","subnets":"10.96.0.0/24"}`, "service-cidrs"},
		"label":        {"nad-plain", `{"type":"ovn-k8s-cni-overlay","name":"nolabel","topology":"layer2","role":"primary","subnets":"10.142.0.0/24"}`, network.LabelPrimaryUDN},
	} {
		w.createNAD(bad.ns, name, bad.config)
		w.waitEvent(bad.ns, name, nad.ReasonInvalid, strings.ReplaceAll(bad.want, `\"`, `"`))
	}
	// A corrected NAD gets an id.
	w.patch(w.nad("nad-a", "overlap"), `{"spec":{"config":"{\"type\":\"ovn-k8s-cni-overlay\",\"name\":\"over\",\"topology\":\"layer2\",\"subnets\":\"10.143.0.0/24\"}"}}`)
	if got := w.waitID("nad-a", "overlap", "over"); got == id {
		t.Errorf("two networks share id %s", got)
	}

	// A namespace has one primary network: the first, whether NAD or UDN.
	primary := `{"type":"ovn-k8s-cni-overlay","name":"handprimary","topology":"layer3","role":"primary","subnets":"10.144.0.0/16/24"}`
	w.createNAD("nad-a", "primary", primary)
	w.waitID("nad-a", "primary", "handprimary")
	u := newUDN("nad-a", "udn", "10.145.0.0/16")
	w.create(u)
	w.waitCondition(u, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "primary network already exist in namespace nad-a", "NetworkAttachmentDefinition nad-a/primary")
	second := newUDN("nad-b", "udn", "10.145.0.0/16")
	w.create(second)
	w.waitCreated(second)
	w.createNAD("nad-b", "late", strings.Replace(primary, "handprimary", "late", 1))
	w.waitEvent("nad-b", "late", nad.ReasonInvalid, "primary network already exist in namespace nad-b: UserDefinedNetwork nad-b/udn")
	w.waitCondition(second, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "nad-b/late")

	// A NAD in use stays, with its id, and has an event.
	pod := w.createPodUsing("nad-a", "p", "nad-a/primary")
	w.remove(w.nad("nad-a", "primary"))
	w.waitEvent("nad-a", "primary", nad.ReasonInUse, "nad-a/p")
	w.nad("nad-a", "primary")
	w.remove(pod)
	w.waitGone(&nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "nad-a", Name: "primary"}})
	w.waitCreated(u) // the namespace is free

	// After a restart the controller writes nothing and changes no id.
	c.stop()
	c = startController(t, testConfig(t))
	probe := newUDN("nad-plain", "probe", "10.146.0.0/16")
	probe.Spec.Layer3.Role = udnv1.NetworkRoleSecondary
	w.create(probe)
	w.waitCreated(probe)
	if n, list := c.total(); n > 3 {
		t.Errorf("%d writes after a restart, want the 3 of a new network:%s", n, list)
	}
	if got := w.waitID("nad-a", "net", "hand"); got != id {
		t.Errorf("the network had id %s and now has %s", id, got)
	}
	// The id is released only with the network's last NAD.
	w.remove(w.nad("nad-a", "net"))
	w.waitGone(&nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "nad-a", Name: "net"}})
	w.createNAD("nad-a", "next", strings.Replace(fmt.Sprintf(config, "nad-a/next"), `"hand"`, `"next"`, 1))
	if got := w.waitID("nad-a", "next", "next"); got == id {
		t.Errorf("id %s was allocated again while nad-b/net has it", id)
	}
	for _, o := range []client.Object{u, second, probe} {
		w.remove(o)
	}
}
