// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestNodeStatusFields: the policy for nodes' tokens compares each field of a Node's status but its conditions, of which
// it compares those that are not ours. A new version of the API may add fields.
func TestNodeStatusFields(t *testing.T) {
	policy, err := os.ReadFile("../../../deploy/admission/nodes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	status := reflect.TypeFor[corev1.NodeStatus]()
	for i := range status.NumField() {
		name, _, _ := strings.Cut(status.Field(i).Tag.Get("json"), ",")
		if comparison := fmt.Sprintf("object.status.?%[1]s == oldObject.status.?%[1]s", name); name != "conditions" && !strings.Contains(string(policy), comparison) {
			t.Errorf("deploy/admission/nodes.yaml does not have %s", comparison)
		}
	}
}
