// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// Lookup finds networks in a cache of NetworkAttachmentDefinitions and metadata
// of Namespaces. The cost depends on the number of NADs in the namespace, not on
// the number of networks.
type Lookup struct {
	Cache client.Reader
	Plan  network.Plan
}

// NAD returns a parsed NAD. ok is false if it does not exist or belongs to another
// CNI plugin. The Err of an unusable NAD is set.
func (l Lookup) NAD(ctx context.Context, namespace, name string) (nad network.NAD, ok bool, err error) {
	obj := &nadv1.NetworkAttachmentDefinition{}
	err = l.Cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj)
	if apierrors.IsNotFound(err) {
		return nad, false, nil
	}
	if err != nil {
		return nad, false, fmt.Errorf("get NetworkAttachmentDefinition %s: %w", network.NADKey(namespace, name), err)
	}
	nad, ok = ParseNAD(obj, l.Plan)
	return nad, ok, nil
}

// Primary returns the NAD of the namespace's primary network. It returns nil
// without an error if that is the cluster default network, and an error that wraps
// network.ErrNoPrimary if the primary network does not exist yet. Other errors
// name the remedy.
func (l Lookup) Primary(ctx context.Context, namespace string) (*network.NAD, error) {
	ns := Metadata("Namespace")
	err := l.Cache.Get(ctx, client.ObjectKey{Name: namespace}, ns)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get namespace %s: %w", namespace, err)
	}
	if _, labelled := ns.Labels[network.LabelPrimaryUDN]; !labelled {
		return nil, nil
	}
	var nads nadv1.NetworkAttachmentDefinitionList
	if err := l.Cache.List(ctx, &nads, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list NetworkAttachmentDefinitions of namespace %s: %w", namespace, err)
	}
	c := network.NewNADIndex()
	for i := range nads.Items {
		if nad, ours := ParseNAD(&nads.Items[i], l.Plan); ours && !Released(&nads.Items[i]) {
			c.Set(nad)
		}
	}
	return c.Primary(namespace, true)
}
