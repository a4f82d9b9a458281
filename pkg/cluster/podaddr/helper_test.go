// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"context"
	"slices"

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

// vanishing runs something before the first operation.
type vanishing struct {
	Target
	first func()
}

func (v vanishing) Apply(ctx context.Context, ops []Op) error {
	v.first()
	return v.Target.Apply(ctx, ops)
}
