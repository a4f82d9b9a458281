// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// trimSlice keeps the fields that the endpoint mirror reads, removes the others, and
// is idempotent.
func TestTrimSlice(t *testing.T) {
	yes, no, node, zone, host := true, false, "node-1", "zone-1", "web-0"
	endpoints := func(ref corev1.ObjectReference) []discoveryv1.Endpoint {
		return []discoveryv1.Endpoint{{
			Addresses: []string{"10.244.1.5"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Terminating: &no},
			NodeName: &node, Zone: &zone, Hostname: &host, TargetRef: &ref, Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		}, {Addresses: []string{"203.0.113.9"}, NodeName: &node}}
	}
	port := int32(80)
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "red", Name: "web-1", UID: "u", ResourceVersion: "7",
			Labels:          map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "x", network.LabelMirrorService: "y"},
			Annotations:     map[string]string{network.AnnotationSource: "s", network.AnnotationMirrorOn: "n"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "web", UID: "o", Controller: &yes}},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints: endpoints(corev1.ObjectReference{Kind: "Pod", Namespace: "red", Name: "p", UID: "pod"}),
	}
	in := want.DeepCopy()
	in.Labels["other"], in.Annotations["other"] = "a", "b"
	in.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	in.OwnerReferences[0].BlockOwnerDeletion = &yes
	in.OwnerReferences = append(in.OwnerReferences, metav1.OwnerReference{Kind: "ConfigMap", Name: "c"})
	in.Endpoints = endpoints(corev1.ObjectReference{Kind: "Pod", Namespace: "red", Name: "p", UID: "pod", APIVersion: "v1", ResourceVersion: "9", FieldPath: "x"})
	var got any = in
	for range 2 {
		var err error
		if got, err = trimSlice(got); err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	}
}
