// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/bgp"
	"bulkhead/pkg/network"
)

// trim removes metadata that no reconciler reads from an object before it is cached.
func trim(in any) (any, error) {
	o, ok := in.(client.Object)
	if !ok {
		return in, nil // a tombstone of the informer
	}
	// The cache cannot have a transformation per kind for kinds that the API may lack.
	if s, ok := in.(*frrv1.BGPSessionState); ok {
		return bgp.TrimSession(s), nil
	}
	o.SetManagedFields(nil)
	if a := o.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
		delete(a, corev1.LastAppliedConfigAnnotation)
	}
	return in, nil
}

// podAnnotations are the annotations of pods that the cluster controller reads.
var podAnnotations = []string{network.AnnotationPodNetworks, network.AnnotationNetworks, network.AnnotationDefaultNetwork, network.AnnotationPrimaryClaim}

// trimPod keeps a pod's name, node, phase, and the annotations with the networks that
// it requests and has. For a running pod on the cluster default network only, it also
// removes the pod-networks annotation. For a pending pod, it keeps whether there are
// annotations and labels at all, which a patch of the annotation depends on. Of pods that
// do not run it keeps the addresses, which tell whether the pod has interfaces.
func trimPod(in any) (any, error) {
	p, ok := in.(*corev1.Pod)
	if !ok {
		return in, nil
	}
	small := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, DeletionTimestamp: p.DeletionTimestamp,
	}}
	pending := p.Status.Phase == corev1.PodPending
	if p.Status.Phase != corev1.PodRunning {
		small.Status.PodIPs = p.Status.PodIPs
	}
	if pending && p.Annotations != nil {
		small.Annotations = map[string]string{}
	}
	if value, ok := p.Labels[network.LabelLayer2Pod]; ok {
		small.Labels = map[string]string{network.LabelLayer2Pod: value}
	} else if pending && p.Labels != nil {
		small.Labels = map[string]string{}
	}
	for _, key := range podAnnotations {
		value, ok := p.Annotations[key]
		if !ok || !pending && key == network.AnnotationPodNetworks && network.PodNADs(value) == nil {
			continue
		}
		if small.Annotations == nil {
			small.Annotations = map[string]string{}
		}
		small.Annotations[key] = value
	}
	small.Spec.NodeName, small.Spec.HostNetwork, small.Status.Phase = p.Spec.NodeName, p.Spec.HostNetwork, p.Status.Phase
	return small, nil
}

// nodeAnnotations are the annotations of nodes that the cluster controller reads.
var nodeAnnotations = []string{network.AnnotationNodeID, network.AnnotationDefaultTransport, network.AnnotationAgentFailures, network.AnnotationZoneFailures,
	network.AnnotationChassisID, network.AnnotationSystemIDShared}

// trimNode keeps a node's name, its ids and transport, and the network failures that it reports.
func trimNode(in any) (any, error) {
	n, ok := in.(*metav1.PartialObjectMetadata)
	if !ok {
		return in, nil
	}
	meta := metav1.ObjectMeta{
		Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp,
	}
	for _, key := range nodeAnnotations {
		if value, ok := n.Annotations[key]; ok {
			if meta.Annotations == nil {
				meta.Annotations = map[string]string{}
			}
			meta.Annotations[key] = value
		}
	}
	n.ObjectMeta = meta
	return n, nil
}

// trimNamespace keeps a namespace's name and labels.
func trimNamespace(in any) (any, error) {
	n, ok := in.(*metav1.PartialObjectMetadata)
	if !ok {
		return in, nil
	}
	n.ObjectMeta = metav1.ObjectMeta{
		Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels, DeletionTimestamp: n.DeletionTimestamp,
	}
	return n, nil
}
