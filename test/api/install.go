// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Root is the repository's root directory.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Install applies every object of the YAML files, or of the files in the
// directories, and waits until the API server serves the CRDs among them.
func (e *Env) Install(ctx context.Context, paths ...string) error {
	c, err := client.New(e.Admin, client.Options{})
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	var crds []*unstructured.Unstructured
	for _, p := range paths {
		objs, err := readObjects(p)
		if err != nil {
			return err
		}
		for _, o := range objs {
			if o.GroupVersionKind().Group == "apps" {
				continue // there are no nodes to run its pods
			}
			if o.GetKind() == "CustomResourceDefinition" {
				crds = append(crds, o)
			}
			if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner("test"), client.ForceOwnership); err != nil {
				return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
			}
		}
	}
	for _, o := range crds {
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return false, err
			}
			conds, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			for _, x := range conds {
				if m, ok := x.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" {
					return true, nil
				}
			}
			return false, nil
		})
		if err != nil {
			return fmt.Errorf("wait for CRD %s: %w", o.GetName(), err)
		}
	}
	return nil
}

func readObjects(path string) ([]*unstructured.Unstructured, error) {
	files := []string{path}
	if st, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("find %s: %w", path, err)
	} else if st.IsDir() {
		if files, err = filepath.Glob(filepath.Join(path, "*.yaml")); err != nil {
			return nil, fmt.Errorf("list %s: %w", path, err)
		}
	}
	var out []*unstructured.Unstructured
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f, err)
		}
		dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
		for {
			o := &unstructured.Unstructured{}
			err := dec.Decode(&o.Object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("parse %s: %w", f, err)
			}
			if len(o.Object) > 0 {
				out = append(out, o)
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no objects", path)
	}
	return out, nil
}
