// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"context"
	"slices"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

func nadCreated(n *nadv1.NetworkAttachmentDefinition) event.TypedCreateEvent[*nadv1.NetworkAttachmentDefinition] {
	return event.TypedCreateEvent[*nadv1.NetworkAttachmentDefinition]{Object: n}
}

// without is a cache that lacks objects.
type without struct {
	client.Reader
	names []string
}

func (w without) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if slices.Contains(w.names, key.Name) {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	return w.Reader.Get(ctx, key, obj, opts...)
}

// shows is a cache in which a claim is another one.
type shows struct {
	client.Reader
	claim *ipamclaimv1.IPAMClaim
}

func (c shows) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if claim, ok := obj.(*ipamclaimv1.IPAMClaim); ok {
		c.claim.DeepCopyInto(claim)
		return nil
	}
	return c.Reader.Get(ctx, key, obj, opts...)
}

// vanishing runs something before the first operation.
type vanishing struct {
	Target
	first func()
}

func (v vanishing) Apply(ctx context.Context, ops []Op) error {
	v.first()
	return v.Target.Apply(ctx, ops)
}
