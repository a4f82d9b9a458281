// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
)

// Pod is what the agent reads from a pod of this node.
type Pod struct {
	UID, Namespace, Name string
	RuntimeUID           string // kube.RuntimeUID
	Created              time.Time
	HostNetwork          bool
	OptOut               bool // has hostnet.OptOutAnnotation
	Networks             network.PodNetworks
	Open                 []network.OpenPort // of its locked addresses
	// The TCP ports of a host-network pod that kubelet probes, and those that
	// its containers declare.
	ProbePorts, Ports []uint16
	// HostPorts are the node's ports that a connected pod has.
	HostPorts []network.HostPort
	// HostPortsOmitted is how many more the pod names: see kube.MaxHostPorts.
	HostPortsOmitted int
}

// Key is namespace/name.
func (p Pod) Key() string { return p.Namespace + "/" + p.Name }

// lockedAddresses are the pod's addresses on the cluster default network, if
// its primary network is another one.
func (p Pod) lockedAddresses() []netip.Prefix {
	if n, ok := p.Networks[network.DefaultName]; ok && n.Role == network.RoleInfrastructureLocked {
		return n.IPs
	}
	return nil
}

// SetPod stores a pod of this node and returns whether it changed for the host
// network reconciler.
func (c *Cache) SetPod(p Pod) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, had := c.pods[p.Key()]
	c.pods[p.Key()] = p
	c.indexLoopbackPorts(p.Key(), old.HostPorts, p.HostPorts)
	if c.podsByNS[p.Namespace] == nil {
		c.podsByNS[p.Namespace] = map[string]struct{}{}
	}
	c.podsByNS[p.Namespace][p.Key()] = struct{}{}
	if delete(c.podsByPorts, p.Key()); len(p.HostPorts)+p.HostPortsOmitted > 0 {
		c.podsByPorts[p.Key()] = struct{}{}
	}
	return !had || old.UID != p.UID || old.RuntimeUID != p.RuntimeUID || old.HostNetwork != p.HostNetwork || old.OptOut != p.OptOut || !slices.Equal(old.lockedAddresses(), p.lockedAddresses()) || !slices.Equal(old.Open, p.Open) ||
		!slices.Equal(old.ProbePorts, p.ProbePorts) || !slices.Equal(old.Ports, p.Ports) || !slices.Equal(old.HostPorts, p.HostPorts)
}

// DeletePod deletes a pod and returns the same as SetPod.
func (c *Cache) DeletePod(key string) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[key]
	if !ok {
		return false
	}
	delete(c.pods, key)
	c.indexLoopbackPorts(key, p.HostPorts, nil)
	delete(c.podsByPorts, key)
	delete(c.podsByNS[p.Namespace], key)
	if len(c.podsByNS[p.Namespace]) == 0 {
		delete(c.podsByNS, p.Namespace)
	}
	return p.HostNetwork || len(p.lockedAddresses()) > 0 || len(p.HostPorts) > 0
}

// HostPods are the host-network pods of this node, by name. The network of one whose namespace has not
// been seen yet is unknown: the pod and its namespace come by different watches.
func (c *Cache) HostPods() []hostnet.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []hostnet.Pod
	for ns, keys := range c.podsByNS {
		labels, seen := c.namespaces[ns]
		id := c.primaryID(ns)
		if !seen || labels.Labelled && id == 0 {
			id = hostnet.NetworkUnknown
		}
		for key := range keys {
			if p := c.pods[key]; p.HostNetwork && !c.isForged(p) {
				out = append(out, hostnet.Pod{UID: p.RuntimeUID, Namespace: p.Namespace, Name: p.Name, Created: p.Created, NetworkID: id,
					Unbound: p.OptOut && labels.Trusted, Trusted: labels.Trusted, ProbePorts: p.ProbePorts, Ports: p.Ports})
			}
		}
	}
	slices.SortFunc(out, func(a, b hostnet.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// isForged reports whether a pod claims another pod's processes by the annotation of mirror pods: the annotation holds
// another pod's UID, or the one that an older mirror pod has. An admission policy refuses such pods, if it is installed.
func (c *Cache) isForged(p Pod) bool {
	if p.RuntimeUID == p.UID {
		return false
	}
	for _, other := range c.pods {
		if other.UID == p.RuntimeUID || other.UID != p.UID && other.RuntimeUID == p.RuntimeUID && other.Created.Before(p.Created) {
			return true
		}
	}
	return false
}

// IsLocked reports whether the default-network interface of a pod of this node
// is locked, and whether some of its ports are open. A pod that the cache lacks is
// locked if its namespace has the label, or is unknown.
func (c *Cache) IsLocked(key string) (locked, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, ok := c.pods[key].Networks[network.DefaultName]; ok {
		return n.Role == network.RoleInfrastructureLocked, len(c.pods[key].Open) > 0
	}
	ns, _, _ := strings.Cut(key, "/")
	labels, seen := c.namespaces[ns]
	return !seen || labels.Labelled, false
}

// Pod is the pod of this node with that key.
func (c *Cache) Pod(key string) (Pod, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[key]
	return p, ok
}

// connectedPods is the number of this node's pods that are not on the host's network.
func (c *Cache) connectedPods() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods {
		if !p.HostNetwork {
			n++
		}
	}
	return n
}

// PodByUID is the pod of this node whose cgroup has that UID.
func (c *Cache) PodByUID(uid string) (Pod, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods {
		if uid != "" && p.RuntimeUID == uid && !c.isForged(p) {
			return p, true
		}
	}
	return Pod{}, false
}

// Locked are the default-network addresses that only kubelet may reach. The
// pod's annotation decides, not the NAD: the annotation lives as long as the pod.
func (c *Cache) Locked() []hostnet.LockedAddr {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []hostnet.LockedAddr
	for _, p := range c.pods {
		for _, ip := range p.lockedAddresses() {
			out = append(out, hostnet.LockedAddr{Addr: ip.Addr().Unmap(), NetworkID: c.primaryIDOfPod(p), Open: p.Open})
		}
	}
	slices.SortFunc(out, func(a, b hostnet.LockedAddr) int { return a.Addr.Compare(b.Addr) })
	for i := 1; i < len(out); i++ {
		if out[i].Addr == out[i-1].Addr { // neither pod may open the other's
			out[i].Open, out[i-1].Open = nil, nil
		}
	}
	return out
}

// primaryIDOfPod is the id of the pod's primary network.
func (c *Cache) primaryIDOfPod(p Pod) int {
	for key, n := range p.Networks {
		if n.Role == network.RolePrimary && key != network.DefaultName {
			if nad, ok := c.nads.NAD(key); ok && nad.Err == nil {
				return nad.Network.ID
			}
		}
	}
	return c.primaryID(p.Namespace)
}

// PodsByNetwork are the keys of this node's pods by the id of their primary
// network: pods with an interface on it, and host-network pods.
func (c *Cache) PodsByNetwork() (pods, hostPods map[int][]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pods, hostPods = map[int][]string{}, map[int][]string{}
	for _, key := range slices.Sorted(maps.Keys(c.pods)) {
		p := c.pods[key]
		id := c.primaryIDOfPod(p)
		switch {
		case id == network.DefaultID && (p.HostNetwork || len(p.Networks) == 0):
			// The pod has no network, or its annotation is not written yet.
		case p.HostNetwork:
			hostPods[id] = append(hostPods[id], key)
		default:
			pods[id] = append(pods[id], key)
		}
	}
	return pods, hostPods
}
