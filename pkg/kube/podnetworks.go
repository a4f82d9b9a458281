// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
)

type patchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// PodNetworksPatch returns the JSON patch (RFC 6902) that sets pod's pod-networks
// annotation to value. The annotation has two writers, the zone controller and the cluster
// controller, so the API server refuses the patch if the annotation has changed or the
// pod was recreated. label adds network.LabelLayer2Pod.
func PodNetworksPatch(pod *corev1.Pod, value string, label bool) ([]byte, error) {
	const root = "/metadata/annotations"
	path := root + "/" + strings.ReplaceAll(network.AnnotationPodNetworks, "/", "~1")
	ops := []patchOp{{"test", "/metadata/uid", pod.UID}}
	old, had := pod.Annotations[network.AnnotationPodNetworks]
	switch {
	case had:
		ops = append(ops, patchOp{"test", path, old}, patchOp{"replace", path, value})
	case pod.Annotations != nil:
		ops = append(ops, patchOp{"test", path, nil}, patchOp{"add", path, value})
	default:
		ops = append(ops, patchOp{"test", root, nil}, patchOp{"add", root, map[string]string{network.AnnotationPodNetworks: value}})
	}
	if _, has := pod.Labels[network.LabelLayer2Pod]; label && !has {
		const labels = "/metadata/labels"
		if pod.Labels != nil {
			ops = append(ops, patchOp{"add", labels + "/" + strings.ReplaceAll(network.LabelLayer2Pod, "/", "~1"), ""})
		} else {
			ops = append(ops, patchOp{"test", labels, nil}, patchOp{"add", labels, map[string]string{network.LabelLayer2Pod: ""}})
		}
	}
	out, err := json.Marshal(ops)
	if err != nil {
		return nil, fmt.Errorf("render patch of %s: %w", network.AnnotationPodNetworks, err)
	}
	return out, nil
}
