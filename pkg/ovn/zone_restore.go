// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

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

// reservation is the annotated addresses of an initial pod that could not be
// restored: the NAD is broken or deleted, or another pod has the address. The pod
// may still use them.
type reservation struct {
	uid     string
	entries map[string]reservedIPs // by key in the annotation
}

type reservedIPs struct {
	network string // "" if no NAD tells: then every network with a matching subnet
	ips     []netip.Prefix
	in      map[string]struct{} // networks in which they are reserved
}

// reserveAnnotated reserves the pod's annotated addresses that are not restored.
func (z *Zone) reserveAnnotated(pod *corev1.Pod) {
	key, uid := pod.Namespace+"/"+pod.Name, string(pod.UID)
	_, already := z.reservations[key]
	z.releaseReservation(key)
	if _, before := z.initial[uid]; !before || needsNoNetwork(pod) {
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
	h := reservation{uid: uid, entries: map[string]reservedIPs{}}
	for k, n := range nets {
		if nad, ok := z.nadIndex.NAD(nadKey(k)); z.hasPort(key, k) || ok && nad.Err == nil && nad.Network.CheckSupported() != nil {
			continue // restored, or of a network whose addresses the zone does not allocate
		}
		e := reservedIPs{network: z.networkOf(k), ips: n.IPs, in: map[string]struct{}{}}
		h.entries[k] = e
		if e.network != "" {
			if st, ok := z.nets[e.network]; ok && st.addrs != nil {
				e.reserve(uid, e.network, st.addrs)
			}
			continue
		}
		for name, st := range z.nets {
			if st.addrs != nil {
				e.reserve(uid, name, st.addrs)
			}
		}
	}
	if len(h.entries) == 0 {
		return
	}
	z.reservations[key] = h
	if !already {
		z.log.Warn("cannot restore the pod's networks, its addresses stay reserved", "pod", key, "networks", len(h.entries))
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
	nad, _ := z.nadIndex.NAD(nadKey(key))
	return nad.Network.Name
}

// nadKey returns the NAD of a key of the annotation. The key of a second
// attachment is <namespace>/<name>/<index>.
func nadKey(key string) string {
	if parts := strings.SplitN(key, "/", 3); len(parts) == 3 {
		return network.NADKey(parts[0], parts[1])
	}
	return key
}

// reserve reserves the addresses that no other pod has.
func (e reservedIPs) reserve(uid, name string, a *addresses) {
	for _, ip := range e.ips {
		for _, p := range a.pools {
			if p.Subnet().Contains(ip.Addr()) && p.Reserve(uid, ip.Addr()) == nil {
				e.in[name] = struct{}{}
			}
		}
	}
}

// reserveIn repeats the reservations in a network's new address pools: first the
// addresses known to be of the network, then those that may be.
func (z *Zone) reserveIn(name string, a *addresses) {
	for _, of := range []string{name, ""} {
		for _, h := range z.reservations {
			for _, e := range h.entries {
				if e.network == of {
					e.reserve(h.uid, name, a)
				}
			}
		}
	}
}

// dropReservations drops the reservations of addresses that are now restored.
func (z *Zone) dropReservations(key string) {
	h, ok := z.reservations[key]
	if !ok {
		return
	}
	for k, e := range h.entries {
		if z.hasPort(key, k) {
			z.releaseReserved(key, h.uid, e)
			delete(h.entries, k)
		}
	}
	if len(h.entries) == 0 {
		delete(z.reservations, key)
	}
}

// releaseReservation releases a pod's reserved addresses.
func (z *Zone) releaseReservation(key string) {
	h := z.reservations[key]
	delete(z.reservations, key)
	for _, e := range h.entries {
		z.releaseReserved(key, h.uid, e)
	}
}

// releaseReserved releases reserved addresses that the pod has not been assigned.
func (z *Zone) releaseReserved(key, uid string, e reservedIPs) {
	for name := range e.in {
		st := z.state(name)
		own := func(ip netip.Prefix) bool {
			for _, g := range z.podPorts(key) {
				if g.network == name && slices.ContainsFunc(g.port.IPs, func(p netip.Prefix) bool { return p.Addr() == ip.Addr() }) {
					return true
				}
			}
			return false
		}
		if free := slices.DeleteFunc(slices.Clone(e.ips), own); st.addrs != nil && len(free) > 0 {
			st.addrs.release(uid, free)
			z.enqueueWaiting(st)
		}
	}
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
