// SPDX-License-Identifier: Apache-2.0

package ovn

import (
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

// hostPortIndex indexes the host ports of a network's pods by where they are at the gateway router. Several pods may claim one
// place: kubelet admits them if they write hostIP differently. The first claimant has it.
type hostPortIndex struct {
	claims network.Claims[HostPortAt]
	byPort map[string]claimedHostPorts // by the keys of netState.pods
	// The places depend on these.
	plan network.Plan
	net  network.Network
	node network.Node
}

// claimedHostPorts are the places that a pod's port claims.
type claimedHostPorts struct {
	by network.Claimant
	at []HostPortAt
}

// hostPortClaimant is the claimant of the pod's host ports.
func (p PodPort) hostPortClaimant() network.Claimant {
	return network.Claimant{Created: p.Created, Name: p.Key()}
}

// at returns where the pod's host ports are.
func (x *hostPortIndex) at(p PodPort) []HostPortAt { return p.hostPortsAt(x.plan, x.net, x.node) }

// set replaces the places that the port with that key claims by those of p, and returns the former and the new ones.
func (x *hostPortIndex) set(key string, p PodPort) (either []HostPortAt) {
	had, now := x.byPort[key], claimedHostPorts{p.hostPortClaimant(), x.at(p)}
	for _, a := range had.at {
		x.claims.Remove(a, had.by)
	}
	for _, a := range now.at {
		x.claims.Add(a, now.by)
	}
	if delete(x.byPort, key); len(now.at) > 0 {
		x.byPort[key] = now
	}
	return slices.Concat(had.at, now.at)
}

// isCurrent reports whether the places in the index are those on a network and a node. They stay while the node lacks facts.
func (x *hostPortIndex) isCurrent(n network.Network, node network.Node) bool {
	v4, v6 := n.Families()
	had4, had6 := x.net.Families()
	return x.net.ID == n.ID && had4 == v4 && had6 == v6 && (!node.Ready() || slices.Equal(x.node.Addresses, node.Addresses))
}

// hostPortIndex returns the index of a network's host ports. It builds the index anew if the node's addresses or the network
// have changed: such an event enqueues the whole network, too.
func (z *Zone) hostPortIndex(name string) *hostPortIndex {
	st, node := z.state(name), z.self()
	if st.hostPorts != nil && st.hostPorts.isCurrent(st.net, node) {
		return st.hostPorts
	}
	st.hostPorts = &hostPortIndex{byPort: map[string]claimedHostPorts{}, plan: z.cfg.Plan, net: st.net, node: node}
	for key, p := range st.pods {
		st.hostPorts.set(key, p)
	}
	return st.hostPorts
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
		z.claimHostPorts(g.network, g.port)
		st.ports[k] = g
		z.state(g.network).pods[key+" "+k] = g.port
		z.queue.AddUnits(g.network, podUnit(key))
	}
}

// claimHostPorts indexes the host ports that the pod's port on a network is about to have, none if the pod is gone. It enqueues
// the pods that lose or gain a host port by that: the first other claimant of each place, if it comes after this pod. Later
// claimants have the place neither before nor after.
func (z *Zone) claimHostPorts(name string, p PodPort) {
	x, by := z.hostPortIndex(name), p.hostPortClaimant()
	for _, a := range x.set(p.Key()+" "+p.NADKey, p) {
		if next, ok := x.claims.First(a, nil, p.Key()); ok && by.Before(next) {
			z.queue.AddUnits(name, podUnit(next.Name))
		}
	}
}

// buildPort returns the pod's port for Build: with the host ports that older pods have, and disabled if another pod has its addresses.
func (z *Zone) buildPort(n network.Network, p PodPort) PodPort {
	p = z.withHandover(p)
	if len(p.HostPorts) == 0 {
		return p
	}
	x, by := z.hostPortIndex(n.Name), p.hostPortClaimant()
	for _, a := range x.at(p) {
		if first, ok := x.claims.First(a, nil, p.Key()); ok && first.Before(by) {
			p.TakenHostPorts = append(p.TakenHostPorts, a)
		}
	}
	return p
}
