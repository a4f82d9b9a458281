// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"net/netip"

	"bulkhead/pkg/network"
)

// Ingress says which pods reach the cluster IPs of all networks' services: those of the cluster
// default network in namespaces that the administrator has named (User Defined Networks proposal, "OpenShift
// Router/Ingress"). Host-network pods do so by sockets that eBPF binds to the network's VRF and
// marks. OVN sends the others' packets to the management port of the cluster default network, and
// the node forwards them to that of the service's network.
type Ingress struct {
	Pods       []netip.Addr // addresses of this node's pods on the cluster default network
	ClusterIPs []ClusterIP
}

// ClusterIP is a cluster IP of a service of a tenant's network.
type ClusterIP struct {
	Addr    netip.Addr
	Network network.Network
}

// Names inside the table. Without ingress namespaces the sets and maps are empty.
const (
	// SetIngressPods4 and SetIngressPods6 hold Ingress.Pods.
	SetIngressPods4 = "ingresspods4"
	SetIngressPods6 = "ingresspods6"
	// SetIngressOwn holds pairs of a management port and the mark of ingress pods' sockets.
	SetIngressOwn = "ingressown"
	// SetIngressTo4 and SetIngressTo6 hold pairs of a management port and a cluster IP.
	SetIngressTo4 = "ingressto4"
	SetIngressTo6 = "ingressto6"
	// MapIngressMarks4 and MapIngressMarks6 map a cluster IP to the mark for its network.
	MapIngressMarks4 = "ingressmarks4"
	MapIngressMarks6 = "ingressmarks6"
	// MapIngressSources4 and MapIngressSources6 map a management port to the node's address on the
	// network.
	MapIngressSources4 = "ingresssources4"
	MapIngressSources6 = "ingresssources6"

	CounterIngress = "ingress"

	chainIngress = "ingress"
)

// ingressElements adds the elements of the sets and maps.
func (in Inputs) ingressElements(sets map[string][]string) {
	if in.Ingress == nil {
		return
	}
	add := func(name, element string) { sets[name] = append(sets[name], element) }
	for _, a := range in.Ingress.Pods {
		add(ofAddress(a, SetIngressPods4, SetIngressPods6), a.String())
	}
	for _, n := range in.Networks {
		add(SetIngressOwn, fmt.Sprintf("%s . %#08x", n.ManagementPort(), n.IngressMark()))
		hosts, err := n.HostSubnets(in.NodeID)
		if err != nil {
			continue // the node has no address on the network, and no way into it
		}
		seen := map[string]bool{}
		for _, h := range hosts {
			source := in.Plan.NodeSource(n, h)
			if name := ofAddress(source, MapIngressSources4, MapIngressSources6); source.IsValid() && !seen[name] {
				seen[name] = true
				add(name, fmt.Sprintf("%s : %s", n.ManagementPort(), source))
			}
		}
	}
	for _, c := range in.Ingress.ClusterIPs {
		add(ofAddress(c.Addr, SetIngressTo4, SetIngressTo6), fmt.Sprintf("%s . %s", c.Network.ManagementPort(), c.Addr))
		add(ofAddress(c.Addr, MapIngressMarks4, MapIngressMarks6), fmt.Sprintf("%s : %#08x", c.Addr, c.Network.IngressMark()))
	}
}

// ingressSockets accepts what the sockets of host-network ingress pods send into networks.
func (in Inputs) ingressSockets() []Rule {
	if in.Ingress == nil {
		return nil
	}
	var rules []Rule
	for _, ip := range families {
		rules = append(rules, rule("ingress sockets, "+ip, "oifname . socket mark @"+SetIngressOwn, "oifname .", ip, "daddr @"+ofFamily(ip, SetIngressTo4, SetIngressTo6),
			"counter name", CounterIngress, "accept"))
	}
	return rules
}

// ingressChain marks ingress pods' packets so that they use the table of the service's network, and
// the replies so that they use the main table: a network's table has no route to the cluster default
// network.
func (in Inputs) ingressChain() []Chain {
	if in.Ingress == nil {
		return nil
	}
	c := Chain{Name: chainIngress, Hook: "prerouting"}
	for _, ip := range families {
		pods := "@" + ofFamily(ip, SetIngressPods4, SetIngressPods6)
		c.Rules = append(c.Rules,
			rule("to services, "+ip, in.fromDefault(), ip, "saddr", pods, "meta mark set", ip, "daddr map @"+ofFamily(ip, MapIngressMarks4, MapIngressMarks6)),
			rule("replies, "+ip, "iifname", managementPorts, "ct direction reply ct original", ip, "saddr", pods, fmt.Sprintf("meta mark set %#x", network.MarkKindService)))
	}
	return []Chain{c}
}

// unmarkIngress clears the marks of what ingress pods send to services, and of the replies.
func (in Inputs) unmarkIngress() []Rule {
	if in.Ingress == nil {
		return nil
	}
	return []Rule{rule("clear a mark of ingress", "oifname", managementPorts, fmt.Sprintf("meta mark %#x-%#x", network.MarkKindService, network.MarkKindService|^network.MarkKindOther), unmark)}
}

func (in Inputs) fromDefault() string { return fmt.Sprintf("iifname %q", in.Default.ManagementPort()) }

// forwardIngress accepts what the node forwards from ingress pods to cluster IPs, and the replies.
func (in Inputs) forwardIngress() []Rule {
	if in.Ingress == nil {
		return nil
	}
	var rules []Rule
	for _, ip := range families {
		pods := "@" + ofFamily(ip, SetIngressPods4, SetIngressPods6)
		rules = append(rules,
			rule("ingress, "+ip, in.fromDefault(), ip, "saddr", pods, "oifname .", ip, "daddr @"+ofFamily(ip, SetIngressTo4, SetIngressTo6), "counter name", CounterIngress, "accept"),
			rule("replies to ingress, "+ip, fmt.Sprintf("oifname %q", in.Default.ManagementPort()), "meta sdifname .", ip, "saddr @"+ofFamily(ip, SetIngressTo4, SetIngressTo6), "ct direction reply ct original", ip, "saddr", pods, "accept"))
	}
	return rules
}

// ingressSource gives ingress pods' packets the node's address on the service's network: a tenant's
// network may contain the pods' own addresses.
func (in Inputs) ingressSource() []Rule {
	if in.Ingress == nil {
		return nil
	}
	var rules []Rule
	for _, ip := range families {
		rules = append(rules, rule("ingress, "+ip, ip, "saddr @"+ofFamily(ip, SetIngressPods4, SetIngressPods6), "oifname .", ip, "daddr @"+ofFamily(ip, SetIngressTo4, SetIngressTo6),
			"snat", ip, "to oifname map @"+ofFamily(ip, MapIngressSources4, MapIngressSources6)))
	}
	return rules
}
