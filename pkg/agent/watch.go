// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	nadinformers "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Watches are the informers that feed the Store: all NADs, the names and
// labels of namespaces, this Node and its pods.
type Watches struct {
	nads, namespaces, node, pods cache.SharedIndexInformer
	synced                       []cache.InformerSynced
}

// NewWatches makes the informers, which Run starts. What they see goes into
// the agent's Store, and asks the agent for a look at what it concerns.
func (a *Agent) NewWatches(clients *kube.Clients) (*Watches, error) {
	w := &Watches{}
	nads := nadinformers.NewSharedInformerFactory(clients.NAD, 0)
	w.nads = nads.K8sCniCncfIo().V1().NetworkAttachmentDefinitions().Informer()
	meta, err := metadataClient(clients.REST)
	if err != nil {
		return nil, err
	}
	namespaces := metadatainformer.NewSharedInformerFactory(meta, 0)
	w.namespaces = namespaces.ForResource(corev1.SchemeGroupVersion.WithResource("namespaces")).Informer()
	node := a.Config.Kubernetes.NodeName
	only := func(selector fields.Selector) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(clients.Kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = selector.String()
		}))
	}
	nodes := only(fields.OneTermEqualSelector("metadata.name", node))
	w.node = nodes.Core().V1().Nodes().Informer()
	pods := only(fields.OneTermEqualSelector("spec.nodeName", node))
	w.pods = pods.Core().V1().Pods().Informer()

	for _, x := range []struct {
		informer  cache.SharedIndexInformer
		transform cache.TransformFunc
		set       func(obj any)
		unset     func(key string)
	}{
		{w.nads, trimObject, a.setNAD, a.deleteNAD},
		{w.namespaces, trimObject, a.setNamespace, a.deleteNamespace},
		{w.node, trimObject, a.setNode, func(string) {}},
		{w.pods, trimPod, a.setPod, a.deletePod},
	} {
		if err := x.informer.SetTransform(x.transform); err != nil {
			return nil, fmt.Errorf("set up an informer: %w", err)
		}
		reg, err := x.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    x.set,
			UpdateFunc: func(_, obj any) { x.set(obj) },
			DeleteFunc: func(obj any) {
				if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
					x.unset(key)
				}
			},
		})
		if err != nil {
			return nil, fmt.Errorf("set up an informer: %w", err)
		}
		w.synced = append(w.synced, reg.HasSynced)
	}
	return w, nil
}

// Pods is the informer of this node's pods, trimmed to what the agent reads.
func (w *Watches) Pods() cache.SharedIndexInformer { return w.pods }

// Run starts the informers, which end with ctx, and returns when the Store
// holds what the lists said: as late as it takes while the API server is away.
func (w *Watches) Run(ctx context.Context) error {
	for _, i := range []cache.SharedIndexInformer{w.nads, w.namespaces, w.node, w.pods} {
		go i.RunWithContext(ctx)
	}
	if !cache.WaitForCacheSync(ctx.Done(), w.synced...) {
		return errors.Join(errors.New("stopped while waiting for the API server"), ctx.Err())
	}
	return nil
}

func metadataClient(cfg *rest.Config) (metadata.Interface, error) {
	c, err := metadata.NewForConfig(metadata.ConfigFor(cfg))
	if err != nil {
		return nil, fmt.Errorf("make metadata client: %w", err)
	}
	return c, nil
}

// trimObject drops what nobody here reads: the cache holds one object for each
// network and namespace of the cluster.
func trimObject(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	if n, ok := obj.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Annotations: n.Annotations}}, nil
	}
	return obj, nil
}

// trimPod keeps what podOf reads.
func trimPod(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := map[string]string{}
	for _, k := range []string{network.AnnotationPodNetworks, hostnet.OptOutAnnotation} {
		if v, ok := p.Annotations[k]; ok {
			kept[k] = v
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion, Annotations: kept},
		Spec:       trimSpec(p.Spec),
		Status:     corev1.PodStatus{Phase: p.Status.Phase},
	}, nil
}

func (a *Agent) setNAD(obj any) {
	o, ok := obj.(*nadv1.NetworkAttachmentDefinition)
	if !ok {
		return
	}
	nad, ours := kube.ParseNAD(o, a.Config.Plan)
	if !ours {
		a.deleteNAD(network.NADKey(o.Namespace, o.Name))
		return
	}
	if nad.Err != nil {
		a.Log.Warn("NetworkAttachmentDefinition cannot be used", "nad", nad.Key(), "error", nad.Err)
	}
	a.nadChanged(a.Store.SetNAD(nad))
}

func (a *Agent) deleteNAD(key string) { a.nadChanged(a.Store.DeleteNAD(key)) }

func (a *Agent) nadChanged(ids []int, hosts bool) {
	a.networksChanged()
	a.Networks(ids...)
	if hosts {
		a.Hosts()
	}
}

func (a *Agent) setNamespace(obj any) {
	if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
		_, labelled := o.Labels[network.LabelPrimaryUDN]
		hosts := a.Store.SetNamespace(o.Name, Namespace{Labelled: labelled, Trusted: o.Labels[hostnet.TrustLabel] == hostnet.TrustValue})
		a.networksChanged()
		if hosts {
			a.Hosts()
		}
	}
}

func (a *Agent) networksChanged() {
	if a.OnNetworks != nil {
		a.OnNetworks()
	}
}

func (a *Agent) deleteNamespace(name string) {
	if a.Store.SetNamespace(name, Namespace{}) {
		a.Hosts()
	}
}

func (a *Agent) setNode(obj any) {
	o, ok := obj.(*corev1.Node)
	if !ok || o.Name != a.Config.Kubernetes.NodeName {
		return
	}
	n, err := network.ParseNode(o.Name, o.Annotations)
	if err != nil {
		a.Log.Warn("annotations of this node", "error", err)
	}
	if a.Store.SetNode(n, maps.Clone(o.Annotations)) {
		a.Log.Info("the node has an id", "id", n.ID)
		a.everything()
		return
	}
	a.annotationsChanged(n)
}

func (a *Agent) setPod(obj any) {
	o, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	p, live := podOf(o, a.Log)
	if !live {
		a.deletePod(p.Key())
		return
	}
	if a.Store.SetPod(p) {
		a.Hosts()
	}
}

func (a *Agent) deletePod(key string) {
	if a.Store.DeletePod(key) {
		a.Hosts()
	}
}

// podOf is what the agent needs of a pod; live is false for one that has
// ended, whose addresses may already be another's.
func podOf(o *corev1.Pod, log *slog.Logger) (p Pod, live bool) {
	p = Pod{UID: string(o.UID), Namespace: o.Namespace, Name: o.Name, HostNetwork: o.Spec.HostNetwork,
		OptOut: o.Annotations[hostnet.OptOutAnnotation] == hostnet.OptOutValue}
	if p.HostNetwork {
		p.ProbePorts, p.Ports = podPorts(o.Spec)
	}
	if o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return p, false
	}
	var err error
	if p.Networks, err = network.ParsePodNetworks(o.Annotations[network.AnnotationPodNetworks]); err != nil {
		log.Warn("pod's networks cannot be read", "pod", p.Key(), "error", err)
	}
	return p, true
}
