// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	nadctl "bulkhead/pkg/cluster/nad"
	"bulkhead/pkg/network"
)

// A hand-written primary NAD without a free id waits for one. Releasing its
// namespace while it waits must not requeue it endlessly.
func TestRefusedNADWaits(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	cfg := testConfig(t)
	cfg.MaxNetworks = 1
	startController(t, cfg)
	ns, other := w.namespace("refused-wait", true), w.namespace("refused-other", true)
	defer w.remove(ns)
	defer w.remove(other)
	u := newUDN("refused-other", "net", "10.140.0.0/16")
	w.create(u)
	w.waitCreated(u)
	nad := &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "refused-wait", Name: "hand"},
		Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: `{"cniVersion":"1.1.0","name":"hand","type":"ovn-k8s-cni-overlay","topology":"layer3","role":"primary","subnets":"10.9.0.0/16/24"}`}}
	before := reconciles(t, "nad")
	w.create(nad)
	defer w.remove(nad)
	w.waitEvent("refused-wait", "hand", nadctl.ReasonInvalid, "raise max-networks")
	w.remove(u)
	w.waitGone(u)
	Eventually(t, func() error {
		if id := w.nad("refused-wait", "hand").Annotations[network.AnnotationNetworkID]; id == "" {
			return errors.New("the NAD has no id though one is free")
		}
		return nil
	})
	if n := reconciles(t, "nad") - before; n > 30 {
		t.Errorf("%v reconciliations until the NAD had an id, want at most 30", n)
	}
}

// reconciles returns the number of a controller's reconciliations.
func reconciles(t *testing.T, controller string) float64 {
	t.Helper()
	return metric(t, "controller_runtime_reconcile_total", "controller", controller)
}

// metric returns the sum of a metric's series with the label, of which there must
// be one.
func metric(t *testing.T, name, label, value string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n, found := 0.0, false
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label && l.GetValue() == value {
					n += m.GetCounter().GetValue() + m.GetGauge().GetValue()
					found = true
				}
			}
		}
	}
	if !found {
		t.Fatalf("no metric %s with %s=%q", name, label, value)
	}
	return n
}
