// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// annotate writes a pod's networks in one patch. The annotation has a second
// writer (the cluster controller, for other topologies), so the patch tests the old
// value and fails if it has changed. It also tests the pod's UID, as the pod may
// have been recreated.
func (z *Zone) annotate(ctx context.Context, pod *corev1.Pod, nets network.PodNetworks) error {
	value, err := nets.Render()
	if err != nil {
		return err
	}
	old, had := pod.Annotations[network.AnnotationPodNetworks]
	if had {
		if parsed, err := network.ParsePodNetworks(old); err == nil {
			if same, err := parsed.Render(); err == nil && same == value {
				return nil
			}
		}
	}
	patch, err := kube.PodNetworksPatch(pod, value, false)
	if err != nil {
		return err
	}
	if _, err := z.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	z.log.Info("annotated pod with its networks", "pod", pod.Namespace+"/"+pod.Name, "networks", len(nets))
	return nil
}

// reference returns the object reference of a pod for events: a pod from an
// informer has no kind.
func reference(pod *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}
}
