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

// Another's write that came between is nobody's business: the next look mends
// it, and neither the status nor an event tells of it.
func TestConflictIsNoCondition(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle()
	var left atomic.Int32
	startController(t, testConfig(t), func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodPatch || !strings.Contains(req.URL.Path, "/network-attachment-definitions/") || left.Add(-1) < 0 {
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
	w.created(u)
	before := u.DeepCopy()
	seen, err := w.Watch(w.ctx, &udnv1.UserDefinedNetworkList{}, client.InNamespace("conflict"))
	if err != nil {
		t.Fatal(err)
	}
	left.Store(5)
	w.patch(w.nad("conflict", "net"), `{"metadata":{"labels":{"k8s.ovn.org/user-defined-network":null}}}`)
	Eventually(t, func() error {
		if _, ok := w.nad("conflict", "net").Labels["k8s.ovn.org/user-defined-network"]; !ok {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "label"}, "user-defined-network")
		}
		return nil
	})
	if left.Load() >= 0 {
		t.Errorf("%d conflicts were left over: the repair met none", left.Load())
	}
	// A write of ours, seen by the watch, ends what is looked at.
	w.patch(u, `{"metadata":{"labels":{"end":"yes"}}}`)
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
			break
		}
	}
	seen.Stop()
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

// IPAMClaims are another project's kind. A cluster without it has networks all
// the same, and claims once it is installed.
func TestWithoutIPAMClaims(t *testing.T) {
	needAPI(t)
	w := newPodWorld(t)
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
	w.sharedNAD("claimless", "net", "claimless-net", `"topology":"layer2","role":"primary","subnets":"10.142.0.0/24","allowPersistentIPs":true`)
	w.given(w.scheduled("claimless", "plain", nil), "claimless/net", "10.142.0.3/24")
	p := w.scheduled("claimless", "vm", primaryRequest(`"ipam-claim-reference":"vm"`))
	w.refused(p, "IPAMClaim vm", "does not exist")
	install()
	claim := newClaim("claimless", "vm", "claimless-net")
	Eventually(t, func() error { return client.IgnoreAlreadyExists(w.Create(w.ctx, claim)) })
	w.given(p, "claimless/net", "10.142.0.4/24")
	w.remove(claim)
}

// What a node has not built is said in the network's status, and no longer
// once it has.
func TestFailuresOfNodes(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle()
	cfg := testConfig(t)
	cfg.IDAge = 0 // other tests' nodes have had as many ids as the subnets hold
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
	node, _ := w.nodeWithID("failing-1")
	said := func(raw string) string {
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{network.AnnotationAgentFailures: raw}}})
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	w.patch(node, said(`[{"ids":"`+id+`","why":"the kernel has no VRF"}]`))
	w.waitCondition(u, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionFalse, "[failing-1]", "the kernel has no VRF")
	w.waitCondition(other, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionTrue)
	w.patch(node, said(""))
	w.waitCondition(u, udnv1.ConditionNetworkAllocationSucceeded, metav1.ConditionTrue)
}

// The leader's lease is not behind what else is asked of the API server: what
// is asked for with the role's rights says by which flow schema it was served.
func TestLeaseComesFirst(t *testing.T) {
	needAPI(t)
	ctx := t.Context()
	fair, err := Start(ctx, Options{Fairness: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = fair.Stop() })
	if err := fair.Install(ctx, filepath.Join(Root(), "deploy/install.yaml")); err != nil {
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
	Eventually(t, func() error { // the server takes a moment to learn of a flow schema
		err := role.Get(ctx, client.ObjectKey{Namespace: "bulkhead-system", Name: "bulkhead-cluster"}, lease)
		if client.IgnoreNotFound(err) != nil || by != string(schema.UID) {
			return fmt.Errorf("the lease was served by flow schema %s, want %s: %v", by, schema.UID, err)
		}
		return nil
	})
	if err := role.List(ctx, nodes); err != nil || by == "" || by == string(schema.UID) {
		t.Errorf("nodes were served by flow schema %q: %v", by, err)
	}
}

// Pods that run in a labelled namespace without a primary network, as they were
// there before the label: the network is not made, which keeps further pods
// off too, until they are gone.
func TestOlderPods(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
	w.settle()
	startController(t, testConfig(t))
	for _, ns := range []string{"older", "older-hand"} {
		defer w.remove(w.namespace(ns, true))
	}
	var pods []*corev1.Pod
	for i, ns := range []string{"older", "older", "older-hand"} {
		p := w.scheduled(ns, fmt.Sprintf("p%d", i), map[string]string{network.AnnotationPodNetworks: `{"default":{"ip_addresses":["10.244.0.9/24"],"mac_address":"0a:58:0a:f4:00:09","role":"primary"}}`})
		p.Status.Phase = corev1.PodRunning
		if err := w.Status().Update(w.ctx, p); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	u := newUDN("older", "net", "10.100.0.0/16")
	w.create(u)
	defer w.remove(u)
	w.waitCondition(u, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "p0, p1", "delete them")
	hand := w.handWritten("older-hand", "hand", `{"cniVersion":"1.1.0","name":"olderhand","type":"ovn-k8s-cni-overlay","topology":"layer3","role":"primary","subnets":"10.9.0.0/16/24","netAttachDefName":"older-hand/hand"}`)
	defer w.remove(hand)
	w.waitEvent("older-hand", "hand", nad.ReasonInvalid, "p2")
	var nads nadv1.NetworkAttachmentDefinitionList
	if err := w.List(w.ctx, &nads, client.InNamespace("older")); err != nil || len(nads.Items) > 0 {
		t.Errorf("%d NADs, %v", len(nads.Items), err)
	}
	w.removeNow(pods[0])
	w.waitCondition(u, udnv1.ConditionNetworkCreated, metav1.ConditionFalse, "(p1)")
	w.removeNow(pods[1])
	w.created(u)
	w.removeNow(pods[2])
	w.waitID("older-hand", "hand", "olderhand")
}
