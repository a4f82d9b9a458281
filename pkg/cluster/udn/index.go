// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"fmt"
	"slices"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Indexes of the cache. With them, the cost of an event does not grow with the
// number of networks, namespaces and pods.
const (
	indexOwner     = "owner"     // NADs by owner
	indexLabel     = "label"     // namespaces by each label
	indexSelects   = "selects"   // ClusterUserDefinedNetworks by a label of their namespaces, see selectorKeys
	indexTransport = "transport" // ClusterUserDefinedNetworks by transport, except Geneve
)

// anyLabel indexes selectors that require no certain label: {}, NotIn, Exists.
const anyLabel = "*"

// AddIndexes adds the indexes to a cache that has not been started.
func AddIndexes(ctx context.Context, c client.FieldIndexer) error {
	for _, i := range []struct {
		obj   client.Object
		field string
		keys  client.IndexerFunc
	}{
		{&nadv1.NetworkAttachmentDefinition{}, indexOwner, func(o client.Object) []string {
			if owner, ok := OwnerOf(o); ok {
				return []string{ownerKey(owner)}
			}
			return nil
		}},
		{kube.Metadata("Namespace"), indexLabel, func(o client.Object) []string {
			out := []string{}
			for k, v := range o.GetLabels() {
				out = append(out, k+"="+v)
			}
			return out
		}},
		{&udnv1.ClusterUserDefinedNetwork{}, indexSelects, func(o client.Object) []string {
			return selectorKeys(&o.(*udnv1.ClusterUserDefinedNetwork).Spec.NamespaceSelector)
		}},
		{&udnv1.ClusterUserDefinedNetwork{}, indexTransport, func(o client.Object) []string {
			if t := o.(*udnv1.ClusterUserDefinedNetwork).Spec.Network.Transport; t != "" && t != udnv1.TransportOptionGeneve {
				return []string{string(t)}
			}
			return nil
		}},
	} {
		if err := c.IndexField(ctx, i.obj, i.field, i.keys); err != nil {
			return fmt.Errorf("index %s of %T: %w", i.field, i.obj, err)
		}
	}
	return nil
}

// NADs returns the owner's NADs. Callers do not change them: they are the cache's.
func NADs(ctx context.Context, cache client.Reader, o Owner) ([]nadv1.NetworkAttachmentDefinition, error) {
	var list nadv1.NetworkAttachmentDefinitionList
	if err := cache.List(ctx, &list, client.MatchingFields{indexOwner: ownerKey(o)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list NetworkAttachmentDefinitions of %s: %w", o, err)
	}
	return list.Items, nil
}

func ownerKey(o Owner) string { return o.Namespace + "/" + o.Name }

// OwnerOf returns a NAD's owner, from the annotation with the network's name: only
// the cluster controller may write it. Owner references, finalizers and labels prove
// nothing, because anybody who may write NADs may write them. A NAD has its owner's
// name; that of a ClusterUserDefinedNetwork may be in any namespace.
func OwnerOf(nad client.Object) (Owner, bool) {
	name := nad.GetAnnotations()[network.AnnotationNetworkName]
	for _, o := range []Owner{{Name: nad.GetName()}, {nad.GetNamespace(), nad.GetName()}} {
		if name == o.Network() {
			return o, true
		}
	}
	return Owner{}, false
}

// selectorKeys returns labels of which every namespace that the selector matches
// has at least one.
func selectorKeys(s *metav1.LabelSelector) []string {
	// The name label matches the fewest namespaces.
	if v, ok := s.MatchLabels["kubernetes.io/metadata.name"]; ok {
		return []string{"kubernetes.io/metadata.name=" + v}
	}
	var best []string
	for _, k := range sortedKeys(s.MatchLabels) {
		best = []string{k + "=" + s.MatchLabels[k]}
		break
	}
	for _, e := range s.MatchExpressions {
		if e.Operator != metav1.LabelSelectorOpIn || len(e.Values) == 0 {
			continue
		}
		if byName := e.Key == "kubernetes.io/metadata.name"; best == nil || byName {
			best = nil
			for _, v := range e.Values {
				best = append(best, e.Key+"="+v)
			}
			if byName {
				break
			}
		}
	}
	if best == nil {
		return []string{anyLabel}
	}
	slices.Sort(best)
	return slices.Compact(best)
}
