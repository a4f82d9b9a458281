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

// Lookup finds networks through a cache of NetworkAttachmentDefinitions and of
// the metadata of Namespaces. A look costs as much as the namespace has NADs,
// however many networks the cluster has.
type Lookup struct {
	Cache client.Reader
	Plan  network.Plan
}

// NAD is what the NAD of that name says; ok is false where it is not there or
// another CNI plugin's. One that cannot be used comes back with Err set.
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

// Primary is the NAD of the namespace's primary network: nil without an error
// where its pods have the cluster default network. An error that wraps
// network.ErrNoPrimary says that one is expected and not there yet; any other
// names what has to be mended.
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
		if nad, ours := ParseNAD(&nads.Items[i], l.Plan); ours {
			c.Set(nad)
		}
	}
	return c.Primary(namespace, true)
}
