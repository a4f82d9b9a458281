// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Kinds of a case's spec.
const (
	kindUDN     = "UserDefinedNetwork"
	kindCUDN    = "ClusterUserDefinedNetwork"
	kindNetwork = "ClusterUserDefinedNetwork's network"
	kindRA      = "RouteAdvertisements"
)

// schemaCase is one spec, or one update of a spec, and the API server's verdict: it
// accepts the spec if want is empty, else its message contains want.
type schemaCase struct {
	name   string
	kind   string
	spec   string
	update string // if set, spec is created and then updated to this; want is about the update
	want   string
}

func allCases() []schemaCase {
	var out []schemaCase
	for _, l := range []struct {
		prefix string
		cases  []schemaCase
	}{{"layer3", layer3Cases()}, {"layer2", layer2Cases()}, {"localnet", localnetCases()}, {"transport", transportCases()},
		{"udn", udnOnlyCases()}, {"cudn", cudnCases()}, {"ra", routeAdvertisementsCases()}} {
		for _, c := range l.cases {
			if c.name = l.prefix + " " + c.name; c.kind == kindNetwork {
				c.name = "cluster " + c.name
			}
			out = append(out, c)
		}
	}
	return out
}

func (c schemaCase) object(name, spec string) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	text := "spec:\n" + indent(spec, "  ")
	kind := c.kind
	if kind == kindNetwork {
		kind = kindCUDN
		text = "spec:\n  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: red}}\n  network:\n" + indent(spec, "    ")
	}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		return nil, fmt.Errorf("case %s: %w", c.name, err)
	}
	o.SetAPIVersion("k8s.ovn.org/v1")
	o.SetKind(kind)
	o.SetName(name)
	if kind == kindUDN {
		o.SetNamespace("default")
	}
	return o, nil
}

func indent(s, by string) string { return by + strings.ReplaceAll(s, "\n", "\n"+by) + "\n" }

// Runs every case, and then checks that each rule of the CRDs has refused a case: a
// rule that refuses none may have no effect.
func TestSchema(t *testing.T) {
	needAPI(t)
	cl, err := client.New(env.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var refusals []refusal
	cases, ran := allCases(), 0
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ran++
			err := c.try(t, cl, fmt.Sprintf("net-%d", i))
			checkVerdict(t, err, c.want)
			if s := (&apierrors.StatusError{}); errors.As(err, &s) && s.ErrStatus.Details != nil {
				kind := c.kind
				if kind == kindNetwork {
					kind = kindCUDN
				}
				refusals = append(refusals, refusal{kind, s.ErrStatus.Details.Causes})
			}
		})
	}
	if ran < len(cases) {
		t.Logf("%d of %d cases selected by -run: the rules are not checked", ran, len(cases))
		return
	}
	crds, err := readObjects(filepath.Join(Root(), "deploy", "crds"))
	if err != nil {
		t.Fatal(err)
	}
	rules := 0
	for _, crd := range crds {
		if group, _, _ := unstructured.NestedString(crd.Object, "spec", "group"); group != "k8s.ovn.org" {
			continue
		}
		constraints, err := constraintsOf(crd)
		if err != nil {
			t.Fatal(err)
		}
		rules += len(constraints)
		for _, u := range untested(constraints, refusals) {
			t.Error(u)
		}
	}
	if rules == 0 {
		t.Error("deploy/crds has no CRD of group k8s.ovn.org")
	}
	t.Logf("%d cases, of which %d are refused, by %d rules", len(cases), len(refusals), rules)
}

// try returns the API server's error for the case.
func (c schemaCase) try(t *testing.T, cl client.Client, name string) error {
	t.Helper()
	ctx := context.Background()
	o, err := c.object(name, c.spec)
	if err != nil {
		t.Fatal(err)
	}
	if c.update == "" {
		return cl.Create(ctx, o, client.DryRunAll)
	}
	if err := cl.Create(ctx, o); err != nil {
		t.Fatalf("create: %v", err)
	}
	defer func() { _ = cl.Delete(ctx, o) }()
	next, err := c.object(name, c.update)
	if err != nil {
		t.Fatal(err)
	}
	next.SetResourceVersion(o.GetResourceVersion())
	return cl.Update(ctx, next, client.DryRunAll)
}

func checkVerdict(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && err == nil:
		t.Errorf("accepted, want a refusal with %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("refused with an unexpected message:\n got %v\nwant %q", err, want)
	}
}
