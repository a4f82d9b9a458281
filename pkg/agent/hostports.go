// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/flows"
)

// serversInterval is how often the node's servers are listed while pods have host ports.
const serversInterval = 15 * time.Second

// hostPort is a pod's host port and its routes on this node.
type hostPort struct {
	pod     string // namespace/name
	network int    // id
	since   time.Time
	port    network.HostPort
	routes  []network.HostPortRoute
}

// networkOfPod is the network at whose gateway router the pod's host ports are: the primary one
// that it got when it was created.
func (c *Cache) networkOfPod(p Pod, defaultNetwork network.Network) (network.Network, bool) {
	if d, ok := p.Networks[network.DefaultName]; !ok || d.Role != network.RoleInfrastructureLocked {
		return defaultNetwork, ok
	}
	id := c.primaryID(p.Namespace)
	if id == network.DefaultID {
		return network.Network{}, false
	}
	return c.networkByID(id)
}

// NetworkOfPod is the id of the network at whose gateway router the pod's host ports are.
func (c *Cache) NetworkOfPod(p Pod, defaultNetwork network.Network) (id int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.networkOfPod(p, defaultNetwork)
	return n.ID, ok
}

// hostPorts returns the host ports of this node's pods, those of the oldest pod first. It reads no other pods: each network's
// flows need them.
func (c *Cache) hostPorts(plan network.Plan, defaultNetwork network.Network, node []netip.Prefix) []hostPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []hostPort
	for key := range c.podsByPorts {
		p := c.pods[key]
		n, ok := c.networkOfPod(p, defaultNetwork)
		if !ok {
			continue
		}
		for _, port := range p.HostPorts {
			out = append(out, hostPort{key, n.ID, p.Created, port, port.Routes(plan, n, node)})
		}
	}
	slices.SortStableFunc(out, func(a, b hostPort) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.pod, b.pod)) })
	return out
}

// loopbackPorts returns the host ports of a network's pods whose hostIP is a loopback address. They have the
// masquerade address that all networks share for this purpose, not their network's own. If pods of several networks
// have the same port, the oldest pod's network gets it.
func (c *Cache) loopbackPorts(id int, plan network.Plan, defaultNetwork network.Network) []flows.ServicePort {
	networkOf := map[flows.ServicePort]int{}
	for _, p := range c.hostPorts(plan, defaultNetwork, nil) {
		if !p.port.Host.IsLoopback() {
			continue
		}
		for _, r := range p.routes {
			port := flows.ServicePort{Addr: r.To, Protocol: p.port.Protocol, Port: p.port.Port, HostPort: true}
			if _, taken := networkOf[port]; !taken {
				networkOf[port] = p.network
			}
		}
	}
	var out []flows.ServicePort
	for port, n := range networkOf {
		if n == id {
			out = append(out, port)
		}
	}
	slices.SortFunc(out, func(a, b flows.ServicePort) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return out
}

// loopbackNetworks returns the ids of the networks whose pods have host ports at a loopback address.
func (c *Cache) loopbackNetworks(plan network.Plan, defaultNetwork network.Network) (ids []int) {
	for _, p := range c.hostPorts(plan, defaultNetwork, nil) {
		if p.port.Host.IsLoopback() && !slices.Contains(ids, p.network) {
			ids = append(ids, p.network)
		}
	}
	return ids
}

// omittedHostPorts reports the pods with more host ports than kube.MaxHostPorts.
func (c *Cache) omittedHostPorts() (out []Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.podsByPorts {
		if p := c.pods[key]; p.HostPortsOmitted > 0 {
			out = append(out, Problem{Reason: reasonHostPort, pod: key, Message: fmt.Sprintf(
				"the last %d host ports are not reached: a pod may have %d: use fewer, or a Service of type LoadBalancer", p.HostPortsOmitted, kube.MaxHostPorts)})
		}
	}
	slices.SortFunc(out, func(a, b Problem) int { return cmp.Compare(a.pod, b.pod) })
	return out
}

// reservedPorts belong to the node even when no server listens on them. Open vSwitch's userspace datapath opens no
// socket for the overlay. If a pod had a routing daemon's port, routers would take the pod for the daemon while that
// is down.
var reservedPorts = []struct {
	protocol string
	port     uint16
}{{"udp", network.TunnelPort}, {"tcp", network.BGPPort}, {"udp", network.BFDPort}, {"udp", network.BFDEchoPort}, {"udp", network.BFDMultiPort}}

// admitHostPorts returns those of the host ports that neither a server of the node nor an earlier one in the list
// has, and why the others are not reached. kubelet admits two pods with one port if their hostIP are written differently.
func admitHostPorts(ports []hostPort, servers []hostnet.Server) (out []firewall.HostPort, problems []Problem) {
	for _, s := range reservedPorts {
		servers = append(servers, hostnet.Server{Protocol: s.protocol, Addr: netip.IPv6Unspecified(), Port: s.port})
	}
	taken := map[firewall.Port]string{} // by pod
	for _, p := range ports {
		at := fmt.Sprintf("host port %d/%s is not reached", p.port.Port, p.port.Protocol)
		if len(p.routes) == 0 {
			problems = append(problems, Problem{Reason: reasonHostPort, pod: p.pod, Message: fmt.Sprintf(
				"%s: hostIP %s is neither 127.0.0.1, ::1, nor the node's first address of an IP family that the pod's network has: change or remove it", at, p.port.Host)})
		}
		for _, route := range p.routes {
			own := firewall.Port{Addr: route.At, Protocol: p.port.Protocol, Port: p.port.Port}
			other, isTaken := taken[own]
			switch {
			case isTaken && other != p.pod:
				problems = append(problems, Problem{Reason: reasonHostPort, pod: p.pod, Message: fmt.Sprintf("%s at %s: an older pod has that port: choose another", at, route.At)})
			case !slices.ContainsFunc(servers, func(s hostnet.Server) bool { return s.Serves(p.port.Protocol, route.At, p.port.Port) }):
				taken[own] = p.pod
				out = append(out, firewall.HostPort{Port: own, To: route.To})
			case !route.At.IsLoopback() || p.port.Host.IsLoopback(): // for all addresses, the node's are reported
				problems = append(problems, Problem{Reason: reasonHostPort, pod: p.pod, Message: fmt.Sprintf("%s at %s: a process of the node has that port, or it is reserved for the overlay or routing daemons: choose another", at, route.At)})
			}
		}
	}
	return out, problems
}

// readHostPorts returns the host ports that the firewall redirects to pods, and why it does not redirect others.
func (r *hostReconciler) readHostPorts() (out []firewall.HostPort, problems []Problem) {
	ports := r.cache.hostPorts(r.config.Plan, r.config.DefaultNetwork, r.node.addresses())
	if len(ports) == 0 || r.servers == nil {
		return nil, nil
	}
	r.queue.keys.AddAfter(key{kind: kindServers}, serversInterval)
	servers, err := r.servers()
	if err != nil {
		// Without the list no port is redirected away from a server.
		return nil, []Problem{{Reason: "HostPortsNotReached", Message: "pods' host ports are not reached: " + err.Error()}}
	}
	out, problems = admitHostPorts(ports, servers)
	return out, append(problems, r.cache.omittedHostPorts()...)
}

// updateHostPorts reads the host ports, stores them, and reports whether they have changed.
func (r *hostReconciler) updateHostPorts() (ports []firewall.HostPort, changed bool) {
	ports, problems := r.readHostPorts()
	r.portsMu.Lock()
	defer r.portsMu.Unlock()
	if !slices.Equal(problems, r.portProblems) {
		r.queue.EnqueueReport()
	}
	changed = !slices.Equal(ports, r.ports)
	r.ports, r.portProblems = ports, problems
	return ports, changed
}

// checkServers enqueues the host network if a server has started or ended on a pod's host port.
func (r *hostReconciler) checkServers() {
	if _, changed := r.updateHostPorts(); changed {
		r.queue.EnqueueHosts()
	}
}

// hostPortProblems returns why host ports are not reached.
func (r *hostReconciler) hostPortProblems() []Problem {
	r.portsMu.Lock()
	defer r.portsMu.Unlock()
	return slices.Clone(r.portProblems)
}

// reasonHostPort is the reason of a pod's event: a host port is not reached.
const reasonHostPort = "HostPortNotReached"
