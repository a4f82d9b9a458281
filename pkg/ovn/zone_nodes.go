// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
)

// reasonNodeAnnotations is the reason of events on a Node with wrong annotations.
// Only the node's own zone emits them; other zones would repeat them.
const reasonNodeAnnotations = "WrongNodeAnnotations"

func (z *Zone) nodeChanged(_, obj any) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	annotated, err := network.ParseNode(n.Name, n.Annotations)
	z.mu.Lock()
	defer z.mu.Unlock()
	if n.Name == z.cfg.Kubernetes.NodeName {
		if !z.checkTransport(n.Annotations[network.AnnotationDefaultTransport]) {
			return
		}
		z.ownUID = n.UID
		z.leaving.Store(n.DeletionTimestamp != nil || slices.ContainsFunc(n.Spec.Taints, removesNode))
		z.failures.recordAnnotation(n.Annotations[network.AnnotationZoneFailures])
		if z.synced {
			z.nodes.podIDs = z.podIDs()
		}
	}
	z.nodesChanged(z.nodes.set(n.Name, string(n.UID), n.CreationTimestamp.Time, annotated, err))
}

// checkTransport ends the zone, and returns false, if this node was installed with another
// transport of the cluster default network. A later change of the annotation, which the
// cluster controller undoes, has no effect.
func (z *Zone) checkTransport(installed string) bool {
	if z.installed || installed == "" {
		return true
	}
	if err := network.CheckTransport(installed, z.cfg.DefaultNetwork); err != nil {
		z.end(err)
		return false
	}
	z.installed = true
	return true
}

func (z *Zone) nodeDeleted(obj any) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.nodesChanged(z.nodes.remove(n.Name))
}

// nodesChanged reports wrong annotations of nodes and enqueues what depends on
// the nodes' facts.
func (z *Zone) nodesChanged(changes []nodeChange) {
	if !z.synced {
		return
	}
	z.enqueueClaimants(z.nodes.takeMoved())
	var peers []Unit
	self := false
	for _, c := range changes {
		own := c.name == z.cfg.Kubernetes.NodeName
		if c.problemChanged {
			z.reportNodeProblem(c.name, own)
		}
		if !own {
			peers = append(peers, peerUnit(c.name))
			z.enqueueRemotePodsOf(c.name)
		}
		self = self || own && c.factsChanged
	}
	alone := z.nodes.alone()
	if self {
		z.alone = alone
		z.enqueueAll()
		return
	}
	if !z.restored {
		return
	}
	// The first other node, ready or not, and the deletion of the last one change the topology.
	if alone != z.alone {
		z.alone = alone
		z.enqueueNetworks(topologyUnit)
	}
	if len(peers) > 0 {
		// Kept rows of a node that lacks facts are deleted if another node now has
		// its tunnel key.
		_, unknown := z.nodes.peers()
		for name := range unknown {
			peers = append(peers, peerUnit(name))
		}
		z.enqueueNetworks(peers...)
		z.queue.AddUnits(network.DefaultName, topologyUnit) // has the set of the nodes' addresses
		z.queue.Add(keyChassis)
	}
}

func (z *Zone) reportNodeProblem(name string, own bool) {
	err := z.nodes.problem(name)
	if err != nil {
		z.log.Warn("node's annotations are wrong, their last correct values stay in effect", "peer", name, "error", err)
	}
	if !own {
		if err == nil {
			z.log.Info("node's annotations are correct again", "peer", name)
		}
		return
	}
	contested := z.nodes.contested()
	switch {
	case err != nil:
		z.nodeEvent(err.Error() + "; the last correct values stay in effect and nothing built is torn down; only Bulkhead may write these annotations, undo what others have changed")
	case contested != "":
		z.log.Warn("other nodes claim what this node has", "claims", contested)
		z.nodeEvent("node " + name + ": " + contested + ": nodes that knew the other one first send it this node's traffic; delete the other Node if its machine is gone, or correct its annotations")
	default:
		z.log.Info("this node's annotations are correct again, and no other node claims what it has")
	}
}

// nodeEvent emits a warning event of this Node.
func (z *Zone) nodeEvent(message string) {
	z.events.Event(&corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: z.cfg.Kubernetes.NodeName, UID: z.ownUID}, corev1.EventTypeWarning, reasonNodeAnnotations, message)
}

// revalidateSelf evaluates this node's annotations again if they are wrong: its
// remaining pods may no longer contradict them.
func (z *Zone) revalidateSelf() {
	own := z.cfg.Kubernetes.NodeName
	if !z.synced || z.nodes.problem(own) == nil {
		return
	}
	z.nodes.podIDs = z.podIDs()
	z.nodesChanged(z.nodes.evaluate([]string{own}))
}

// podIDs returns the node ids that the addresses of this node's pods on the
// cluster default network imply. A node's id does not change while its pods live.
func (z *Zone) podIDs() map[int]struct{} {
	out := map[int]struct{}{}
	if z.restored {
		for _, p := range z.state(network.DefaultName).pods {
			if id := z.cfg.DefaultNetwork.NodeOf(p.IPs[0].Addr()); id != 0 {
				out[id] = struct{}{}
				break // all have addresses of one subnet
			}
		}
		return out
	}
	for _, obj := range z.podStore.List() {
		pod, ok := obj.(*corev1.Pod)
		if !ok || needsNoNetwork(pod) {
			continue
		}
		nets, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
		if err != nil {
			continue // assignNetworks logs it
		}
		for _, ip := range nets[network.DefaultName].IPs {
			if id := z.cfg.DefaultNetwork.NodeOf(ip.Addr()); id != 0 {
				out[id] = struct{}{}
			}
		}
	}
	return out
}
