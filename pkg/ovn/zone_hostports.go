// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// hostPorts returns the host ports that a pod has on a network. A pod that has not been
// connected has none: the node may refuse it, because another pod has its ports.
func hostPorts(pod *corev1.Pod, n network.Network) []network.HostPort {
	if !hasInterfaces(pod) || !n.IsPrimary() && !n.IsDefault() {
		return nil
	}
	ports, _ := kube.HostPorts(pod.Spec)
	return ports
}

// setHostPorts sets the host ports of the pod's port on its primary network.
func (z *Zone) setHostPorts(pod *corev1.Pod, st *podState) {
	key := pod.Namespace + "/" + pod.Name
	for k, g := range st.ports {
		if g.cluster {
			continue
		}
		var ports []network.HostPort
		if !g.port.Locked {
			ports = hostPorts(pod, z.state(g.network).net)
		}
		if slices.Equal(g.port.HostPorts, ports) {
			continue
		}
		g.port.HostPorts, g.port.Created = ports, pod.CreationTimestamp.Time
		st.ports[k] = g
		z.state(g.network).pods[key+" "+k] = g.port
		z.queue.AddUnits(g.network, podUnit(key))
		z.enqueueHostPorts(g.network)
	}
}

// enqueueHostPorts enqueues the pods of a network that have host ports: one of them may have gained or lost a port.
func (z *Zone) enqueueHostPorts(name string) {
	for _, p := range z.state(name).pods {
		if len(p.HostPorts) > 0 {
			z.queue.AddUnits(name, podUnit(p.Key()))
		}
	}
}

// buildPort returns the pod's port for Build: with the host ports that older pods have, and disabled if another pod has its addresses.
func (z *Zone) buildPort(n network.Network, p PodPort) PodPort {
	p = z.withHandover(p)
	if len(p.HostPorts) == 0 {
		return p
	}
	own := p.hostPortsAt(z.cfg.Plan, n, z.self())
	for _, other := range z.state(n.Name).pods {
		if len(other.HostPorts) == 0 || other.Key() == p.Key() || !other.precedes(p) {
			continue
		}
		for _, at := range other.hostPortsAt(z.cfg.Plan, n, z.self()) {
			if slices.Contains(own, at) && !slices.Contains(p.TakenHostPorts, at) {
				p.TakenHostPorts = append(p.TakenHostPorts, at)
			}
		}
	}
	return p
}

// precedes reports whether p gets a host port that o also has. Kubelet admits both if
// they write hostIP differently.
func (p PodPort) precedes(o PodPort) bool {
	return cmp.Or(p.Created.Compare(o.Created), cmp.Compare(p.Key(), o.Key())) < 0
}
