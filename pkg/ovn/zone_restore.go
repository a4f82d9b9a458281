// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
)

// restore restores the addresses in pods' annotations, oldest pod first: if two
// pods name one address, the older pod had it first. Addresses that cannot be
// restored are reserved, so that no other pod gets them.
func (z *Zone) restore(objs []any) {
	pods := make([]*corev1.Pod, 0, len(objs))
	for _, obj := range objs {
		if pod, ok := obj.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	for _, pod := range pods {
		if _, err := z.assignNetworks(pod, true); err != nil {
			z.log.Warn("cannot restore the pod's addresses", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		}
	}
	for _, pod := range pods {
		z.reserveAnnotated(pod)
	}
}

// reserveAnnotated reserves the pod's annotated addresses that are not restored.
func (z *Zone) reserveAnnotated(pod *corev1.Pod) {
	key, uid := pod.Namespace+"/"+pod.Name, string(pod.UID)
	if _, before := z.initial[uid]; !before || needsNoNetwork(pod) {
		z.addresses.dropReservation(key)
		return
	}
	nets, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		nets = nil // assignNetworks has logged it
	}
	if _, ok := nets[network.DefaultName]; !ok && len(pod.Status.PodIPs) > 0 {
		nets = maps.Clone(nets) // use the addresses in the pod's status
		if nets == nil {
			nets = network.PodNetworks{}
		}
		nets[network.DefaultName] = network.PodNetwork{IPs: podIPs(pod)}
	}
	r := reservation{uid: uid, entries: map[string]reservedIPs{}}
	for k, n := range nets {
		if nad, ok := z.nadIndex.NAD(network.NADOf(k)); z.hasPort(key, k) || ok && nad.Err == nil && !zoneAllocates(nad.Network) {
			continue // restored, or of a network whose addresses the zone does not allocate
		}
		r.entries[k] = reservedIPs{network: z.networkOf(k), ips: n.IPs, in: map[string]struct{}{}}
	}
	if z.addresses.reserveAnnotated(key, r) {
		z.log.Warn("cannot restore the pod's networks, its addresses stay reserved", "pod", key, "networks", len(r.entries))
	}
}

// hasPort reports whether the pod has a port for that key of its annotation.
func (z *Zone) hasPort(pod, key string) bool { _, ok := z.podPorts(pod)[key]; return ok }

// podIPs returns the addresses in a pod's status.
func podIPs(pod *corev1.Pod) []netip.Prefix {
	var out []netip.Prefix
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, single(a))
		}
	}
	return out
}

// networkOf returns the network of a key of the pod-networks annotation, "" if
// there is no such NAD.
func (z *Zone) networkOf(key string) string {
	if key == network.DefaultName {
		return network.DefaultName
	}
	nad, _ := z.nadIndex.NAD(network.NADOf(key))
	return nad.Network.Name
}

func (z *Zone) podPorts(key string) map[string]attachment {
	if st, ok := z.pods[key]; ok {
		return st.ports
	}
	return nil
}

// runningPodPorts returns the rows of have, not in want, that are ports of running
// pods: a running pod keeps its port even if its network's NADs are gone.
func (z *Zone) runningPodPorts(name string, want, have State) State {
	known := map[string]struct{}{}
	for _, r := range want {
		known[r.ID] = struct{}{}
	}
	var out State
	for _, r := range have {
		ids := externalIDs(r.Model)
		if ids[markPod] == "" {
			continue
		}
		if _, ok := known[r.ID]; ok {
			continue
		}
		key := ids[markNamespace] + "/" + ids[markPod]
		obj, ok, err := z.podStore.GetByKey(key)
		if pod, isPod := obj.(*corev1.Pod); err == nil && ok && isPod && string(pod.UID) == ids[markPodUID] && !needsNoNetwork(pod) {
			out = append(out, r)
			z.recordKeptPort(key, ids[markPodUID], name)
		}
	}
	return out
}

// keptPorts is the networks of a running pod's undesired ports. When the pod is
// deleted, these networks are enqueued.
type keptPorts struct {
	uid      string
	networks map[string]struct{}
}

func (z *Zone) recordKeptPort(pod, uid, name string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	s := z.keptPorts[pod]
	if s.uid != uid {
		s = keptPorts{uid: uid, networks: map[string]struct{}{}}
		z.keptPorts[pod] = s
	}
	s.networks[name] = struct{}{}
	// The pod may have been deleted since podStore was read: reconcile it again.
	z.podQueue.Add(pod)
}
