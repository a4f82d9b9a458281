// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// annotationPodNADs holds, in the cache only, the keys of a pod's NADs in
// place of the whole annotation.
const annotationPodNADs = "bulkhead/nads"

// Trim takes out of an object what nobody reads, before it is cached.
func Trim(in any) (any, error) {
	o, ok := in.(client.Object)
	if !ok {
		return in, nil // the informer's own markers
	}
	o.SetManagedFields(nil)
	if a := o.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
		delete(a, corev1.LastAppliedConfigAnnotation)
	}
	return in, nil
}

// TrimPod leaves a pod's name and the keys of its NADs.
func TrimPod(in any) (any, error) {
	p, ok := in.(*metav1.PartialObjectMetadata)
	if !ok {
		return in, nil
	}
	keys := podNADs(p)
	meta := metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion}
	if len(keys) > 0 {
		meta.Annotations = map[string]string{annotationPodNADs: strings.Join(keys, ",")}
	}
	p.ObjectMeta = meta
	return p, nil
}

// TrimNode leaves a node's name and id.
func TrimNode(in any) (any, error) {
	n, ok := in.(*metav1.PartialObjectMetadata)
	if !ok {
		return in, nil
	}
	meta := metav1.ObjectMeta{
		Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp,
	}
	if id, ok := n.Annotations[network.AnnotationNodeID]; ok {
		meta.Annotations = map[string]string{network.AnnotationNodeID: id}
	}
	n.ObjectMeta = meta
	return n, nil
}

// TrimNamespace leaves a namespace's name and labels.
func TrimNamespace(in any) (any, error) {
	n, ok := in.(*metav1.PartialObjectMetadata)
	if !ok {
		return in, nil
	}
	n.ObjectMeta = metav1.ObjectMeta{
		Name: n.Name, UID: types.UID(n.UID), ResourceVersion: n.ResourceVersion, Labels: n.Labels, DeletionTimestamp: n.DeletionTimestamp,
	}
	return n, nil
}

// podNADs are the keys of the NADs that a pod uses, from a whole pod or a
// trimmed one.
func podNADs(o client.Object) []string {
	a := o.GetAnnotations()
	if short := a[annotationPodNADs]; short != "" {
		return strings.Split(short, ",")
	}
	return ParsePodNADs(a[network.AnnotationPodNetworks])
}

// ParsePodNADs are the NAD keys in a pod-networks annotation. What cannot be
// read counts for nothing: the writer of the annotation is the zone, which
// writes it again.
func ParsePodNADs(annotation string) []string {
	if annotation == "" {
		return nil
	}
	var raw map[string]json.RawMessage
	if json.Unmarshal([]byte(annotation), &raw) != nil {
		return nil
	}
	var out []string
	for k := range raw {
		parts := strings.Split(k, "/") // a second attachment is <namespace>/<name>/<index>
		if len(parts) < 2 || strings.Contains(k, ",") || parts[0] == "" || parts[1] == "" {
			continue // the cluster default network has no NAD
		}
		out = append(out, network.NADKey(parts[0], parts[1]))
	}
	slices.Sort(out)
	return slices.Compact(out)
}
