// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/cluster/nad"
	"bulkhead/pkg/network"
)

// The controller retries after a write conflict, and reports it neither in the
// status nor in an event.
func TestConflictIsNotReported(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	var conflicts atomic.Int32 // still to be injected
	startController(t, testConfig(t), func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodPatch || !strings.Contains(req.URL.Path, "/network-attachment-definitions/") || conflicts.Add(-1) < 0 {
				return next.RoundTrip(req)
			}
			status := apierrors.NewConflict(schema.GroupResource{Resource: "network-attachment-definitions"}, "net", nil).Status()
			status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
			body, err := json.Marshal(status)
			if err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: http.StatusConflict, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(bytes.NewReader(body)), Request: req}, nil
		})
	})
	defer w.remove(w.namespace("conflict", true))
	u := newUDN("conflict", "net", "10.100.0.0/16")
	w.create(u)
	defer w.remove(u)
	w.waitCreated(u)
	before := u.DeepCopy()
	seen, err := w.Watch(w.ctx, &udnv1.UserDefinedNetworkList{}, client.InNamespace("conflict"))
	if err != nil {
		t.Fatal(err)
	}
	conflicts.Store(5)
	w.patch(w.nad("conflict", "net"), `{"metadata":{"labels":{"k8s.ovn.org/user-defined-network":null}}}`)
	Eventually(t, func() error {
		if _, ok := w.nad("conflict", "net").Labels["k8s.ovn.org/user-defined-network"]; !ok {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "label"}, "user-defined-network")
		}
		return nil
	})
	if conflicts.Load() >= 0 {
		t.Errorf("%d conflicts remain: the repair did not meet them all", conflicts.Load())
	}
	// The test's own write marks the end of the events to check.
	w.patch(u, `{"metadata":{"labels":{"end":"yes"}}}`)
	ended := false
	for e := range seen.ResultChan() {
		now, ok := e.Object.(*udnv1.UserDefinedNetwork)
		if !ok {
			t.Fatalf("watch: %T", e.Object)
		}
		for _, c := range now.Status.Conditions {
			if c.Status != metav1.ConditionTrue {
				t.Errorf("%s is %s: %s", c.Type, c.Status, c.Message)
			}
		}
		if now.Labels["end"] != "" {
			if now.UID != before.UID {
				t.Errorf("uid %s, was %s", now.UID, before.UID)
			}
			ended = true
			break
		}
	}
	seen.Stop()
	if !ended {
		t.Error("the watch was closed before the last event")
	}
	var events corev1.EventList
	if err := w.List(w.ctx, &events, client.InNamespace("conflict")); err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		if e.Type == corev1.EventTypeWarning {
			t.Errorf("event %s: %s", e.Reason, e.Message)
		}
	}
}

// IPAMClaim is another project's CRD. The controller works without it, and uses
// claims once it is installed.
func TestWithoutIPAMClaims(t *testing.T) {
	needAPI(t)
	w := newPodFixture(t)
	const file = "deploy/crds/k8s.cni.cncf.io_ipamclaims.yaml"
	install := func() {
		t.Helper()
		if err := env.Install(w.ctx, filepath.Join(Root(), file)); err != nil {
			t.Fatal(err)
		}
	}
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	crd.SetName("ipamclaims.k8s.cni.cncf.io")
	w.remove(crd)
	w.waitGone(crd)
	t.Cleanup(install)
	startController(t, testConfig(t))
	defer w.remove(w.namespace("claimless", true))
	w.createNADOf("claimless", "net", "claimless-net", `"topology":"layer2","role":"primary","subnets":"10.142.0.0/24","allowPersistentIPs":true`)
	w.waitEntry(w.createPod("claimless", "plain", nil), "claimless/net", "10.142.0.3/24")
	p := w.createPod("claimless", "vm", primaryRequest(`"ipam-claim-reference":"vm"`))
	w.waitRefused(p, "IPAMClaim vm", "does not exist")
	install()
	claim := newClaim("claimless", "vm", "claimless-net")
	Eventually(t, func() error { return client.IgnoreAlreadyExists(w.Create(w.ctx, claim)) })
	w.waitEntry(p, "claimless/net", "10.142.0.4/24")
	w.remove(claim)
}

// The network's status reports a node's failure to build it, until the node
// succeeds.
func TestNodeFailuresInStatus(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	cfg := testConfig(t)
	cfg.IDAge = 0 // the subnets have no more host subnets than ids that other tests used
	startController(t, cfg)
	defer w.remove(w.namespace("failing", true))
	defer w.remove(w.namespace("failing-not", true))
	u, other := newUDN("failing", "net", "10.100.0.0/16"), newUDN("failing-not", "net", "10.101.0.0/16")
	for _, o := range []*udnv1.UserDefinedNetwork{u, other} {
		w.create(o)
		defer w.remove(o)
		w.waitCondition(o, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionTrue)
	}
	id := w.nad("failing", "net").Annotations[network.AnnotationNetworkID]
	node, _ := w.createNode("failing-1")
	if err := w.Get(w.ctx, client.ObjectKeyFromObject(other), other); err != nil {
		t.Fatal(err)
	}
	before := other.ResourceVersion
	failures := func(raw string) string {
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{network.AnnotationAgentFailures: raw}}})
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	w.patch(node, failures(`[{"ids":"`+id+`","why":"the kernel has no VRF"}]`))
	w.waitCondition(u, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionFalse, "[failing-1]", "the kernel has no VRF")
	w.waitCondition(other, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionTrue)
	w.patch(node, failures(""))
	w.waitCondition(u, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionTrue)
	w.waitCondition(other, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionTrue)
	if other.ResourceVersion != before {
		t.Error("the controller wrote the status of a network that did not fail")
	}
}

// The API server handles the leader's lease by a flow schema of its own, before
// the role's other requests. A response header names the flow schema.
func TestLeasePriority(t *testing.T) {
	needAPI(t)
	ctx := t.Context()
	fair, err := Start(ctx, Options{Fairness: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = fair.Stop() })
	if err := fair.Install(ctx, filepath.Join(Root(), "deploy/config.yaml"), filepath.Join(Root(), "deploy/install.yaml")); err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(fair.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	schema := &flowcontrolv1.FlowSchema{}
	if err := admin.Get(ctx, client.ObjectKey{Name: "bulkhead-leader-election"}, schema); err != nil {
		t.Fatal(err)
	}
	var by string
	cfg := rest.CopyConfig(fair.Controller)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(req)
			if err == nil {
				by = res.Header.Get("X-Kubernetes-Pf-Flowschema-Uid")
			}
			return res, err
		})
	})
	role, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lease, nodes := &coordinationv1.Lease{}, &corev1.NodeList{}
	Eventually(t, func() error { // the server needs a moment to load a flow schema
		err := role.Get(ctx, client.ObjectKey{Namespace: "bulkhead-system", Name: "bulkhead-cluster"}, lease)
		if client.IgnoreNotFound(err) != nil || by != string(schema.UID) {
			return fmt.Errorf("flow schema %s handled the lease, want %s: %v", by, schema.UID, err)
		}
		return nil
	})
	if err := role.List(ctx, nodes); err != nil || by == "" || by == string(schema.UID) {
		t.Errorf("flow schema %q handled the list of nodes, want another than the lease's: %v", by, err)
	}
}

// A labelled namespace has running pods on the default network only: the
// controller does not create the primary network until they are gone.
func TestRunningPodsBlockPrimaryNetwork(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.waitClean()
	for _, ns := range []string{"older", "older-hand"} {
		defer w.remove(w.namespace(ns, true))
	}
	var pods []*corev1.Pod
	for i, ns := range []string{"older", "older", "older-hand"} {
		p := w.createPod(ns, fmt.Sprintf("p%d", i), map[string]string{network.AnnotationPodNetworks: `{"default":{"ip_addresses":["10.244.0.9/24"],"mac_address":"0a:58:0a:f4:00:09","role":"primary"}}`})
		p.Status.Phase = corev1.PodRunning
		if err := w.Status().Update(w.ctx, p); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	// Not earlier: its caches are filled by different watches, and it has to know of
	// the running pods when it sees the network.
	startController(t, testConfig(t))
	u := newUDN("older", "net", "10.100.0.0/16")
	w.create(u)
	defer w.remove(u)
	w.waitCondition(u, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "p0, p1", "delete them")
	hand := w.createNAD("older-hand", "hand", `{"cniVersion":"1.1.0","name":"olderhand","type":"ovn-k8s-cni-overlay","topology":"layer3","role":"primary","subnets":"10.9.0.0/16/24","netAttachDefName":"older-hand/hand"}`)
	defer w.remove(hand)
	w.waitEvent("older-hand", "hand", nad.ReasonInvalid, "p2")
	var nads nadv1.NetworkAttachmentDefinitionList
	if err := w.List(w.ctx, &nads, client.InNamespace("older")); err != nil || len(nads.Items) > 0 {
		t.Errorf("%d NADs, %v", len(nads.Items), err)
	}
	w.deletePodNow(pods[0])
	w.waitCondition(u, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "(p1)")
	w.deletePodNow(pods[1])
	w.waitCreated(u)
	w.deletePodNow(pods[2])
	w.waitID("older-hand", "hand", "olderhand")
}
