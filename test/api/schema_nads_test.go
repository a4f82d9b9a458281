// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// A tenant with all permissions in a namespace may not create NADs of our type, nor
// change those that have an id, except their labels and other annotations, up to a size
// that leaves the cluster controller room. The tenant may write other plugins' NADs.
func TestHandWrittenNADsPolicy(t *testing.T) {
	p := newPolicyCase(t)
	ctx := t.Context()
	const (
		ours      = `{"cniVersion":"1.1.0","name":"blue","type":"ovn-k8s-cni-overlay","topology":"layer2","role":"secondary"}`
		other     = `{"cniVersion":"1.1.0","name":"x","type":"macvlan"}`
		byHand    = "create a UserDefinedNetwork instead"
		config    = "leave spec.config as it is"
		owner     = "leave metadata.ownerReferences and metadata.finalizers as they are"
		finalizer = "k8s.ovn.org/network-attachment-definition-protection"
		number    = "has at most 64 labels and annotations"
		length    = "has at most 1024 characters"
	)
	values := func(n, size int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprintf("example.com/%d", i)] = strings.Repeat("x", size)
		}
		return m
	}
	annotate := func(n *nadv1.NetworkAttachmentDefinition, more map[string]string) {
		n.Annotations = maps.Clone(n.Annotations)
		maps.Copy(n.Annotations, more)
	}
	nad := func(spec string) *nadv1.NetworkAttachmentDefinition {
		return &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, GenerateName: "x-"},
			Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: spec}}
	}
	yes := true
	ns := &corev1.Namespace{}
	if err := p.admin.Get(ctx, client.ObjectKey{Name: p.namespace}, ns); err != nil {
		t.Fatal(err)
	}
	// An existing owner, so that the garbage collector does not delete the NAD.
	ref := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: ns.Name, UID: ns.UID, Controller: &yes}}
	allowed := []string{superUser, administrator, clusterRole}

	for name, c := range map[string]struct{ spec, want string }{
		"of our type": {ours, byHand}, "in a list of plugins": {`{"name":"x","plugins":[` + ours + `]}`, byHand}, "with another key": {`{"TYPE":"ovn-k8s-cni-overlay"}`, byHand},
		"of another": {other, ""}, "empty": {"", ""},
		// network.ParseNetConf does not accept this spelling of the type either.
		"escaped": {`{"name":"x","type":"ovn\u002dk8s-cni-overlay"}`, ""},
	} {
		t.Run("create "+name, func(t *testing.T) {
			p.verdict(t, c.want, func(cl client.Client) error { return cl.Create(ctx, nad(c.spec), client.DryRunAll) }, allowed...)
		})
	}
	written := nad(ours)
	written.OwnerReferences, written.Finalizers = ref, []string{finalizer}
	written.Annotations = map[string]string{network.AnnotationNetworkID: "7", network.AnnotationNetworkName: "blue"}
	emptied := nad("") // an administrator emptied it: it still belongs to a network
	emptied.Annotations, emptied.Finalizers = written.Annotations, written.Finalizers
	long := nad(ours) // by an administrator
	long.Annotations, long.Finalizers = values(1, 4000), []string{finalizer}
	foreign := nad(other)
	foreign.Finalizers = []string{"example.com/mine"}
	for _, o := range []*nadv1.NetworkAttachmentDefinition{written, emptied, long, foreign} {
		p.create(t, o)
		t.Cleanup(func() { // the finalizers would block its deletion
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
		"config":                        {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = other }, config},
		"config, emptied":               {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = "" }, config},
		"config of one with id":         {emptied, func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = other }, config},
		"another's changed to our type": {foreign, func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = ours }, config},
		"owner removed":                 {written, func(n *nadv1.NetworkAttachmentDefinition) { n.OwnerReferences = nil }, owner},
		"another owner":                 {written, func(n *nadv1.NetworkAttachmentDefinition) { n.OwnerReferences[0].UID = "5678" }, owner},
		"finalizers removed":            {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Finalizers = nil }, owner},
		"finalizer added":               {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Finalizers = append(n.Finalizers, "a.b/c") }, owner},
		"both removed":                  {written, func(n *nadv1.NetworkAttachmentDefinition) { n.OwnerReferences, n.Finalizers = nil, nil }, owner},
		"label":                         {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Labels = map[string]string{"team": "red"} }, ""},
		"labels and annotations":        {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Labels = values(31, 63); annotate(n, values(31, 1024)) }, ""},
		"too many labels":               {written, func(n *nadv1.NetworkAttachmentDefinition) { n.Labels = values(63, 1) }, number},
		"too many annotations":          {written, func(n *nadv1.NetworkAttachmentDefinition) { annotate(n, values(63, 1)) }, number},
		"a long annotation":             {written, func(n *nadv1.NetworkAttachmentDefinition) { annotate(n, values(1, 1025)) }, length},
		"beside a long annotation":      {long, func(n *nadv1.NetworkAttachmentDefinition) { n.Labels = values(1, 1) }, ""},
		"a longer annotation":           {long, func(n *nadv1.NetworkAttachmentDefinition) { annotate(n, values(1, 5000)) }, length},
		"another's long annotation":     {foreign, func(n *nadv1.NetworkAttachmentDefinition) { n.Annotations = values(100, 2000) }, ""},
		"another's finalizers":          {foreign, func(n *nadv1.NetworkAttachmentDefinition) { n.Finalizers = nil }, ""},
		"another's configuration":       {foreign, func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = `{"type":"bridge"}` }, ""},
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
			}, allowed...)
		})
	}
	t.Run("apply as many field managers", func(t *testing.T) {
		apply := func(cl client.Client, of *nadv1.NetworkAttachmentDefinition, manager int) error {
			o := &unstructured.Unstructured{}
			o.SetGroupVersionKind(nadv1.SchemeGroupVersion.WithKind("NetworkAttachmentDefinition"))
			o.SetNamespace(of.Namespace)
			o.SetName(of.Name)
			o.SetLabels(map[string]string{"team": "red"})
			return cl.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(fmt.Sprintf("manager-%d", manager)), client.ForceOwnership)
		}
		for i := range 20 {
			err := apply(p.tenant, foreign, i)
			if err != nil {
				t.Errorf("another's, manager %d: %v", i, err)
			}
			// The object's creator is a manager too.
			if err = apply(p.tenant, written, i); err == nil != (i < 15) {
				t.Errorf("manager %d: %v", i, err)
			} else if err != nil && !strings.Contains(err.Error(), "At most 16 field managers") {
				t.Errorf("manager %d: unexpected refusal: %v", i, err)
			}
		}
		if err := apply(p.tenant, written, 3); err != nil {
			t.Errorf("a manager that the object has: %v", err)
		}
		for _, user := range allowed {
			if err := apply(p.allowed[user], written, 100); err != nil {
				t.Errorf("%s: %v", user, err)
			}
		}
	})
}
