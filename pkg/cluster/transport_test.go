// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

func TestInstalledTransport(t *testing.T) {
	for _, tt := range []struct {
		name  string
		nodes []string // annotations, the oldest node's first
		want  string
	}{
		{"no node", nil, ""},
		{"nodes without ids", []string{"", ""}, ""},
		{"one has an id", []string{"", "geneve"}, "geneve"},
		{"one was edited", []string{"geneve", "no-overlay", "no-overlay"}, "no-overlay"},
		{"equally many", []string{"", "no-overlay", "geneve"}, "no-overlay"},
	} {
		var nodes []metav1.PartialObjectMetadata
		for i, value := range tt.nodes {
			n := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Unix(int64(i), 0))}}
			if value != "" {
				n.Annotations = map[string]string{network.AnnotationDefaultTransport: value}
			}
			nodes = append(nodes, n)
		}
		for range 2 {
			if got := installedTransport(nodes); got != tt.want {
				t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
			}
			slices.Reverse(nodes)
		}
	}
}
