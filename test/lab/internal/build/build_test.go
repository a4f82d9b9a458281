// SPDX-License-Identifier: Apache-2.0

package build

import "testing"

func TestRequiredVersion(t *testing.T) {
	gomod := "module x\n\nrequire (\n\tk8s.io/kubernetes v1.36.3\n\tk8s.io/api v0.36.3 // indirect\n)\nrequire a.b/c v2.0.0\nreplace k8s.io/kubernetes => ../x\n"
	for module, want := range map[string]string{"k8s.io/kubernetes": "v1.36.3", "k8s.io/api": "v0.36.3", "a.b/c": "v2.0.0", "z": ""} {
		if got := requiredVersion(gomod, module); got != want {
			t.Errorf("%s: %q, want %q", module, got, want)
		}
	}
}
