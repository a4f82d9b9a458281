// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	nadinformers "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Informers are the agent's informers: all NADs, the metadata of namespaces,
// this Node and its pods, all services, and, where there are Localnet networks, the
// metadata of all Nodes.
type Informers struct {
	nads, namespaces, node, pods, services, peers cache.SharedIndexInformer
}

// NewInformers makes informers for the node of that name. Agent.Watch runs them.
func NewInformers(clients *kube.Clients, node string) (*Informers, error) {
	meta, err := metadata.NewForConfig(metadata.ConfigFor(clients.REST))
	if err != nil {
		return nil, fmt.Errorf("make metadata client: %w", err)
	}
	selected := func(field, value string) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(clients.Kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			kube.Consistent(o)
			o.FieldSelector = fields.OneTermEqualSelector(field, value).String()
		}))
	}
	metadataOf := func(resource string) cache.SharedIndexInformer {
		return metadatainformer.NewFilteredSharedInformerFactory(meta, 0, metav1.NamespaceAll, kube.Consistent).ForResource(corev1.SchemeGroupVersion.WithResource(resource)).Informer()
	}
	return &Informers{
		nads:       nadinformers.NewSharedInformerFactoryWithOptions(clients.NAD, 0, nadinformers.WithTweakListOptions(kube.Consistent)).K8sCniCncfIo().V1().NetworkAttachmentDefinitions().Informer(),
		namespaces: metadataOf("namespaces"),
		peers:      metadataOf("nodes"),
		node:       selected("metadata.name", node).Core().V1().Nodes().Informer(),
		pods:       selected("spec.nodeName", node).Core().V1().Pods().Informer(),
		services:   kube.NewServiceInformer(clients.Kube),
	}, nil
}

// Pods is the informer of this node's pods, trimmed to what the agent reads.
func (i *Informers) Pods() cache.SharedIndexInformer { return i.pods }

// trimObject drops what the agent does not read: the informers hold an object
// per network and namespace of the cluster.
func trimObject(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	if n, ok := obj.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Annotations: n.Annotations}}, nil
	}
	return obj, nil
}

// trimPod keeps what parsePod reads.
func trimPod(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := map[string]string{}
	for _, k := range []string{network.AnnotationPodNetworks, network.AnnotationNetworks, network.AnnotationOpenDefaultPorts, hostnet.OptOutAnnotation, corev1.MirrorPodAnnotationKey} {
		if v, ok := p.Annotations[k]; ok {
			kept[k] = v
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion, CreationTimestamp: p.CreationTimestamp, Annotations: kept},
		Spec:       trimSpec(p.Spec),
		Status:     corev1.PodStatus{Phase: p.Status.Phase, PodIPs: p.Status.PodIPs},
	}, nil
}
