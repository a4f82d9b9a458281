// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fakeAPI holds objects in memory, with resource versions and uids. One instance
// is the API server, another the cache that lags behind it. Objects are replaced,
// never modified.
type fakeAPI struct {
	client.Client // methods that are not implemented below are not called
	objects       map[string]client.Object
	pending       map[string][]change // changes by kind, in order, that the cache does not have yet
	version       int
	writes        int // by the code under test
	redundant     int // writes to objects that it had deleted
	deleted       map[types.UID]bool
}

// change is an object's next state, nil if it was deleted.
type change struct {
	key    string
	object client.Object
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{objects: map[string]client.Object{}, pending: map[string][]change{}, deleted: map[types.UID]bool{}}
}

func kindOf(o client.Object) string {
	switch x := o.(type) {
	case *discoveryv1.EndpointSlice:
		return "EndpointSlice"
	case *corev1.Pod:
		return "Pod"
	case *nadv1.NetworkAttachmentDefinition:
		return "NAD"
	case *metav1.PartialObjectMetadata:
		return x.Kind
	}
	panic(fmt.Sprintf("%T", o))
}

func keyOf(o client.Object) string { return kindOf(o) + "/" + o.GetNamespace() + "/" + o.GetName() }

// put creates or replaces an object. It sets the resource version and, for a new
// object, the uid.
func (s *fakeAPI) put(o client.Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	if old, ok := s.objects[keyOf(o)]; ok {
		o.SetUID(old.GetUID())
	} else if o.GetUID() == "" {
		o.SetUID(types.UID("uid-" + strconv.Itoa(s.version)))
	}
	s.objects[keyOf(o)] = o
	s.pending[kindOf(o)] = append(s.pending[kindOf(o)], change{keyOf(o), o})
}

func (s *fakeAPI) remove(key string) {
	if o, ok := s.objects[key]; ok {
		delete(s.objects, key)
		s.pending[kindOf(o)] = append(s.pending[kindOf(o)], change{key, nil})
	}
}

func notFound(o client.Object) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: kindOf(o)}, o.GetName())
}

func (s *fakeAPI) Get(_ context.Context, key client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	have, ok := s.objects[kindOf(out)+"/"+key.Namespace+"/"+key.Name]
	if !ok {
		out.SetName(key.Name)
		return notFound(out)
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(have).Elem())
	return nil
}

func (s *fakeAPI) List(_ context.Context, out client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	want := func(x client.Object) bool {
		if o.Namespace != "" && x.GetNamespace() != o.Namespace {
			return false
		}
		if o.FieldSelector == nil {
			return true
		}
		value, _ := o.FieldSelector.RequiresExactMatch(indexMirror)
		return slices.Contains(mirrorKeys(x), value)
	}
	for _, key := range s.keys() {
		switch x := s.objects[key].(type) {
		case *discoveryv1.EndpointSlice:
			if l, ok := out.(*discoveryv1.EndpointSliceList); ok && want(x) {
				l.Items = append(l.Items, *x)
			}
		case *nadv1.NetworkAttachmentDefinition:
			if l, ok := out.(*nadv1.NetworkAttachmentDefinitionList); ok && want(x) {
				l.Items = append(l.Items, *x)
			}
		}
	}
	return nil
}

func (s *fakeAPI) keys() []string {
	var out []string
	for k := range s.objects {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func (s *fakeAPI) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	s.writes++
	if _, ok := s.objects["Namespace//"+o.GetNamespace()]; !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, o.GetNamespace())
	}
	if _, ok := s.objects[keyOf(o)]; ok {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: kindOf(o)}, o.GetName())
	}
	stored := o.DeepCopyObject().(client.Object)
	s.put(stored)
	o.SetUID(stored.GetUID())
	o.SetResourceVersion(stored.GetResourceVersion())
	return nil
}

func (s *fakeAPI) Delete(_ context.Context, o client.Object, opts ...client.DeleteOption) error {
	s.writes++
	var do client.DeleteOptions
	do.ApplyOptions(opts)
	have, ok := s.objects[keyOf(o)]
	if s.deleted[*do.Preconditions.UID] {
		s.redundant++
	}
	if !ok {
		return notFound(o)
	}
	if *do.Preconditions.UID != have.GetUID() {
		return apierrors.NewConflict(schema.GroupResource{Resource: kindOf(o)}, o.GetName(), fmt.Errorf("uid is %s", have.GetUID()))
	}
	s.deleted[have.GetUID()] = true
	s.remove(keyOf(o))
	return nil
}

func (s *fakeAPI) Patch(_ context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	s.writes++
	body, err := patch.Data(o)
	if err != nil {
		return err
	}
	var current, change map[string]any
	if err := json.Unmarshal(body, &change); err != nil {
		return err
	}
	uid := change["metadata"].(map[string]any)["uid"]
	if s.deleted[types.UID(uid.(string))] {
		s.redundant++
	}
	have, ok := s.objects[keyOf(o)].(*discoveryv1.EndpointSlice)
	if !ok {
		return notFound(o)
	}
	raw, err := json.Marshal(have)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &current); err != nil {
		return err
	}
	if uid != string(have.UID) {
		return apierrors.NewConflict(schema.GroupResource{Resource: kindOf(o)}, o.GetName(), fmt.Errorf("uid is %s", have.UID))
	}
	if raw, err = json.Marshal(mergePatch(current, change)); err != nil {
		return err
	}
	next := &discoveryv1.EndpointSlice{}
	if err := json.Unmarshal(raw, next); err != nil {
		return err
	}
	if next.AddressType != have.AddressType {
		return apierrors.NewBadRequest("addressType is immutable")
	}
	next.ResourceVersion = have.ResourceVersion
	if equality.Semantic.DeepEqual(next, have) {
		return fmt.Errorf("a write without changes: %s", strings.TrimSpace(string(body)))
	}
	s.put(next)
	o.SetResourceVersion(next.ResourceVersion)
	return nil
}

func mergePatch(current, change map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range current {
		out[k] = v
	}
	for k, v := range change {
		sub, ok := v.(map[string]any)
		old, _ := out[k].(map[string]any)
		switch {
		case v == nil:
			delete(out, k)
		case ok:
			out[k] = mergePatch(old, sub)
		default:
			out[k] = v
		}
	}
	return out
}
