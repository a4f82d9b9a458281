// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// trimPod keeps what reconcilers read, removes the rest, and is idempotent.
func TestTrimPod(t *testing.T) {
	tenant := `{"default":{},"red/net":{}}`
	for name, tt := range map[string]struct{ in, want map[string]string }{
		"default network only": {map[string]string{network.AnnotationPodNetworks: `{"default":{}}`, "other": "x"}, nil},
		"tenant": {
			map[string]string{network.AnnotationPodNetworks: tenant, "other": "x"},
			map[string]string{network.AnnotationPodNetworks: tenant},
		},
		"requests": {
			map[string]string{network.AnnotationNetworks: "a", network.AnnotationDefaultNetwork: "b"},
			map[string]string{network.AnnotationNetworks: "a", network.AnnotationDefaultNetwork: "b"},
		},
	} {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "p", UID: "u", ResourceVersion: "7", Labels: map[string]string{"a": "b"}, Annotations: tt.in},
			Spec:       corev1.PodSpec{NodeName: "n", HostNetwork: true, Containers: []corev1.Container{{Name: "c"}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
		}
		var in any = p
		for range 2 {
			out, err := trimPod(in)
			if err != nil {
				t.Fatal(err)
			}
			in = out
		}
		got := in.(*corev1.Pod)
		if !maps.Equal(got.Annotations, tt.want) {
			t.Errorf("%s: annotations %v, want %v", name, got.Annotations, tt.want)
		}
		if got.Namespace != "red" || got.Name != "p" || got.UID != "u" || got.ResourceVersion != "7" || got.Spec.NodeName != "n" ||
			!got.Spec.HostNetwork || got.Status.Phase != corev1.PodRunning {
			t.Errorf("%s: a field that reconcilers read was removed: %+v", name, got)
		}
		if got.Labels != nil || got.Spec.Containers != nil || got.Status.PodIP != "" || got.Status.PodIPs != nil {
			t.Errorf("%s: a field that no reconciler reads was kept: %+v", name, got)
		}
	}
}

// A trimmed pending pod has non-nil annotations and labels if the pod has any, and
// keeps the pod-networks annotation: a patch depends on them. It keeps its addresses.
func TestTrimPendingPod(t *testing.T) {
	for name, in := range map[string]map[string]string{
		"none": nil, "others": {"other": "x"}, "the zone's": {network.AnnotationPodNetworks: `{"default":{}}`},
	} {
		out, err := trimPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: in},
			Status: corev1.PodStatus{Phase: corev1.PodPending, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}})
		if err != nil {
			t.Fatal(err)
		}
		if ips := out.(*corev1.Pod).Status.PodIPs; len(ips) != 1 {
			t.Errorf("%s: addresses %v", name, ips)
		}
		labelled, err := trimPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: in}, Status: corev1.PodStatus{Phase: corev1.PodPending}})
		if err != nil {
			t.Fatal(err)
		}
		if labels := labelled.(*corev1.Pod).Labels; (labels == nil) != (in == nil) || len(labels) > 0 {
			t.Errorf("%s: labels %v", name, labels)
		}
		got := out.(*corev1.Pod).Annotations
		if (got == nil) != (in == nil) || got[network.AnnotationPodNetworks] != in[network.AnnotationPodNetworks] {
			t.Errorf("%s: %v", name, got)
		}
	}
}
