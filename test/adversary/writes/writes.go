// SPDX-License-Identifier: Apache-2.0

// Package writes is the adversary's table of API writes: what the administrator
// of a namespace, and the holder of a node's token, write to change another
// tenant's id, address or network. The objects, the OVN rows and the pods
// afterwards decide, not the API server's answer. If the API server refuses a
// write, the same write by an administrator is the control: it must be accepted.
package writes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kind is a kind of object.
type Kind struct{ APIVersion, Kind string }

// Kinds of the objects in the table.
var (
	NAD        = Kind{"k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition"}
	UDN        = Kind{"k8s.ovn.org/v1", "UserDefinedNetwork"}
	CUDN       = Kind{"k8s.ovn.org/v1", "ClusterUserDefinedNetwork"}
	Pod        = Kind{"v1", "Pod"}
	Binding    = Kind{"v1", "Binding"}
	Node       = Kind{"v1", "Node"}
	Namespace  = Kind{"v1", "Namespace"}
	IPAMClaim  = Kind{"k8s.cni.cncf.io/v1alpha1", "IPAMClaim"}
	Deployment = Kind{"apps/v1", "Deployment"}
	Lease      = Kind{"coordination.k8s.io/v1", "Lease"}
	Service    = Kind{"v1", "Service"}
	Slice      = Kind{"discovery.k8s.io/v1", "EndpointSlice"}
)

// Verb is a write operation.
type Verb string

// Verbs. Create takes a manifest without kind and name; Patch, Apply and Update
// take a merge patch.
const (
	Create Verb = "create"
	Patch  Verb = "patch"
	Apply  Verb = "apply" // server-side, forced
	Update Verb = "update"
	Delete Verb = "delete"
)

// Write is one attempt.
type Write struct {
	Verb            Verb
	Of              Kind
	Namespace, Name string
	Sub             string // subresource
	Body            string
	// AdminRefused marks a write that the API server also refuses to administrators.
	AdminRefused bool
}

func (w Write) String() string {
	name := w.Name
	if w.Namespace != "" {
		name = w.Namespace + "/" + name
	}
	if w.Sub != "" {
		name += "/" + w.Sub
	}
	return fmt.Sprintf("%s %s %s %s", w.Verb, w.Of.Kind, name, w.Body)
}

// object returns the written or patched object.
func (w Write) object(body map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: body}
	u.SetAPIVersion(w.Of.APIVersion)
	u.SetKind(w.Of.Kind)
	u.SetName(w.Name)
	u.SetNamespace(w.Namespace)
	return u
}

// Do makes the write, or with dry, a dry run of it.
func (w Write) Do(ctx context.Context, c client.Client, dry bool) error {
	body := map[string]any{}
	if w.Body != "" {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON([]byte(fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s`, w.Of.APIVersion, w.Of.Kind, strings.TrimPrefix(w.Body, "{")))); err != nil {
			return fmt.Errorf("%s: %w", w, err)
		}
		body = u.Object
	}
	switch w.Verb {
	case Create:
		var opts []client.CreateOption
		if dry {
			opts = append(opts, client.DryRunAll)
		}
		if w.Sub != "" {
			var sub []client.SubResourceCreateOption
			if dry {
				sub = append(sub, client.DryRunAll)
			}
			return c.SubResource(w.Sub).Create(ctx, Write{Of: Pod, Namespace: w.Namespace, Name: w.Name}.object(map[string]any{}), w.object(body), sub...)
		}
		return c.Create(ctx, w.object(body), opts...)
	case Delete:
		opts := []client.DeleteOption{client.GracePeriodSeconds(0)}
		if dry {
			opts = append(opts, client.DryRunAll)
		}
		return c.Delete(ctx, w.object(map[string]any{}), opts...)
	case Update:
		return w.update(ctx, c, body, dry)
	case Apply:
		opts := []client.ApplyOption{client.FieldOwner("adversary"), client.ForceOwnership}
		if dry {
			opts = append(opts, client.DryRunAll)
		}
		return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(w.object(body)), opts...)
	}
	patch := client.RawPatch(types.MergePatchType, []byte(w.Body))
	if w.Sub != "" {
		var opts []client.SubResourcePatchOption
		if dry {
			opts = append(opts, client.DryRunAll)
		}
		return c.SubResource(w.Sub).Patch(ctx, w.object(map[string]any{}), patch, opts...)
	}
	var opts []client.PatchOption
	if dry {
		opts = append(opts, client.DryRunAll)
	}
	return c.Patch(ctx, w.object(map[string]any{}), patch, opts...)
}

// update replaces the fields that the body sets, as kubectl replace would.
func (w Write) update(ctx context.Context, c client.Client, body map[string]any, dry bool) error {
	have := w.object(map[string]any{})
	if err := c.Get(ctx, client.ObjectKeyFromObject(have), have); err != nil {
		return err
	}
	for field, value := range body {
		if field == "metadata" {
			for k, v := range value.(map[string]any) {
				if err := unstructured.SetNestedField(have.Object, v, "metadata", k); err != nil {
					return err
				}
			}
		} else if field != "apiVersion" && field != "kind" {
			have.Object[field] = value
		}
	}
	var opts []client.UpdateOption
	if dry {
		opts = append(opts, client.DryRunAll)
	}
	return c.Update(ctx, have, opts...)
}

// Result counts refused and accepted writes.
type Result struct{ Refused, Accepted int }

// Run makes every write as the attacker. An administrator's dry run of each
// refused write must be accepted: else the write is invalid and proves nothing.
func Run(ctx context.Context, attacker, admin client.Client, all []Write) (Result, error) {
	var r Result
	var errs []error
	if len(all) == 0 {
		return r, errors.New("the table of writes is empty")
	}
	for _, w := range all {
		err := w.Do(ctx, attacker, false)
		// A controller may have written between the reading and the writing of an update.
		for try := 0; w.Verb == Update && apierrors.IsConflict(err) && try < 10; try++ {
			err = w.Do(ctx, attacker, false)
		}
		if err == nil {
			r.Accepted++
			continue
		}
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsBadRequest(err) {
			errs = append(errs, fmt.Errorf("%s: %w", w, err))
			continue
		}
		r.Refused++
		if control := w.Do(ctx, admin, true); (control != nil) != w.AdminRefused {
			errs = append(errs, fmt.Errorf("%s: refused (%w), and the administrator's control got: %v", w, err, control))
		}
	}
	return r, errors.Join(errs...)
}

// gvk returns the kind for unstructured lists.
func (k Kind) gvk() schema.GroupVersionKind {
	gv, _ := schema.ParseGroupVersion(k.APIVersion)
	return gv.WithKind(k.Kind)
}
