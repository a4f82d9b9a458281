// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
)

// RuntimeUID returns the UID of a pod in the container runtime and in the names of cgroups. It differs from that
// of the API for a static pod: the API has kubelet's mirror pod, whose annotation is a hash of the static one.
func RuntimeUID(p *corev1.Pod) string {
	return cmp.Or(p.Annotations[corev1.MirrorPodAnnotationKey], string(p.UID))
}
