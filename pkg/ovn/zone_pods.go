// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"bulkhead/pkg/ipam"
	"bulkhead/pkg/network"
)

// reasonAllocation is the reason of Events on pods that got no addresses.
const reasonAllocation = "ErrorAllocatingPod"

// errWait says that a pod cannot be served before an event that will come.
var errWait = errors.New("not yet")

// addresses are a node's pod addresses on a network, one subnet a family.
type addresses struct {
	hosts []netip.Prefix
	pools []*ipam.Addresses
}

func newAddresses(hosts []netip.Prefix) *addresses {
	a := &addresses{hosts: hosts}
	for _, h := range hosts {
		a.pools = append(a.pools, ipam.NewAddresses(h,
			single(network.Gateway(h).Addr()), single(network.Management(h).Addr())))
	}
	return a
}

// allocate gives owner an address of each family, or none.
func (a *addresses) allocate(owner string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, p := range a.pools {
		ip, err := p.Allocate(owner)
		if err != nil {
			a.release(owner, out)
			return nil, err
		}
		out = append(out, ip)
	}
	return out, nil
}

// reserve gives owner the addresses it had: one of each family, or none.
func (a *addresses) reserve(owner string, ips []netip.Prefix) ([]netip.Prefix, error) {
	if len(ips) != len(a.pools) {
		return nil, fmt.Errorf("%v is not one address of each of %v", ips, a.hosts)
	}
	var out []netip.Prefix
	for _, p := range a.pools {
		i := slices.IndexFunc(ips, func(ip netip.Prefix) bool { return p.Subnet().Contains(ip.Addr()) })
		if i < 0 {
			a.release(owner, out)
			return nil, fmt.Errorf("%v has no address of %s", ips, p.Subnet())
		}
		if err := p.Reserve(owner, ips[i].Addr()); err != nil {
			a.release(owner, out)
			return nil, err
		}
		out = append(out, netip.PrefixFrom(ips[i].Addr(), p.Subnet().Bits()))
	}
	return out, nil
}

func (a *addresses) release(owner string, ips []netip.Prefix) {
	for _, ip := range ips {
		for _, p := range a.pools {
			p.Release(owner, ip.Addr())
		}
	}
}

// done tells whether a pod needs no network any more, or never did.
func done(pod *corev1.Pod) bool {
	return pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// syncPod gives a pod its addresses. Its ports and its annotation follow from
// them and are written at the same time.
func (z *Zone) syncPod(ctx context.Context, key string) error {
	obj, ok, err := z.podStore.GetByKey(key)
	if err != nil {
		return fmt.Errorf("read pod %s: %w", key, err)
	}
	pod, isPod := obj.(*corev1.Pod)
	if !ok || !isPod || done(pod) {
		z.mu.Lock()
		defer z.mu.Unlock()
		z.release(key)
		return nil
	}
	defer prometheus.NewTimer(z.metrics.pods).ObserveDuration()
	z.mu.Lock()
	_, known := z.pods[key]
	if _, before := z.initial[string(pod.UID)]; before {
		known = true
	}
	nets, err := z.place(pod, false)
	foreign := z.foreignEntries(pod, known)
	z.mu.Unlock()
	if errors.Is(err, errWait) {
		return nil
	}
	if err != nil {
		// Every reason has an event that ends it: a NAD, a node, an address
		// given back.
		z.metrics.refused.Inc()
		z.log.Warn("pod got no network", "pod", key, "error", err)
		z.events.Event(reference(pod), corev1.EventTypeWarning, reasonAllocation, err.Error())
		return nil
	}
	if len(nets) == 0 {
		return nil
	}
	for k, v := range foreign {
		if _, ours := nets[k]; !ours {
			nets[k] = v
		}
	}
	if err := z.annotate(ctx, pod, nets); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotate pod %s: %w", key, err)
	}
	return nil
}

// place decides a pod's networks and addresses. With restoring, only what the
// pod already had is given back. What it returns is what the pod is to be told.
func (z *Zone) place(pod *corev1.Pod, restoring bool) (network.PodNetworks, error) {
	key := pod.Namespace + "/" + pod.Name
	if done(pod) {
		return nil, nil
	}
	ns, err := z.nsLister.Get(pod.Namespace)
	if err != nil || !z.begun || !z.self().Ready() {
		return nil, errWait // its namespace, or the node's facts, will come
	}
	st := z.pods[key]
	if z.another(key, string(pod.UID)) {
		z.release(key)
		st = nil
	}
	if st == nil {
		st = &podState{uid: string(pod.UID), ports: map[string]given{}}
	}
	// The annotation of a pod that was there before us was ours. Of a new pod
	// it is what its creator wrote, which decides nothing.
	var had network.PodNetworks
	if _, ok := z.initial[st.uid]; ok {
		if had, err = network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks]); err != nil {
			z.log.Warn("pod's annotation is malformed", "pod", key, "error", err)
		}
	}
	_, labelled := ns.Labels[network.LabelPrimaryUDN]
	wanted, err := z.wanted(pod, st, had, labelled, restoring)
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	out, fresh := network.PodNetworks{}, map[string]given{}
	for _, w := range wanted {
		g, ok := st.ports[w.key]
		if !ok {
			g, err = given{}, z.checkPort(pod, w)
			if err == nil {
				g, err = z.give(pod, w, had, restoring)
			}
			if err != nil {
				for _, f := range fresh {
					z.free(st.uid, f)
				}
				z.hold(pod) // what it runs with is not for others
				return nil, err
			}
			if g.network == "" {
				continue // only what it had, and it had none
			}
			g.port.Locked = !st.alone && w.net.IsDefault()
			fresh[w.key] = g
		}
		out[w.key] = network.NewPodNetwork(w.net, z.cfg.Plan, g.port.IPs, !st.alone)
	}
	for k, entry := range had {
		if _, ok := out[k]; !ok {
			out[k] = entry
		}
	}
	for k, g := range fresh {
		st.ports[k] = g
		z.state(g.network).pods[key+" "+k] = g.port
		z.dirty(g.network, PartPods)
	}
	if len(st.ports) > 0 {
		z.pods[key] = st
		if st.alone {
			z.isAlone(pod)
		}
	}
	z.restored(key)
	return out, nil
}

// wanted are the networks that a pod is to have; none where it is left as it
// is. What has been decided once stays so for the pod's life.
func (z *Zone) wanted(pod *corev1.Pod, st *podState, had network.PodNetworks, labelled, restoring bool) ([]entry, error) {
	_, given := st.ports[network.DefaultName]
	before, hadDefault := had[network.DefaultName]
	out := []entry{{key: network.DefaultName, net: z.cfg.DefaultNetwork}}
	switch {
	case given:
	case hadDefault:
		if st.alone = before.Role != network.RoleInfrastructureLocked; st.alone {
			z.isAlone(pod)
		}
		if st.alone && labelled && !runs(pod) {
			// If it was connected, its port is there and stays; if its creator
			// wrote the annotation while we were away, it gets none.
			z.hold(pod)
			return nil, nil
		}
	case labelled && runs(pod):
		z.isAlone(pod) // whoever connected it, it was not to a primary network
		return nil, nil
	default:
		// Whether it is locked is the namespace's to say, never the annotation's.
		st.alone = !labelled
		primary, err := z.newPrimary(pod.Namespace, labelled, restoring)
		if err != nil {
			return nil, err
		}
		if primary != nil {
			out = append(out, entry{key: primary.Key(), net: primary.Network})
		}
	}
	// What a pod has it keeps, whatever became of the network's description or
	// of the namespace's primary network.
	has := func(k string) bool { return slices.ContainsFunc(out, func(e entry) bool { return e.key == k }) }
	for k, g := range st.ports {
		if !has(k) {
			n, ok := z.describe(g.network)
			if !ok {
				n = z.state(g.network).net
			}
			out = append(out, entry{key: k, net: n})
		}
	}
	for k := range had {
		if nad, ok := z.catalog.NAD(k); ok && nad.Namespace == pod.Namespace && nad.Err == nil && nad.Network.Carried() == nil && !has(k) {
			out = append(out, entry{key: k, net: nad.Network, kept: true})
		}
	}
	return out, nil
}

// newPrimary is the primary network of a namespace's new pods, nil where they
// have none.
func (z *Zone) newPrimary(namespace string, labelled, restoring bool) (*network.NAD, error) {
	if labelled && !restoring {
		if err := z.olderPods(namespace); err != nil {
			return nil, err
		}
	}
	primary, err := z.catalog.Primary(namespace, labelled)
	if err != nil || primary == nil {
		return nil, err
	}
	return primary, primary.Network.Carried()
}

// another tells whether what is known of a pod is of another one of that name.
func (z *Zone) another(key, uid string) bool {
	st, h, s := z.pods[key], z.held[key], z.staying[key]
	namespace, _, _ := strings.Cut(key, "/")
	a := z.alone[namespace][key]
	return st != nil && st.uid != uid || h.uid != "" && h.uid != uid || s.uid != "" && s.uid != uid || a != "" && a != uid
}

// checkPort tells whether a pod's port would take another's name.
func (z *Zone) checkPort(pod *corev1.Pod, e entry) error {
	if !e.net.IsDefault() {
		return nil
	}
	isNode := func(name string) bool { _, ok := z.nodes.nodes[name]; return ok }
	return network.CheckPodPort(pod.Namespace, pod.Name, z.cfg.OVS.ExternalBridge, z.catalog.Names, isNode)
}

// entry is a network that a pod is to have, and its key in the annotation.
type entry struct {
	key  string
	net  network.Network
	kept bool // only the addresses that the pod had, no new ones
}

// give finds a pod's addresses on one network.
func (z *Zone) give(pod *corev1.Pod, e entry, had network.PodNetworks, restoring bool) (given, error) {
	hosts, err := e.net.HostSubnets(z.self().ID)
	if err != nil {
		return given{}, fmt.Errorf("network %s on node %s: %w", e.net.Name, z.cfg.Kubernetes.NodeName, err)
	}
	st := z.state(e.net.Name)
	st.net = e.net
	if st.addrs == nil || !slices.Equal(st.addrs.hosts, hosts) {
		st.addrs = newAddresses(hosts)
		for _, p := range st.pods {
			if _, err := st.addrs.reserve(p.UID, p.IPs); err != nil {
				z.log.Warn("pod's addresses no longer belong to the node's subnet", "network", e.net.Name, "pod", p.Namespace+"/"+p.Pod, "error", err)
			}
		}
		z.holdIn(e.net.Name, st.addrs)
	}
	uid := string(pod.UID)
	g := given{network: e.net.Name, port: PodPort{NADKey: e.key, Namespace: pod.Namespace, Pod: pod.Name, UID: uid}}
	if before, ok := had[e.key]; ok {
		if g.port.IPs, err = st.addrs.reserve(uid, before.IPs); err == nil {
			return g, nil
		}
		if pod.Status.Phase != corev1.PodPending {
			return given{}, fmt.Errorf("the running pod's addresses on network %s cannot be given back, recreate the pod: %w", e.net.Name, err)
		}
	}
	if restoring || e.kept {
		return given{}, nil
	}
	if g.port.IPs, err = st.addrs.allocate(uid); err != nil {
		st.waiting[pod.Namespace+"/"+pod.Name] = struct{}{}
		return given{}, fmt.Errorf("network %s on node %s: %w", e.net.Name, z.cfg.Kubernetes.NodeName, err)
	}
	return g, nil
}

// free takes a pod's addresses on one network back and lets the pods that
// wait for one be looked at again.
func (z *Zone) free(uid string, g given) {
	st := z.state(g.network)
	if st.addrs != nil {
		st.addrs.release(uid, g.port.IPs)
	}
	z.wake(st)
}

// wake lets the pods that wait for an address on a network be looked at again.
func (z *Zone) wake(st *netState) {
	for key := range st.waiting {
		z.podQueue.Add(key)
	}
	clear(st.waiting)
}

// release forgets a pod: its addresses, its ports and, with the last pod of a
// network that nobody describes any more, the network.
func (z *Zone) release(key string) {
	z.letGo(key)
	for name := range z.staying[key].networks {
		z.dirty(name, AllParts...)
	}
	delete(z.staying, key)
	z.notAlone(key)
	defer z.reconsiderSelf() // it may have been the last pod that spoke against the node's id
	p, ok := z.pods[key]
	if !ok {
		return
	}
	delete(z.pods, key)
	delete(z.initial, p.uid)
	for k, g := range p.ports {
		st := z.state(g.network)
		delete(st.pods, key+" "+k)
		z.free(p.uid, g)
		parts := []Part{PartPods}
		if _, described := z.describe(g.network); !described {
			parts = AllParts
		}
		z.dirty(g.network, parts...)
	}
}

// foreignEntries are those of the pod's annotation that another writes: all
// but the cluster default network's and those of Layer 3 networks. An entry of
// a NAD that does not exist is dropped from a pod that is not known yet, whose
// creator wrote it; later it is another writer's, whose NAD is gone.
func (z *Zone) foreignEntries(pod *corev1.Pod, known bool) network.PodNetworks {
	had, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		return nil
	}
	out := network.PodNetworks{}
	for key, n := range had {
		if !strings.Contains(key, "/") {
			continue
		}
		nad, ok := z.catalog.NAD(nadKey(key))
		if layer3 := ok && nad.Err == nil && nad.Network.Topology == network.Layer3; !layer3 && (ok || known) {
			out[key] = n
		}
	}
	return out
}
