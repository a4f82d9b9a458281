// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
)

// reasonNodeAnnotations is the reason of Events on a Node whose annotations are
// wrong. Its own zone alone makes them: the others' would say the same.
const reasonNodeAnnotations = "WrongNodeAnnotations"

func (z *Zone) nodeChanged(_, obj any) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	said, err := network.ParseNode(n.Name, n.Annotations)
	z.mu.Lock()
	defer z.mu.Unlock()
	if n.Name == z.cfg.Kubernetes.NodeName {
		z.ownUID = n.UID
		z.noteSaid(n)
		if z.started {
			z.nodes.podIDs = z.podIDs()
		}
	}
	z.nodesChanged(z.nodes.set(n.Name, string(n.UID), said, err))
}

func (z *Zone) nodeGone(obj any) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.nodesChanged(z.nodes.remove(n.Name))
}

// nodesChanged says what is wrong with nodes' annotations, and lets what
// follows from their facts be looked at again.
func (z *Zone) nodesChanged(changes []nodeChange) {
	if !z.started {
		return
	}
	peers, self := false, false
	for _, c := range changes {
		own := c.name == z.cfg.Kubernetes.NodeName
		if c.wrong {
			z.sayWrong(c.name, own)
		}
		// What is unknown of a peer decides what becomes of its rows too.
		peers = peers || !own
		self = self || own && c.facts
	}
	if self {
		z.begin()
	} else if peers && z.begun {
		z.dirtyAll(PartPeers)
		z.netQueue.Add(keyChassis)
	}
}

func (z *Zone) sayWrong(name string, own bool) {
	err := z.nodes.wrong(name)
	if err == nil {
		z.log.Info("node's annotations are right again", "peer", name)
		return
	}
	z.log.Warn("node's annotations are wrong: of these, what was right before counts", "peer", name, "error", err)
	if own {
		z.events.Event(&corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: z.ownUID}, corev1.EventTypeWarning, reasonNodeAnnotations,
			err.Error()+": what was right before counts, and what is built stays as it is; the annotations are Bulkhead's own, leave them to it")
	}
}

// reconsiderSelf judges this node's annotations anew when they are wrong: its
// pods may no longer speak against them.
func (z *Zone) reconsiderSelf() {
	own := z.cfg.Kubernetes.NodeName
	if !z.started || z.nodes.wrong(own) == nil {
		return
	}
	z.nodes.podIDs = z.podIDs()
	z.nodesChanged(z.nodes.look([]string{own}))
}

// podIDs are the ids of this node that its pods' addresses on the cluster
// default network tell: an id is a node's for life, its pods' for theirs.
func (z *Zone) podIDs() map[int]struct{} {
	out := map[int]struct{}{}
	if z.begun {
		for _, p := range z.state(network.DefaultName).pods {
			if id := z.cfg.DefaultNetwork.NodeOf(p.IPs[0].Addr()); id != 0 {
				out[id] = struct{}{}
				break // all of them have addresses of the one subnet
			}
		}
		return out
	}
	for _, obj := range z.podStore.List() {
		pod, ok := obj.(*corev1.Pod)
		if !ok || done(pod) {
			continue
		}
		nets, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
		if err != nil {
			continue // its place says so
		}
		for _, ip := range nets[network.DefaultName].IPs {
			if id := z.cfg.DefaultNetwork.NodeOf(ip.Addr()); id != 0 {
				out[id] = struct{}{}
			}
		}
	}
	return out
}
