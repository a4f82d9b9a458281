// SPDX-License-Identifier: Apache-2.0

package nad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// Reasons of events on NADs.
const (
	ReasonInvalid = "NetworkAttachmentDefinitionInvalid"
	ReasonInUse   = "NetworkInUse"
)

// Target executes operations on NADs.
type Target interface {
	// Apply runs the operations in order. It continues after a failed one, and
	// returns the joined errors, each with its Op.
	Apply(ctx context.Context, ops []Op) error
}

// Kube is the Target of the Kubernetes API.
type Kube struct {
	Client client.Client
	Events events.EventRecorder
}

// Apply implements Target.
func (k *Kube) Apply(ctx context.Context, ops []Op) error {
	var errs []error
	for _, op := range ops {
		if err := k.do(ctx, op); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op, err))
		}
	}
	return errors.Join(errs...)
}

func (k *Kube) do(ctx context.Context, op Op) error {
	obj := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: op.NAD.Namespace, Name: op.NAD.Name, UID: op.NAD.UID}}
	obj.SetGroupVersionKind(nadv1.SchemeGroupVersion.WithKind("NetworkAttachmentDefinition"))
	if op.Kind == Warn {
		reason := ReasonInvalid
		if op.NAD.Deleting {
			reason = ReasonInUse
		}
		k.Events.Eventf(obj, nil, corev1.EventTypeWarning, reason, "Reconcile", "%s", op.Want.Problem)
		return nil
	}
	finalizers := slices.DeleteFunc(slices.Clone(op.NAD.Finalizers), func(f string) bool { return f == network.FinalizerNAD })
	if op.Want.Finalizer {
		finalizers = append(finalizers, network.FinalizerNAD)
	}
	orNull := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	// The patch names the resource version: the id follows from that version's
	// configuration, and the list of finalizers is replaced as a whole.
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": op.NAD.UID, "resourceVersion": op.NAD.ResourceVersion, "finalizers": finalizers,
		"annotations": map[string]any{network.AnnotationNetworkID: orNull(op.Want.ID), network.AnnotationNetworkName: orNull(op.Want.Network)},
	}})
	if err != nil {
		return fmt.Errorf("render patch: %w", err)
	}
	return client.IgnoreNotFound(k.Client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, body)))
}
