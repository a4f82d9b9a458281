// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A constraint is one thing that a CRD's schema refuses, and how the API
// server says so.
type constraint struct {
	kind string // of the object
	path string // "spec.layer3.subnets[].cidr"
	text string // in the refusal
	cel  bool
}

func (c constraint) String() string { return fmt.Sprintf("%s %s: %s", c.kind, c.path, c.text) }

// A refusal is what the API server had against one case.
type refusal struct {
	kind   string
	causes []metav1.StatusCause
}

// refusedWithOthers are CEL rules that never are the only one to refuse: they
// are there to say what to do.
var refusedWithOthers = []string{
	// No subnets means IPAM off, which is for Secondary networks, and these fields are for Primary ones.
	"reservedSubnets must be unset when subnets is unset",
	"infrastructureSubnets must be unset when subnets is unset",
}

// unproven are the constraints that no refusal shows to be alive: a CEL rule
// must have refused something that nothing else would have.
func unproven(constraints []constraint, refusals []refusal) []string {
	var out []string
	for _, c := range constraints {
		shown, alone := false, false
		for _, r := range refusals {
			if r.kind != c.kind {
				continue
			}
			hit := slices.ContainsFunc(r.causes, func(x metav1.StatusCause) bool {
				return index.ReplaceAllString(x.Field, "[]") == c.path && strings.Contains(x.Message, c.text)
			})
			shown, alone = shown || hit, alone || hit && len(r.causes) == 1
		}
		together := slices.ContainsFunc(refusedWithOthers, func(s string) bool { return strings.HasPrefix(c.text, s) })
		switch {
		case !shown:
			out = append(out, fmt.Sprintf("%s: no case is refused by it", c))
		case c.cel && !alone && !together:
			out = append(out, fmt.Sprintf("%s: no case is refused by it alone", c))
		case alone && together:
			out = append(out, fmt.Sprintf("%s: is in refusedWithOthers, and refuses alone", c))
		}
	}
	return out
}

var index = regexp.MustCompile(`\[[^\]]*\]`)

// constraintsOf lists what the spec of a CRD's schema refuses.
func constraintsOf(crd *unstructured.Unstructured) ([]constraint, error) {
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil || len(versions) != 1 {
		return nil, fmt.Errorf("CRD %s has %d versions, want 1: %w", crd.GetName(), len(versions), err)
	}
	root, _, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec")
	if err != nil {
		return nil, fmt.Errorf("read the schema of CRD %s: %w", crd.GetName(), err)
	}
	var out []constraint
	walkSchema("spec", root, func(path, text string, cel bool) {
		out = append(out, constraint{kind, path, text, cel})
	})
	for i, c := range out {
		if slices.Contains(out[:i], c) {
			return nil, fmt.Errorf("two rules say the same: %s", c)
		}
	}
	return out, nil
}

func walkSchema(path string, s map[string]any, visit func(path, text string, cel bool)) {
	for _, k := range []struct{ keyword, text string }{
		{"enum", "Unsupported value"}, {"minimum", "should be greater than or equal to %v"}, {"maximum", "should be less than or equal to %v"},
		{"minItems", "should have at least %v items"}, {"maxItems", "must have at most %v items"},
		{"minLength", "should be at least %v chars"}, {"maxLength", "Too long"}, {"minProperties", "should have at least %v properties"},
	} {
		if v, ok := s[k.keyword]; ok {
			text := k.text
			if strings.Contains(text, "%v") {
				text = fmt.Sprintf(text, v)
			}
			visit(path, text, false)
		}
	}
	if t := s["x-kubernetes-list-type"]; t == "set" || t == "map" {
		visit(path+"[]", "Duplicate value", false)
	}
	rules, _ := s["x-kubernetes-validations"].([]any)
	for _, r := range rules {
		visit(path, r.(map[string]any)["message"].(string), true)
	}
	required, _ := s["required"].([]any)
	for _, name := range required {
		visit(path+"."+name.(string), "Required value", false)
	}
	properties, _ := s["properties"].(map[string]any)
	for name, p := range properties {
		if name == "matchExpressions" || name == "matchLabels" {
			continue // a label selector is Kubernetes' own
		}
		walkSchema(path+"."+name, p.(map[string]any), visit)
	}
	if items, ok := s["items"].(map[string]any); ok {
		walkSchema(path+"[]", items, visit)
	}
}
