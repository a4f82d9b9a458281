// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/healthcheck"
)

// TestZoneNodeHealth: load balancers get 200 from a node whose networks are built, and 503 before, and while the cluster
// autoscaler removes the node. Other taints do not matter.
func TestZoneNodeHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		check := func(what string, want int) {
			t.Helper()
			answer := httptest.NewRecorder()
			healthcheck.NodeHandler(env.zone.ServesServices).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			if answer.Code != want {
				t.Errorf("%s: %d %s, want %d", what, answer.Code, answer.Body, want)
			}
		}
		taint := func(keys ...string) {
			t.Helper()
			api := env.kube.CoreV1().Nodes()
			n, err := api.Get(t.Context(), "node1", metav1.GetOptions{})
			env.must(err)
			n.Spec.Taints = nil
			for _, k := range keys {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: k, Effect: corev1.TaintEffectNoSchedule})
			}
			_, err = api.Update(t.Context(), n, metav1.UpdateOptions{})
			env.must(err)
			env.settle()
		}
		env.run()
		env.waitUntil("ready", env.zone.Ready)
		check("ready", http.StatusOK)
		taint("node.kubernetes.io/unschedulable")
		check("cordoned", http.StatusOK)
		taint("node.kubernetes.io/unschedulable", "ToBeDeletedByClusterAutoscaler")
		check("removed", http.StatusServiceUnavailable)
		taint()
		check("kept", http.StatusOK)
		env.zone.ready.Store(false)
		check("not ready", http.StatusServiceUnavailable)
	})
}
