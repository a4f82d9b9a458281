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

// A constraint is one rule of a CRD's schema and the text of its refusal.
type constraint struct {
	kind string // of the object
	path string // "spec.layer3.subnets[].cidr"
	text string // in the refusal
	cel  bool
}

func (c constraint) String() string { return fmt.Sprintf("%s %s: %s", c.kind, c.path, c.text) }

// A refusal is the API server's response to one refused case.
type refusal struct {
	kind   string
	causes []metav1.StatusCause
}

// refusedWithOthers are CEL rules that never refuse alone: they exist for their
// messages.
var refusedWithOthers = []string{
	// Without subnets IPAM is disabled, which requires role Secondary; these fields require role Primary.
	"reservedSubnets must be unset when subnets is unset",
	"infrastructureSubnets must be unset when subnets is unset",
}

// untested returns the constraints that no refusal proves effective. A CEL rule must
// have refused a case that no other rule refuses.
func untested(constraints []constraint, refusals []refusal) []string {
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
			out = append(out, fmt.Sprintf("%s: refuses no case", c))
		case c.cel && !alone && !together:
			out = append(out, fmt.Sprintf("%s: refuses no case alone", c))
		case alone && together:
			out = append(out, fmt.Sprintf("%s: refuses a case alone: remove it from refusedWithOthers", c))
		}
	}
	return out
}

var index = regexp.MustCompile(`\[[^\]]*\]`)

// constraintsOf lists the rules of a CRD's schema for spec.
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
			return nil, fmt.Errorf("two rules have the same message: %s", c)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the schema of CRD %s has no rules for spec", crd.GetName())
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
			continue // a label selector: Kubernetes' own type
		}
		walkSchema(path+"."+name, p.(map[string]any), visit)
	}
	if items, ok := s["items"].(map[string]any); ok {
		walkSchema(path+"[]", items, visit)
	}
}
