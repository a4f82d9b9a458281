// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"bulkhead/pkg/network"
)

// Paths of the benchmark's objects.
const (
	nodesPath      = "/api/v1/nodes"
	namespacesPath = "/api/v1/namespaces"
	cudnsPath      = "/apis/k8s.ovn.org/v1/clusteruserdefinednetworks"
	allNADsPath    = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions"
)

func nadsPath(namespace string) string {
	return "/apis/k8s.cni.cncf.io/v1/namespaces/" + namespace + "/network-attachment-definitions"
}

// Labels by which networks select their namespaces: one per network, or the same
// ones for all networks of a phase.
const (
	ownLabel    = "bench.bulkhead/own"
	sharedLabel = "bench.bulkhead/shared"
)

func nodeBody(name string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Node","metadata":{"name":%q}}`, name)
}

func namespaceBody(name, label string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{%q:%q,%q:""}}}`,
		name, label, name, network.LabelPrimaryUDN)
}

// ownNetwork is a Layer3 network that selects the namespace of the same name.
func ownNetwork(name string) []byte {
	return cudnBody(name, fmt.Sprintf(`"matchLabels":{%q:%q}`, ownLabel, name), "Primary")
}

// sharedNetwork is a secondary network that selects all shared namespaces.
func sharedNetwork(name string) []byte {
	return cudnBody(name, fmt.Sprintf(`"matchExpressions":[{"key":%q,"operator":"Exists"}]`, sharedLabel), "Secondary")
}

func cudnBody(name, selector, role string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"k8s.ovn.org/v1","kind":"ClusterUserDefinedNetwork","metadata":{"name":%q},`+
		`"spec":{"namespaceSelector":{%s},"network":{"topology":"Layer3","layer3":{"role":%q,"subnets":[{"cidr":"10.120.0.0/16","hostSubnet":24}]}}}}`,
		name, selector, role)
}

// The following bodies have the fields and sizes of what the controller writes
// for one network, for a client that only writes.

func finalizerBody() []byte {
	return fmt.Appendf(nil, `{"metadata":{"finalizers":[%q]}}`, network.FinalizerUDN)
}

func nadBody(name string, id int) []byte {
	config := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"cluster_udn_%s","type":"ovn-k8s-cni-overlay","netAttachDefName":"%s/%s","role":"primary",`+
		`"topology":"layer3","subnets":"10.120.0.0/16/24","joinSubnet":"100.65.0.0/16,fd99::/64"}`, name, name, name)
	return fmt.Appendf(nil, `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"name":%q,"namespace":%q,`+
		`"labels":{%q:""},"annotations":{%q:"%d",%q:"cluster_udn_%s"},"finalizers":[%q],"ownerReferences":[{"apiVersion":"k8s.ovn.org/v1",`+
		`"kind":"ClusterUserDefinedNetwork","name":%q,"uid":"00000000-0000-0000-0000-000000000000","controller":true,"blockOwnerDeletion":true}]},"spec":{"config":%q}}`,
		name, name, network.LabelUDN, network.AnnotationNetworkID, id, network.AnnotationNetworkName, name, network.FinalizerUDN, name, config)
}

// statusBody is the status of a ready network; second makes repeated writes of
// it differ.
func statusBody(name string, second int) []byte {
	condition := func(kind, reason, message string) string {
		return fmt.Sprintf(`{"type":%q,"status":"True","reason":%q,"message":%q,"observedGeneration":1,"lastTransitionTime":"2030-01-01T00:00:%02dZ"}`,
			kind, reason, message, second)
	}
	return fmt.Appendf(nil, `{"apiVersion":"k8s.ovn.org/v1","kind":"ClusterUserDefinedNetwork","metadata":{"name":%q},"status":{"conditions":[%s,%s,%s]}}`, name,
		condition("NetworkCreated", "NetworkAttachmentDefinitionCreated", "NetworkAttachmentDefinition has been created in following namespaces: ["+name+"]"),
		condition("NetworkAllocationSucceeded", "NetworkAllocationSucceeded", "Network allocation succeeded for all synced nodes."),
		condition("TransportAccepted", "GeneveTransportAccepted", "Geneve transport has been configured."))
}
