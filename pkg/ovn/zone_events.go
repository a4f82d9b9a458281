// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"reflect"

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

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

var eventScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	_ = corev1.AddToScheme(s) // registers Go types; it has no way to fail
	return s
}()

func eventSink(k kubernetes.Interface) record.EventSink {
	return &typedcore.EventSinkImpl{Interface: k.CoreV1().Events("")}
}

// startInformers starts one informer a kind and returns when every handler
// has seen everything there was.
func (z *Zone) startInformers(ctx context.Context) error {
	all := informers.NewSharedInformerFactory(z.kube, 0)
	mine := informers.NewSharedInformerFactoryWithOptions(z.kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", z.cfg.Kubernetes.NodeName).String()
	}))
	nads := nadinformers.NewSharedInformerFactory(z.nads, 0)
	pods, nodes, namespaces := mine.Core().V1().Pods(), all.Core().V1().Nodes(), all.Core().V1().Namespaces()
	nad := nads.K8sCniCncfIo().V1().NetworkAttachmentDefinitions()
	z.podStore, z.nsLister = pods.Informer().GetIndexer(), namespaces.Lister()

	var synced []cache.InformerSynced
	for _, i := range []struct {
		informer  cache.SharedIndexInformer
		transform cache.TransformFunc
		changed   func(old, obj any)
		gone      func(obj any)
	}{
		{namespaces.Informer(), trimNamespace, z.namespaceChanged, func(any) {}},
		{nodes.Informer(), z.trimNode, z.nodeChanged, z.nodeGone},
		{nad.Informer(), trimNAD, z.nadChanged, z.nadGone},
		{pods.Informer(), trimPod, z.podChanged, func(obj any) { z.podChanged(nil, obj) }},
	} {
		if err := i.informer.SetTransform(i.transform); err != nil {
			return fmt.Errorf("start informers: %w", err)
		}
		reg, err := i.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { i.changed(nil, obj) },
			UpdateFunc: func(old, obj any) { i.changed(old, obj) },
			DeleteFunc: func(obj any) {
				if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = tomb.Obj
				}
				i.gone(obj)
			},
		})
		if err != nil {
			return fmt.Errorf("start informers: %w", err)
		}
		synced = append(synced, reg.HasSynced)
	}
	all.Start(ctx.Done())
	mine.Start(ctx.Done())
	nads.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("wait for the API server: %w", ctx.Err())
	}
	return nil
}

// start is called once, when everything the API server had is known.
func (z *Zone) start() {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, obj := range z.podStore.List() {
		if pod, ok := obj.(*corev1.Pod); ok {
			z.initial[string(pod.UID)] = struct{}{}
		}
	}
	z.started = true
	for _, nad := range z.catalog.Settle() {
		z.sayUnusable(nad)
		z.noteNAD(nad.Key(), true)
	}
	z.nodes.podIDs = z.podIDs()
	z.nodesChanged(z.nodes.settle())
}

// begin builds everything, once the node is ready: pods that had addresses
// get them back before any address is handed out.
func (z *Zone) begin() {
	if !z.started || !z.self().Ready() {
		return
	}
	if !z.begun {
		z.begun = true
		z.pending[network.DefaultName] = struct{}{}
		z.pending[keyCleanup] = struct{}{} // which finds what else there is
		for _, name := range z.catalog.Networks() {
			z.pending[name] = struct{}{}
		}
		z.restore(z.podStore.List())
	}
	z.dirtyAll(AllParts...)
	for _, key := range z.podStore.ListKeys() {
		z.podQueue.Add(key)
	}
	z.netQueue.Add(keyChassis)
	z.netQueue.Add(keyCleanup)
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
}

// enqueuePods lets the namespace's pods on this node be looked at again.
func (z *Zone) enqueuePods(namespace string) {
	keys, err := z.podStore.IndexKeys(cache.NamespaceIndex, namespace)
	if err != nil {
		z.log.Error("no index of pods by namespace", "error", err)
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
	if was, ok := old.(*nadv1.NetworkAttachmentDefinition); ok && was.Spec == o.Spec && reflect.DeepEqual(was.Annotations, o.Annotations) {
		return
	}
	nad, ours := kube.ParseNAD(o, z.cfg.Plan)
	if !ours {
		z.nadGone(obj)
		return
	}
	// What an unusable NAD is of, the cluster role wrote: a name that was
	// mistyped, or cannot be read, does not make the network one that nobody
	// describes.
	if of := o.Annotations[network.AnnotationNetworkName]; of != "" && nad.Err != nil {
		nad.Network.Name, nad.Network.ID = of, idOfUnusable(o)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if was, ok := z.catalog.NAD(nad.Key()); ok && nad.Network.Name == "" {
		nad.Network.Name = was.Network.Name // it cannot be read: it stands for what it named
	}
	z.nadTouched(nad.Key(), func() []string { return z.catalog.Set(nad) })
	judged, _ := z.catalog.NAD(nad.Key())
	unusable := judged.Err != nil && (z.started || nad.Err != nil)
	if unusable {
		z.sayUnusable(judged)
	}
	z.noteNAD(nad.Key(), unusable)
	z.enqueuePods(nad.Namespace)
}

func (z *Zone) sayUnusable(nad network.NAD) {
	z.log.Warn("network cannot be used", "nad", nad.Key(), "network", nad.Network.Name, "error", nad.Err)
}

func (z *Zone) nadGone(obj any) {
	o, ok := obj.(*nadv1.NetworkAttachmentDefinition)
	if !ok {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	key := network.NADKey(o.Namespace, o.Name)
	z.nadTouched(key, func() []string { return z.catalog.Delete(key) })
	z.noteNAD(key, false)
}

// nadTouched makes a change to a NAD and lets its networks be looked at again.
// Pods of its namespace that ran before we started get their addresses back
// before anybody else gets them.
func (z *Zone) nadTouched(key string, change func() []string) {
	was, _ := z.catalog.NAD(key)
	agreed := z.catalog.Agreed(was.Network.Name)
	names := change()
	if !z.started {
		return
	}
	nad, there := z.catalog.NAD(key)
	for _, name := range names {
		z.dirty(name, AllParts...)
		if name == was.Network.Name && z.catalog.Agreed(name) != agreed {
			// Others of its NADs, which were refused, may now be usable.
			for _, namespace := range z.catalog.Namespaces(name) {
				z.enqueuePods(namespace)
			}
			if len(z.refused) > 0 {
				z.netQueue.Add(keyFailures)
			}
		}
	}
	if !there || !z.begun {
		return
	}
	if objs, err := z.podStore.ByIndex(cache.NamespaceIndex, nad.Namespace); err == nil {
		z.restore(objs)
	}
}

func (z *Zone) podChanged(old, obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	if o, ok := old.(*corev1.Pod); ok && o.UID == pod.UID && o.Status.Phase == pod.Status.Phase && runs(o) == runs(pod) && reflect.DeepEqual(o.Annotations, pod.Annotations) {
		return
	}
	z.podQueue.Add(pod.Namespace + "/" + pod.Name)
}

// What the zone keeps of objects: nothing that it does not read.

func trimNamespace(obj any) (any, error) {
	if ns, ok := obj.(*corev1.Namespace); ok {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: ns.Name, UID: ns.UID, ResourceVersion: ns.ResourceVersion, Labels: keep(ns.Labels, network.LabelPrimaryUDN),
		}}, nil
	}
	return obj, nil
}

func (z *Zone) trimNode(obj any) (any, error) {
	if n, ok := obj.(*corev1.Node); ok {
		keys := []string{network.AnnotationNodeID, network.AnnotationChassisID, network.AnnotationEncapIPs, network.AnnotationGatewayConfig}
		if n.Name == z.cfg.Kubernetes.NodeName {
			keys = append(keys, network.AnnotationZoneFailures)
		}
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Annotations: keep(n.Annotations, keys...),
		}}, nil
	}
	return obj, nil
}

func trimNAD(obj any) (any, error) {
	if n, ok := obj.(*nadv1.NetworkAttachmentDefinition); ok {
		return &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, Namespace: n.Namespace, UID: n.UID, ResourceVersion: n.ResourceVersion,
			Annotations: keep(n.Annotations, network.AnnotationNetworkID, network.AnnotationNetworkName),
		}, Spec: n.Spec}, nil
	}
	return obj, nil
}

func trimPod(obj any) (any, error) {
	if p, ok := obj.(*corev1.Pod); ok {
		annotations := keep(p.Annotations, network.AnnotationPodNetworks)
		if p.Annotations != nil && annotations == nil {
			annotations = map[string]string{} // a patch must know that the map is there
		}
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion,
				CreationTimestamp: p.CreationTimestamp, Annotations: annotations,
			},
			Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork},
			Status: corev1.PodStatus{Phase: p.Status.Phase, PodIPs: p.Status.PodIPs},
		}, nil
	}
	return obj, nil
}

// keep is the map with only those keys, nil when none is there.
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
