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

// cacheWithout is a cache that lacks objects.
type cacheWithout struct {
	client.Reader
	names []string
}

func (c cacheWithout) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if slices.Contains(c.names, key.Name) {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	return c.Reader.Get(ctx, key, obj, opts...)
}

// cacheShowing is a cache in which every claim is the given one.
type cacheShowing struct {
	client.Reader
	claim *ipamclaimv1.IPAMClaim
}

func (c cacheShowing) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if claim, ok := obj.(*ipamclaimv1.IPAMClaim); ok {
		c.claim.DeepCopyInto(claim)
		return nil
	}
	return c.Reader.Get(ctx, key, obj, opts...)
}

// hookTarget calls a function before it applies operations.
type hookTarget struct {
	Target
	before func()
}

func (h hookTarget) Apply(ctx context.Context, ops []Op) error {
	h.before()
	return h.Target.Apply(ctx, ops)
}
