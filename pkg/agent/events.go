// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/config"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
	"bulkhead/pkg/process"
)

// eventHandlers update the cache with the informers' events and enqueue what
// changed.
type eventHandlers struct {
	config          config.Config
	cache           *Cache
	queue           *Queue
	node            *nodeReconciler
	networksChanged func()      // called when NADs or namespaces' labels changed
	expectPods      func()      // called when host-network pods, or their networks, have changed
	refuse          func(error) // ends the agent
	log             *slog.Logger
}

// run runs the informers and returns when the cache is synced.
func (h eventHandlers) run(ctx context.Context, i *Informers) error {
	list := []process.Informer{
		{SharedIndexInformer: i.nads, Transform: trimObject, OnChange: onChange(h.setNAD), OnDelete: onDelete(h.deleteNAD)},
		{SharedIndexInformer: i.namespaces, Transform: trimObject, OnChange: onChange(h.setNamespace), OnDelete: onDelete(h.deleteNamespace)},
		{SharedIndexInformer: i.node, Transform: trimObject, OnChange: onChange(h.setNode)},
		{SharedIndexInformer: i.pods, Transform: trimPod, OnChange: onChange(h.setPod), OnDelete: onDelete(h.deletePod)},
		{SharedIndexInformer: i.services, Transform: trimService, OnChange: onChange(h.setService), OnDelete: onDelete(h.deleteService)},
	}
	return process.RunInformers(ctx, list...)
}

// onChange calls set with objects of its type.
func onChange[T any](set func(T)) func(old, obj any) {
	return func(_, obj any) {
		if o, ok := obj.(T); ok {
			set(o)
		}
	}
}

// onDelete calls unset with the key of the object: namespace/name, or the name
// alone.
func onDelete(unset func(key string)) func(obj any) {
	return func(obj any) {
		if o, ok := obj.(metav1.Object); ok {
			key := o.GetName()
			if o.GetNamespace() != "" {
				key = o.GetNamespace() + "/" + key
			}
			unset(key)
		}
	}
}

func (h eventHandlers) setNAD(o *nadv1.NetworkAttachmentDefinition) {
	key := network.NADKey(o.Namespace, o.Name)
	if kube.Released(o) {
		h.deleteNAD(key)
		return
	}
	nad, ours := kube.ParseNAD(o, h.config.Plan)
	h.cache.SetForeign(key, !ours)
	if !ours {
		h.enqueueNAD(h.cache.DeleteNAD(key))
		return
	}
	if nad.Err != nil {
		h.log.Warn("NetworkAttachmentDefinition cannot be used", "nad", nad.Key(), "error", nad.Err)
	}
	h.enqueueNAD(h.cache.SetNAD(nad))
}

func (h eventHandlers) deleteNAD(key string) {
	h.cache.SetForeign(key, false)
	h.enqueueNAD(h.cache.DeleteNAD(key))
}

func (h eventHandlers) enqueueNAD(c NADChange) {
	h.networksChanged()
	if c.Pods {
		h.expectPods()
	}
	h.queue.EnqueueNetworks(c.IDs...)
	h.queue.EnqueueGateways(c.Members...)
	if c.Default { // else not: it reads the services of all namespaces
		h.queue.EnqueueGateways(network.DefaultID)
	}
	if c.Pods || c.Advertised || len(c.Members) > 0 {
		h.queue.EnqueueHosts()
	}
	if c.Localnets {
		h.queue.EnqueueNode() // the external bridge's flows
	}
}

func (h eventHandlers) setNamespace(o *metav1.PartialObjectMetadata) {
	_, labelled := o.Labels[network.LabelPrimaryUDN]
	h.changeNamespace(o.Name, Namespace{Labelled: labelled, Trusted: o.Labels[hostnet.TrustLabel] == hostnet.TrustValue})
	h.networksChanged()
}

func (h eventHandlers) deleteNamespace(name string) {
	h.namespaceChanged(name, h.cache.DeleteNamespace(name))
}

func (h eventHandlers) changeNamespace(name string, n Namespace) {
	h.namespaceChanged(name, h.cache.SetNamespace(name, n))
}

func (h eventHandlers) namespaceChanged(name string, c NamespaceChange) {
	if c.Pods {
		h.expectPods()
	}
	if c.Pods || c.Services || c.Labels && len(h.config.IngressNamespaces) > 0 {
		h.queue.EnqueueHosts() // nftables has the node ports, and what ingress pods reach
	}
	if c.Services {
		// The event of the primary network's NAD may have come before.
		h.queue.EnqueueGateways(slices.Compact([]int{network.DefaultID, h.cache.PrimaryID(name)})...)
	}
}

func (h eventHandlers) setNode(o *corev1.Node) {
	if o.Name != h.config.Kubernetes.NodeName {
		return
	}
	// A change of the annotation after the first id, which the cluster controller undoes, has no effect.
	if h.cache.NodeID() == 0 {
		if err := network.CheckTransport(o.Annotations[network.AnnotationDefaultTransport], h.config.DefaultNetwork); err != nil {
			h.refuse(err)
			return
		}
	}
	n, err := network.ParseNode(o.Name, o.Annotations)
	if err != nil {
		h.log.Warn("annotations of this node are malformed", "error", err)
	}
	shared := h.cache.Annotations()[network.AnnotationSystemIDShared]
	idChanged := h.cache.SetNode(n, maps.Clone(o.Annotations))
	if shared != o.Annotations[network.AnnotationSystemIDShared] {
		h.queue.EnqueueReport()
	}
	if idChanged {
		h.log.Info("the node has an id", "id", n.ID)
		h.queue.EnqueueAll()
		return
	}
	h.node.checkAnnotations(n)
}

func (h eventHandlers) setPod(o *corev1.Pod) {
	p, running := parsePod(o, h.log)
	if !running {
		h.deletePod(p.Key())
		return
	}
	if updatePod(h.cache, h.queue, h.config, p) && p.HostNetwork {
		h.expectPods()
	}
}

// updatePod stores a running pod and enqueues what depends on what has changed. It reports whether the host network does.
func updatePod(c *Cache, q *Queue, cfg config.Config, p Pod) (hosts bool) {
	old, _ := c.Pod(p.Key())
	if hosts = c.SetPod(p) || isIngress(cfg, p) && !slices.Equal(old.defaultAddresses(), p.defaultAddresses()); hosts {
		q.EnqueueHosts()
	}
	if !slices.Equal(old.HostPorts, p.HostPorts) {
		enqueueHostPorts(c, q, cfg, p, slices.Concat(old.HostPorts, p.HostPorts))
	}
	return hosts
}

// isIngress reports whether a pod is in a namespace whose pods may reach all networks' services.
func isIngress(cfg config.Config, p Pod) bool {
	return slices.Contains(cfg.IngressNamespaces, p.Namespace)
}

// enqueueHostPorts enqueues the network of a pod whose host ports have changed, and the networks that may lose or gain one
// of them at a loopback address. ports are those that the pod had or has.
func enqueueHostPorts(c *Cache, q *Queue, cfg config.Config, p Pod, ports []network.HostPort) {
	if id, ok := c.NetworkOfPod(p, cfg.DefaultNetwork); ok {
		q.EnqueueGateways(id)
	}
	q.EnqueueGateways(c.otherLoopbackNetworks(p.Key(), ports, cfg.Plan, cfg.DefaultNetwork)...)
}

func (h eventHandlers) deletePod(key string) { removePod(h.cache, h.queue, h.config, key) }

// removePod forgets a pod that is gone or has ended, and enqueues what depended on it.
func removePod(c *Cache, q *Queue, cfg config.Config, key string) {
	old, _ := c.Pod(key)
	if c.DeletePod(key) || isIngress(cfg, old) {
		q.EnqueueHosts()
	}
	if len(old.HostPorts) > 0 {
		enqueueHostPorts(c, q, cfg, old, old.HostPorts)
	}
}

// parsePod reads what the agent needs from a pod. running is false for a pod that
// has ended, whose addresses may already be another pod's.
func parsePod(o *corev1.Pod, log *slog.Logger) (p Pod, running bool) {
	p = Pod{UID: string(o.UID), RuntimeUID: kube.RuntimeUID(o), Created: o.CreationTimestamp.Time, Namespace: o.Namespace, Name: o.Name, HostNetwork: o.Spec.HostNetwork,
		OptOut: o.Annotations[hostnet.OptOutAnnotation] == hostnet.OptOutValue}
	if p.HostNetwork {
		p.ProbePorts, p.Ports = podPorts(o.Spec)
	}
	if o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return p, false
	}
	var err error
	if p.Networks, err = network.ParsePodNetworks(o.Annotations[network.AnnotationPodNetworks]); err != nil {
		log.Warn("annotation of a pod cannot be read", "annotation", network.AnnotationPodNetworks, "pod", p.Key(), "error", err)
	}
	// A pod that has not been connected may be refused, because another has its ports.
	if len(o.Status.PodIPs) > 0 {
		p.HostPorts, p.HostPortsOmitted = kube.HostPorts(o.Spec)
	}
	// The zone reports an annotation that cannot be read.
	p.Open, _ = network.ParseOpenPorts(o.Annotations[network.AnnotationOpenDefaultPorts])
	return p, true
}
