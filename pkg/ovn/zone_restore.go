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

// restore gives pods back what their annotations say, the oldest first, as of
// two that name one address the older had it first. What cannot be given back
// is held, so that no other pod gets it.
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
		if _, err := z.place(pod, true); err != nil {
			z.log.Warn("cannot restore the pod's addresses", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		}
	}
	for _, pod := range pods {
		z.hold(pod)
	}
}

// holding is what a pod that was there before us has by its annotation, and
// was not given back to it: its NAD is broken or gone, or another has the
// address. The pod may use it all the same.
type holding struct {
	uid     string
	entries map[string]held // by key in the annotation
}

type held struct {
	network string // "" when no NAD tells: then every network whose addresses these can be
	ips     []netip.Prefix
	in      map[string]struct{} // networks in which they are reserved
}

// hold reserves what the pod's annotation says and the pod was not given back.
func (z *Zone) hold(pod *corev1.Pod) {
	key, uid := pod.Namespace+"/"+pod.Name, string(pod.UID)
	_, already := z.held[key]
	z.letGo(key)
	if _, before := z.initial[uid]; !before || done(pod) {
		return
	}
	nets, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		nets = nil // place has said so
	}
	if _, ok := nets[network.DefaultName]; !ok && len(pod.Status.PodIPs) > 0 {
		nets = maps.Clone(nets) // what kubelet was told says it as well
		if nets == nil {
			nets = network.PodNetworks{}
		}
		nets[network.DefaultName] = network.PodNetwork{IPs: podIPs(pod)}
	}
	h := holding{uid: uid, entries: map[string]held{}}
	for k, n := range nets {
		if nad, ok := z.catalog.NAD(nadKey(k)); z.hasPort(key, k) || ok && nad.Err == nil && nad.Network.Carried() != nil {
			continue // given back, or not of the networks whose addresses zones give
		}
		e := held{network: z.networkOf(k), ips: n.IPs, in: map[string]struct{}{}}
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
	z.held[key] = h
	if !already {
		z.log.Warn("addresses of a pod are kept from others, though its networks cannot be told or used", "pod", key, "networks", len(h.entries))
	}
}

// hasPort tells whether the pod was given what that key stands for.
func (z *Zone) hasPort(pod, key string) bool { _, ok := z.podPorts(pod)[key]; return ok }

// podIPs are the addresses that kubelet knows of a pod.
func podIPs(pod *corev1.Pod) []netip.Prefix {
	var out []netip.Prefix
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, single(a))
		}
	}
	return out
}

// networkOf is the network that a key of the pod-networks annotation stands
// for, "" when no NAD tells.
func (z *Zone) networkOf(key string) string {
	if key == network.DefaultName {
		return network.DefaultName
	}
	nad, _ := z.catalog.NAD(nadKey(key))
	return nad.Network.Name
}

// nadKey is the key of the NAD that a key of the annotation names: a second
// attachment is <namespace>/<name>/<index>.
func nadKey(key string) string {
	if parts := strings.SplitN(key, "/", 3); len(parts) == 3 {
		return network.NADKey(parts[0], parts[1])
	}
	return key
}

// reserve keeps the addresses from others. Who has one already keeps it.
func (e held) reserve(uid, name string, a *addresses) {
	for _, ip := range e.ips {
		for _, p := range a.pools {
			if p.Subnet().Contains(ip.Addr()) && p.Reserve(uid, ip.Addr()) == nil {
				e.in[name] = struct{}{}
			}
		}
	}
}

// holdIn reserves in a network's new addresses what pods hold there: what is
// known to be the network's before what merely can be.
func (z *Zone) holdIn(name string, a *addresses) {
	for _, of := range []string{name, ""} {
		for _, h := range z.held {
			for _, e := range h.entries {
				if e.network == of {
					e.reserve(h.uid, name, a)
				}
			}
		}
	}
}

// restored ends the holding of what the pod has been given back meanwhile.
func (z *Zone) restored(key string) {
	h, ok := z.held[key]
	if !ok {
		return
	}
	for k, e := range h.entries {
		if z.hasPort(key, k) {
			z.unreserve(key, h.uid, e)
			delete(h.entries, k)
		}
	}
	if len(h.entries) == 0 {
		delete(z.held, key)
	}
}

// letGo ends a pod's holding.
func (z *Zone) letGo(key string) {
	h := z.held[key]
	delete(z.held, key)
	for _, e := range h.entries {
		z.unreserve(key, h.uid, e)
	}
}

// unreserve frees held addresses, but for those that the pod itself was given.
func (z *Zone) unreserve(key, uid string, e held) {
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
			z.wake(st)
		}
	}
}

func (z *Zone) podPorts(key string) map[string]given {
	if st, ok := z.pods[key]; ok {
		return st.ports
	}
	return nil
}

// alive are the rows of have, not in want, that are ports of pods that still
// run: whatever became of a description, a running pod keeps its port.
func (z *Zone) alive(name string, want, have State) State {
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
		if pod, isPod := obj.(*corev1.Pod); err == nil && ok && isPod && string(pod.UID) == ids[markPodUID] && !done(pod) {
			out = append(out, r)
			z.stays(key, ids[markPodUID], name)
		}
	}
	return out
}

// staying is a pod with ports that stay only because it runs, and the networks
// they are on, which are looked at again when it goes.
type staying struct {
	uid      string
	networks map[string]struct{}
}

func (z *Zone) stays(pod, uid, name string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	s := z.staying[pod]
	if s.uid != uid {
		s = staying{uid: uid, networks: map[string]struct{}{}}
		z.staying[pod] = s
	}
	s.networks[name] = struct{}{}
	// The pod may have gone between the look and now: then nobody else comes back.
	z.podQueue.Add(pod)
}
