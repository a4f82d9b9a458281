// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"net/netip"
	"slices"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
)

// defaultAddresses are the pod's addresses on the cluster default network, if that is its primary
// network.
func (p Pod) defaultAddresses() []netip.Prefix {
	if n, ok := p.Networks[network.DefaultName]; ok && n.Role == network.RolePrimary {
		return n.IPs
	}
	return nil
}

// Ingress returns what nft needs of ingress namespaces: their pods on this node and, if there are
// any, the cluster IPs of all tenants' services. A namespace with a primary network of its own is no
// ingress namespace. It returns nil if the configuration names none.
func (c *Cache) Ingress(namespaces []string) *firewall.Ingress {
	if len(namespaces) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out, here := &firewall.Ingress{}, false
	for _, namespace := range namespaces {
		if c.namespaces[namespace].Labelled {
			continue
		}
		for key := range c.podsByNS[namespace] {
			here = true
			for _, ip := range c.pods[key].defaultAddresses() {
				out.Pods = append(out.Pods, ip.Addr())
			}
		}
	}
	slices.SortFunc(out.Pods, netip.Addr.Compare)
	if !here {
		return out
	}
	for _, s := range c.services.byKey {
		if !c.namespaces[s.namespace].Labelled {
			continue
		}
		if n, ok := c.networkByID(c.primaryID(s.namespace)); ok {
			for _, p := range s.cluster {
				out.ClusterIPs = append(out.ClusterIPs, firewall.ClusterIP{Addr: p.Addr, Network: n})
			}
		}
	}
	slices.SortFunc(out.ClusterIPs, func(a, b firewall.ClusterIP) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Network.ID, b.Network.ID))
	})
	out.ClusterIPs = slices.CompactFunc(out.ClusterIPs, func(a, b firewall.ClusterIP) bool { return a.Addr == b.Addr })
	return out
}

// hasIngressPods reports whether this node has pods that reach all networks' services.
func (c *Cache) hasIngressPods(namespaces []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(namespaces, func(ns string) bool { return !c.namespaces[ns].Labelled && len(c.podsByNS[ns]) > 0 })
}

// addIngress adds to eBPF's inputs which host-network pods are ingress pods, and what they reach.
func (r *hostReconciler) addIngress(in *hostnet.Inputs, ingress *firewall.Ingress) {
	if ingress == nil {
		return
	}
	for i, p := range in.Pods {
		in.Pods[i].Ingress = p.NetworkID == network.DefaultID && slices.Contains(r.config.IngressNamespaces, p.Namespace)
	}
	for _, c := range ingress.ClusterIPs {
		in.ClusterIPs = append(in.ClusterIPs, hostnet.ClusterIP{Addr: c.Addr, NetworkID: c.Network.ID})
	}
}
