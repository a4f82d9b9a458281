// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// schemaCase is one spec (or one change of a spec) and what the API server
// says to it: "" accepts it, else the message contains want.
type schemaCase struct {
	name   string
	kind   string // "" for UserDefinedNetwork; "C" for ClusterUserDefinedNetwork
	spec   string
	update string // set: create spec, then change it to this; want is about the change
	want   string
}

func (c schemaCase) object(name, spec string) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	text := "spec:\n" + indent(spec, "  ")
	if c.kind == "C" {
		text = "spec:\n  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: red}}\n  network:\n" + indent(spec, "    ")
	}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		return nil, fmt.Errorf("case %s: %w", c.name, err)
	}
	o.SetAPIVersion("k8s.ovn.org/v1")
	o.SetKind("UserDefinedNetwork")
	o.SetNamespace("default")
	if c.kind == "C" {
		o.SetKind("ClusterUserDefinedNetwork")
		o.SetNamespace("")
	}
	o.SetName(name)
	return o, nil
}

func indent(s, by string) string { return by + strings.ReplaceAll(s, "\n", "\n"+by) + "\n" }

func TestSchema(t *testing.T) {
	needAPI(t)
	cl, err := client.New(env.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	var cases []schemaCase
	for _, l := range [][]schemaCase{layer3Cases(), layer2Cases(), localnetCases(), clusterCases()} {
		cases = append(cases, l...)
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o, err := c.object(fmt.Sprintf("net-%d", i), c.spec)
			if err != nil {
				t.Fatal(err)
			}
			if c.update == "" {
				checkVerdict(t, cl.Create(ctx, o, client.DryRunAll), c.want)
				return
			}
			if err := cl.Create(ctx, o); err != nil {
				t.Fatalf("create: %v", err)
			}
			defer func() { _ = cl.Delete(ctx, o) }()
			next, err := c.object(o.GetName(), c.update)
			if err != nil {
				t.Fatal(err)
			}
			next.SetResourceVersion(o.GetResourceVersion())
			checkVerdict(t, cl.Update(ctx, next, client.DryRunAll), c.want)
		})
	}
}

func checkVerdict(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && err == nil:
		t.Errorf("accepted, want a refusal with %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("refused with another message:\n got %v\nwant %q", err, want)
	}
}

// A namespace gets the label of primary networks when it is created, or never.
func TestNamespaceLabelPolicy(t *testing.T) {
	needAPI(t)
	cl, err := client.New(env.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	label := "k8s.ovn.org/primary-user-defined-network"
	for _, c := range []struct {
		name   string
		labels map[string]string
		patch  string
		want   string
	}{
		{"label added", nil, `{"metadata":{"labels":{"` + label + `":""}}}`, "cannot be added/removed"},
		{"label removed", map[string]string{label: ""}, `{"metadata":{"labels":{"` + label + `":null}}}`, "cannot be added/removed"},
		{"label's value changed", map[string]string{label: ""}, `{"metadata":{"labels":{"` + label + `":"x"}}}`, ""},
		{"other label added", nil, `{"metadata":{"labels":{"team":"red"}}}`, ""},
		{"no labels at all", nil, `{"metadata":{"labels":null,"annotations":{"a":"b"}}}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "policy-", Labels: c.labels}}
			if err := cl.Create(ctx, ns); err != nil {
				t.Fatal(err)
			}
			// The policy takes a moment to be in force after it was installed.
			eventually(t, func() error {
				err := cl.Patch(ctx, ns.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(c.patch)), client.DryRunAll)
				if c.want == "" {
					return err
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					return fmt.Errorf("got %v, want a refusal with %q", err, c.want)
				}
				return nil
			})
		})
	}
}
