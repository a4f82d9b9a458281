// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// NADs of our type are made by administrators, and those that have an id are
// left as they are: by a tenant who may do everything in a namespace. Other
// plugins' NADs, labels and annotations of others are the tenant's.
func TestNetworksByHandPolicy(t *testing.T) {
	p := newPolicyCase(t)
	ctx := t.Context()
	const (
		ours      = `{"cniVersion":"1.1.0","name":"blue","type":"ovn-k8s-cni-overlay","topology":"layer2","role":"secondary"}`
		other     = `{"cniVersion":"1.1.0","name":"x","type":"macvlan"}`
		byHand    = "create a UserDefinedNetwork instead"
		config    = "leave spec.config as it is"
		owner     = "leave metadata.ownerReferences and metadata.finalizers as they are"
		finalizer = "k8s.ovn.org/network-attachment-definition-protection"
	)
	nad := func(spec string) *nadv1.NetworkAttachmentDefinition {
		return &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, GenerateName: "x-"},
			Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: spec}}
	}
	yes := true
	ns := &corev1.Namespace{}
	if err := p.admin.Get(ctx, client.ObjectKey{Name: p.namespace}, ns); err != nil {
		t.Fatal(err)
	}
	// An owner that is there: else the garbage collector would delete it.
	ref := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: ns.Name, UID: ns.UID, Controller: &yes}}
	everybody := []string{superUser, administrator, clusterRole}

	for name, c := range map[string]struct{ spec, want string }{
		"of our type": {ours, byHand}, "in a list of plugins": {`{"name":"x","plugins":[` + ours + `]}`, byHand}, "with another key": {`{"TYPE":"ovn-k8s-cni-overlay"}`, byHand},
		"of another": {other, ""}, "empty": {"", ""},
		// Nobody takes it for ours: network.ParseNetConf does not.
		"escaped": {`{"name":"x","type":"ovn\u002dk8s-cni-overlay"}`, ""},
	} {
		t.Run("create "+name, func(t *testing.T) {
			p.verdict(t, c.want, func(cl client.Client) error { return cl.Create(ctx, nad(c.spec), client.DryRunAll) }, everybody...)
		})
	}
	written := nad(ours)
	written.OwnerReferences, written.Finalizers = ref, []string{finalizer}
	written.Annotations = map[string]string{network.AnnotationNetworkID: "7", network.AnnotationNetworkName: "blue"}
	emptied := nad("") // somebody with the right emptied it: it is a network's all the same
	emptied.Annotations, emptied.Finalizers = written.Annotations, written.Finalizers
	foreign := nad(other)
	foreign.Finalizers = []string{"example.com/mine"}
	for _, o := range []*nadv1.NetworkAttachmentDefinition{written, emptied, foreign} {
		p.create(t, o)
		t.Cleanup(func() { // the finalizers would keep it
			off := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
			if err := p.admin.Patch(context.Background(), o, off); err != nil {
				t.Error(err)
			}
		})
	}
	for name, c := range map[string]struct {
		of   *nadv1.NetworkAttachmentDefinition
		edit func(*nadv1.NetworkAttachmentDefinition)
		want string
	}{
		"config":                  {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = other }, config},
		"config, emptied":         {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = "" }, config},
		"config of one with id":   {emptied, func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = other }, config},
		"another's made ours":     {foreign, func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = ours }, config},
		"owner taken off":         {written, func(n *nadv1.NetworkAttachmentDefinition) { n.OwnerReferences = nil }, owner},
		"another owner":           {written, func(n *nadv1.NetworkAttachmentDefinition) { n.OwnerReferences[0].UID = "5678" }, owner},
		"finalizers taken off":    {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Finalizers = nil }, owner},
		"finalizer added":         {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Finalizers = append(n.Finalizers, "a.b/c") }, owner},
		"both taken off":          {written, func(n *nadv1.NetworkAttachmentDefinition) { n.OwnerReferences, n.Finalizers = nil, nil }, owner},
		"label":                   {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Labels = map[string]string{"team": "red"} }, ""},
		"another's finalizers":    {foreign, func(n *nadv1.NetworkAttachmentDefinition) { n.Finalizers = nil }, ""},
		"another's configuration": {foreign, func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = `{"type":"bridge"}` }, ""},
	} {
		t.Run("update "+name, func(t *testing.T) {
			p.verdict(t, c.want, func(cl client.Client) error {
				next := &nadv1.NetworkAttachmentDefinition{}
				if err := p.admin.Get(ctx, client.ObjectKeyFromObject(c.of), next); err != nil {
					return err
				}
				before := client.MergeFrom(next.DeepCopy())
				c.edit(next)
				return cl.Patch(ctx, next, before, client.DryRunAll)
			}, everybody...)
		})
	}
}
