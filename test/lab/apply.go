// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

const fieldManager = "bulkhead-lab"

// Apply applies the objects of a YAML text in order, server-side. Objects
// without a namespace go to "default".
func (l *Lab) Apply(ctx context.Context, manifest string) error {
	objects, err := parseManifest(manifest)
	if err != nil {
		return err
	}
	return l.each(objects, "apply", apply(ctx))
}

// apply returns a function for each that applies an object server-side.
func apply(ctx context.Context) func(dynamic.ResourceInterface, *unstructured.Unstructured) error {
	return func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		_, err := r.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		return err
	}
}

// Delete deletes the objects of a YAML text in reverse order and ignores those that
// do not exist. It does not wait for finalizers.
func (l *Lab) Delete(ctx context.Context, manifest string) error {
	objects, err := parseManifest(manifest)
	if err != nil {
		return err
	}
	for i, j := 0, len(objects)-1; i < j; i, j = i+1, j-1 {
		objects[i], objects[j] = objects[j], objects[i]
	}
	background := metav1.DeletePropagationBackground
	return l.each(objects, "delete", func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		err := r.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// each finds the API resource of every object and calls do; errors name the object.
func (l *Lab) each(objects []*unstructured.Unstructured, verb string, do func(dynamic.ResourceInterface, *unstructured.Unstructured) error) error {
	mapper, err := l.mapper()
	if err != nil {
		return err
	}
	for _, o := range objects {
		kind := o.GroupVersionKind()
		name := fmt.Sprintf("%s %s %s/%s", verb, kind.Kind, o.GetNamespace(), o.GetName())
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			// An earlier object of the list may be its CRD.
			if mapper, err = l.mapper(); err == nil {
				mapping, err = mapper.RESTMapping(kind.GroupKind(), kind.Version)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		var r dynamic.ResourceInterface = l.dynamic.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			if o.GetNamespace() == "" {
				o.SetNamespace("default")
			}
			r = l.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace())
		}
		if err := do(r, o); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (l *Lab) mapper() (meta.RESTMapper, error) {
	d, err := discovery.NewDiscoveryClientForConfig(l.config)
	if err != nil {
		return nil, fmt.Errorf("discover the cluster's APIs: %w", err)
	}
	groups, err := restmapper.GetAPIGroupResources(d)
	if err != nil {
		return nil, fmt.Errorf("discover the cluster's APIs: %w", err)
	}
	return restmapper.NewDiscoveryRESTMapper(groups), nil
}

// parseManifest returns the objects of a YAML text, and the items of lists in it.
func parseManifest(text string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for n := 1; ; n++ {
		data, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read document %d of the manifest: %w", n, err)
		}
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &o.Object); err != nil {
			return nil, fmt.Errorf("parse document %d of the manifest: %w", n, err)
		}
		if len(o.Object) == 0 {
			continue
		}
		if o.GetKind() == "" || o.GetAPIVersion() == "" {
			return nil, fmt.Errorf("document %d of the manifest has no apiVersion or kind", n)
		}
		if !o.IsList() {
			objects = append(objects, o)
			continue
		}
		if err := o.EachListItem(func(item runtime.Object) error {
			if u, ok := item.(*unstructured.Unstructured); ok {
				objects = append(objects, u)
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("read the list in document %d of the manifest: %w", n, err)
		}
	}
}
