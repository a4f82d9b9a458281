// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	nadinformers "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
	"bulkhead/pkg/process"
)

var eventScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	_ = corev1.AddToScheme(s) // registers Go types, cannot fail
	return s
}()

func eventSink(k kubernetes.Interface) record.EventSink {
	return &typedcore.EventSinkImpl{Interface: k.CoreV1().Events("")}
}

// startInformers starts one informer per kind and returns when the handlers
// have handled the first lists.
func (z *Zone) startInformers(ctx context.Context) error {
	const nodeName = "spec.nodeName"
	selected := func(nodes fields.Selector, labels string) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(z.kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			kube.Consistent(o)
			o.FieldSelector, o.LabelSelector = nodes.String(), labels
		}))
	}
	all := informers.NewSharedInformerFactoryWithOptions(z.kube, 0, informers.WithTweakListOptions(kube.Consistent))
	mine := selected(fields.OneTermEqualSelector(nodeName, z.cfg.Kubernetes.NodeName), "")
	others := selected(fields.OneTermNotEqualSelector(nodeName, z.cfg.Kubernetes.NodeName), network.LabelLayer2Pod)
	nads := nadinformers.NewSharedInformerFactoryWithOptions(z.nads, 0, nadinformers.WithTweakListOptions(kube.Consistent))
	pods, nodes, namespaces := mine.Core().V1().Pods(), all.Core().V1().Nodes(), all.Core().V1().Namespaces()
	nad := nads.K8sCniCncfIo().V1().NetworkAttachmentDefinitions()
	if err := pods.Informer().AddIndexers(cache.Indexers{indexSelected: selectedNADs, indexMAC: podMACs}); err != nil {
		return fmt.Errorf("index pods: %w", err)
	}
	remotePods := others.Core().V1().Pods().Informer()
	if err := remotePods.AddIndexers(remotePodIndexers); err != nil {
		return fmt.Errorf("index other nodes' pods: %w", err)
	}
	z.remotePods = remotePods.GetIndexer()
	services, endpoints := kube.NewServiceInformer(z.kube), all.Discovery().V1().EndpointSlices().Informer()
	if err := endpoints.AddIndexers(sliceIndexers); err != nil {
		return fmt.Errorf("index EndpointSlices: %w", err)
	}
	z.slices = endpoints.GetIndexer()
	z.podStore, z.nsLister = pods.Informer().GetIndexer(), namespaces.Lister()

	return process.RunInformers(ctx,
		process.Informer{SharedIndexInformer: namespaces.Informer(), Transform: trimNamespace, OnChange: z.namespaceChanged, OnDelete: z.namespaceDeleted},
		process.Informer{SharedIndexInformer: nodes.Informer(), Transform: z.trimNode, OnChange: z.nodeChanged, OnDelete: z.nodeDeleted},
		process.Informer{SharedIndexInformer: nad.Informer(), Transform: trimNAD, OnChange: z.nadChanged, OnDelete: z.nadDeleted},
		process.Informer{SharedIndexInformer: pods.Informer(), Transform: trimPod, OnChange: z.podChanged, OnDelete: func(obj any) { z.podChanged(nil, obj) }},
		process.Informer{SharedIndexInformer: services, Transform: trimService, OnChange: z.serviceChanged, OnDelete: z.serviceDeleted},
		process.Informer{SharedIndexInformer: endpoints, Transform: trimSlice, OnChange: z.sliceChanged, OnDelete: func(obj any) { z.sliceChanged(nil, obj) }},
		process.Informer{SharedIndexInformer: remotePods, Transform: trimRemotePod, OnChange: z.remotePodChanged, OnDelete: func(obj any) { z.remotePodChanged(nil, obj) }},
	)
}

// onSynced is called once, when the handlers have seen the informers' first
// lists.
func (z *Zone) onSynced() {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, obj := range z.podStore.List() {
		if pod, ok := obj.(*corev1.Pod); ok {
			z.initial[string(pod.UID)] = struct{}{}
		}
	}
	z.synced = true
	for _, nad := range z.nadIndex.MarkSynced() {
		z.logUnusable(nad)
		z.failures.recordNAD(nad.Key(), true)
	}
	for _, name := range z.nadIndex.Networks() {
		z.updateAdvertised(name)
	}
	z.nodes.podIDs = z.podIDs()
	z.nodesChanged(z.nodes.markSynced())
}

// enqueueAll enqueues all networks and pods if this node is ready. The first
// call restores the addresses of existing pods before any is allocated.
func (z *Zone) enqueueAll() {
	if !z.synced || !z.self().Ready() {
		return
	}
	if !z.restored {
		z.restored = true
		z.pending[network.DefaultName] = struct{}{}
		z.pending[keyCleanup] = struct{}{} // finds leftover networks
		for _, name := range z.nadIndex.Networks() {
			z.pending[name] = struct{}{}
		}
		z.restore(z.podStore.List())
	}
	z.enqueueNetworks()
	for _, key := range z.podStore.ListKeys() {
		z.podQueue.Add(key)
	}
	z.queue.Add(keyChassis)
	z.queue.Add(keyCleanup)
}

func (z *Zone) namespaceChanged(old, obj any) {
	ns, ok := obj.(*corev1.Namespace)
	if !ok {
		return
	}
	if o, ok := old.(*corev1.Namespace); ok && reflect.DeepEqual(o.Labels, ns.Labels) {
		return
	}
	z.enqueuePods(ns.Name)
	z.mu.Lock()
	defer z.mu.Unlock()
	_, z.namespaces[ns.Name] = ns.Labels[network.LabelPrimaryUDN]
	z.enqueueServices(ns.Name)
}

func (z *Zone) namespaceDeleted(obj any) {
	if ns, ok := obj.(*corev1.Namespace); ok {
		z.mu.Lock()
		defer z.mu.Unlock()
		delete(z.namespaces, ns.Name)
		z.enqueueServices(ns.Name)
	}
}

// enqueuePods enqueues the namespace's pods on this node.
func (z *Zone) enqueuePods(namespace string) {
	keys, err := z.podStore.IndexKeys(cache.NamespaceIndex, namespace)
	if err != nil {
		z.log.Error("cannot list the pods of a namespace", "namespace", namespace, "error", err)
		return
	}
	for _, key := range keys {
		z.podQueue.Add(key)
	}
}

// indexSelected indexes pods by the NADs that they request.
const indexSelected = "selected"

func selectedNADs(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	selections, err := kube.ParseSelections(pod.Namespace, pod.Annotations[network.AnnotationNetworks])
	if err != nil {
		return nil, nil //nolint:nilerr // the pod's event reports it
	}
	var out []string
	for _, s := range selections {
		out = append(out, network.NADKey(s.Namespace, s.Name))
	}
	return out, nil
}

// enqueueSelecting enqueues the pods that request a NAD.
func (z *Zone) enqueueSelecting(nadKey string) {
	keys, err := z.podStore.IndexKeys(indexSelected, nadKey)
	if err != nil {
		z.log.Error("cannot list the pods that request a NetworkAttachmentDefinition", "nad", nadKey, "error", err)
		return
	}
	for _, key := range keys {
		z.podQueue.Add(key)
	}
}

func (z *Zone) nadChanged(old, obj any) {
	o, ok := obj.(*nadv1.NetworkAttachmentDefinition)
	if !ok {
		return
	}
	if was, ok := old.(*nadv1.NetworkAttachmentDefinition); ok && was.Spec == o.Spec && reflect.DeepEqual(was.Annotations, o.Annotations) && reflect.DeepEqual(was.OwnerReferences, o.OwnerReferences) &&
		was.DeletionTimestamp.Equal(o.DeletionTimestamp) && kube.Released(was) == kube.Released(o) {
		return
	}
	if kube.Released(o) {
		z.nadDeleted(obj)
		return
	}
	nad, ours := kube.ParseNAD(o, z.cfg.Plan)
	if !ours {
		z.nadDeleted(obj)
		return
	}
	if nad.Err == nil && network.IsUDNName(nad.Network.Name) {
		if nad.Network.OwnerUID = ownerUID(o); nad.Network.OwnerUID == "" {
			nad.Err = errors.New("it has no owner reference: the cluster controller restores it")
		}
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if was, ok := z.nadIndex.NAD(nad.Key()); ok && nad.Network.Name == "" {
		nad.Network = network.Network{Name: was.Network.Name, ID: was.Network.ID} // an unreadable NAD counts for the network that it named before
	}
	z.applyNADChange(nad.Key(), nad.Network.Name, func() []string { return z.nadIndex.Set(nad) })
	indexed, _ := z.nadIndex.NAD(nad.Key())
	unusable := indexed.Err != nil && (z.synced || nad.Err != nil)
	if unusable {
		z.logUnusable(indexed)
	}
	z.failures.recordNAD(nad.Key(), unusable)
	z.enqueuePods(nad.Namespace)
	z.enqueueSelecting(nad.Key())
}

// ownerUID returns the UID of the UserDefinedNetwork or ClusterUserDefinedNetwork
// that the NAD was rendered from, "" for none.
func ownerUID(o *nadv1.NetworkAttachmentDefinition) string {
	if ref := metav1.GetControllerOf(o); ref != nil && strings.HasPrefix(ref.APIVersion, udnv1.GroupVersion.Group+"/") {
		return string(ref.UID)
	}
	return ""
}

func (z *Zone) logUnusable(nad network.NAD) {
	z.log.Warn("NetworkAttachmentDefinition cannot be used", "nad", nad.Key(), "network", nad.Network.Name, "error", nad.Err)
}

func (z *Zone) nadDeleted(obj any) {
	o, ok := obj.(*nadv1.NetworkAttachmentDefinition)
	if !ok {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	key := network.NADKey(o.Namespace, o.Name)
	z.applyNADChange(key, "", func() []string { return z.nadIndex.Delete(key) })
	z.failures.recordNAD(key, false)
	z.enqueuePods(o.Namespace) // pods of a namespace with two primary networks wait until it has one
	z.enqueueSelecting(key)    // pods that requested it while it was refused got nothing
}

// description is what decides how a network is built as a whole. One more or less of the NADs that agree on it changes
// nothing.
type description struct {
	text       string // the definition in effect
	known, any bool   // whether a usable NAD has it, and whether the network has NADs
}

func (z *Zone) description(name string) description {
	_, known := z.desiredNetwork(name)
	return description{z.nadIndex.Fingerprint(name), known, z.nadIndex.HasNADs(name)}
}

// applyNADChange changes the NAD index, where the NAD then names that network. It enqueues the networks whose description
// changes, and of the others what the NAD's namespace has there. It
// restores the addresses of the namespace's initial pods, which the NAD may have
// blocked, before they are allocated to other pods.
func (z *Zone) applyNADChange(key, named string, change func() []string) {
	was, _ := z.nadIndex.NAD(key)
	before := map[string]description{}
	for _, name := range []string{was.Network.Name, named} {
		before[name] = z.description(name)
	}
	z.enqueueUsers(key)
	names := change()
	for _, name := range names {
		z.updateAdvertised(name)
	}
	if !z.synced {
		return
	}
	z.enqueueUsers(key)
	nad, exists := z.nadIndex.NAD(key)
	for _, namespace := range slices.Compact([]string{was.Namespace, nad.Namespace}) {
		z.enqueueServices(namespace)
	}
	for _, name := range names {
		now := z.description(name)
		if now != before[name] {
			z.queue.AddUnits(name)
		}
		if now.text != before[name].text {
			// Refused NADs of the network may have become usable.
			for _, nad := range z.nadIndex.Usable(name) {
				z.enqueuePods(nad.Namespace)
				z.enqueueSelecting(nad.Key())
			}
			z.failures.nadsChanged()
		}
	}
	if !exists || !z.restored {
		return
	}
	if objs, err := z.podStore.ByIndex(cache.NamespaceIndex, nad.Namespace); err == nil {
		z.restore(objs)
	}
}

// enqueueUsers enqueues the units of the pods that have an interface by a NAD, and of those that share its addresses.
func (z *Zone) enqueueUsers(key string) {
	nad, _ := z.nadIndex.NAD(key)
	st, ok := z.nets[nad.Network.Name]
	if !z.synced || !ok {
		return // the network is built as a whole
	}
	for _, p := range st.pods {
		if network.NADOf(p.NADKey) != key {
			continue
		}
		z.queue.AddUnits(nad.Network.Name, podUnit(p.Key()))
		obj, _, err := z.podStore.GetByKey(p.Key())
		if pod, ok := obj.(*corev1.Pod); err == nil && ok {
			z.enqueueSharing(pod)
		}
	}
	for _, pod := range indexed[*corev1.Pod](z, z.remotePods, indexNADs, key) {
		z.queue.AddUnits(nad.Network.Name, remoteUnit(pod.Namespace+"/"+pod.Name))
		z.enqueueSharing(pod)
	}
}

func (z *Zone) podChanged(old, obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	if o, ok := old.(*corev1.Pod); ok && o.UID == pod.UID && o.Status.Phase == pod.Status.Phase && hasInterfaces(o) == hasInterfaces(pod) && reflect.DeepEqual(o.Annotations, pod.Annotations) {
		return
	}
	z.podQueue.Add(pod.Namespace + "/" + pod.Name)
	z.mu.Lock()
	defer z.mu.Unlock()
	z.enqueueSharing(pod)
}

// The informers' transforms keep only the fields that the zone reads.

func trimNamespace(obj any) (any, error) {
	if ns, ok := obj.(*corev1.Namespace); ok {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: ns.Name, UID: ns.UID, ResourceVersion: ns.ResourceVersion, Labels: keep(ns.Labels, network.LabelPrimaryUDN),
		}}, nil
	}
	return obj, nil
}

// removesNode reports whether a taint is the cluster autoscaler's of a node that it removes.
func removesNode(t corev1.Taint) bool { return t.Key == "ToBeDeletedByClusterAutoscaler" }

func (z *Zone) trimNode(obj any) (any, error) {
	if n, ok := obj.(*corev1.Node); ok {
		keys := []string{network.AnnotationNodeID, network.AnnotationChassisID, network.AnnotationEncapIPs, network.AnnotationGatewayConfig}
		out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, CreationTimestamp: n.CreationTimestamp}}
		if n.Name == z.cfg.Kubernetes.NodeName {
			keys = append(keys, network.AnnotationZoneFailures, network.AnnotationDefaultTransport)
			out.DeletionTimestamp = n.DeletionTimestamp
			if i := slices.IndexFunc(n.Spec.Taints, removesNode); i >= 0 {
				out.Spec.Taints = n.Spec.Taints[i : i+1 : i+1]
			}
		}
		out.Annotations = keep(n.Annotations, keys...)
		return out, nil
	}
	return obj, nil
}

func trimNAD(obj any) (any, error) {
	if n, ok := obj.(*nadv1.NetworkAttachmentDefinition); ok {
		return &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, Namespace: n.Namespace, UID: n.UID, ResourceVersion: n.ResourceVersion,
			Annotations:     keep(n.Annotations, network.AnnotationNetworkID, network.AnnotationNetworkName, network.AnnotationAdvertisedVRFs),
			OwnerReferences: n.OwnerReferences, DeletionTimestamp: n.DeletionTimestamp, Finalizers: n.Finalizers,
		}, Spec: n.Spec}, nil
	}
	return obj, nil
}

func trimPod(obj any) (any, error) {
	if p, ok := obj.(*corev1.Pod); ok {
		annotations := keep(p.Annotations, network.AnnotationPodNetworks, network.AnnotationNetworks, network.AnnotationDefaultNetwork, network.AnnotationPrimaryClaim, network.AnnotationOpenDefaultPorts, network.AnnotationMigrationTargetReady)
		if p.Annotations != nil && annotations == nil {
			annotations = map[string]string{} // kube.PodNetworksPatch must see that the map exists
		}
		containers, initContainers := kube.TrimHostPorts(p.Spec)
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion,
				CreationTimestamp: p.CreationTimestamp, Annotations: annotations, Labels: keep(p.Labels, network.LabelVirtualMachine),
			},
			Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork, Containers: containers, InitContainers: initContainers},
			Status: corev1.PodStatus{Phase: p.Status.Phase, PodIPs: p.Status.PodIPs},
		}, nil
	}
	return obj, nil
}

// keep returns the map with only those keys, nil if there are none.
func keep(m map[string]string, keys ...string) map[string]string {
	var out map[string]string
	for _, k := range keys {
		if v, ok := m[k]; ok {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = v
		}
	}
	return out
}
