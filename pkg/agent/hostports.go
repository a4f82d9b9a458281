// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"iter"
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

// loopbackPort is a port at a loopback address of the node.
type loopbackPort struct {
	addr     netip.Addr
	protocol string
	port     uint16
}

// loopbackPortsOf iterates over those of a pod's host ports whose hostIP is a loopback address.
func loopbackPortsOf(ports []network.HostPort) iter.Seq[loopbackPort] {
	return func(yield func(loopbackPort) bool) {
		for _, h := range ports {
			if h.Host.IsLoopback() && !yield(loopbackPort{h.Host, h.Protocol, h.Port}) {
				return
			}
		}
	}
}

// indexLoopbackPorts replaces a pod's ports in the index of those at loopback addresses.
func (c *Cache) indexLoopbackPorts(key string, old, ports []network.HostPort) {
	for port := range loopbackPortsOf(old) {
		removeFrom(c.loopback, port, key)
	}
	for port := range loopbackPortsOf(ports) {
		addTo(c.loopback, port, key)
	}
}

// loopbackNetwork returns the network of the oldest pod, besides the one with the key except, that has a port at a loopback
// address, and the masquerade address of the port. That address is the same for all networks, so one of them gets the port.
func (c *Cache) loopbackNetwork(port loopbackPort, except string, plan network.Plan, defaultNetwork network.Network) (id int, to netip.Addr, ok bool) {
	var oldest Pod
	for key := range c.loopback[port] {
		p := c.pods[key]
		if key == except || ok && cmp.Or(oldest.Created.Compare(p.Created), cmp.Compare(oldest.Key(), key)) < 0 {
			continue
		}
		n, known := c.networkOfPod(p, defaultNetwork)
		if !known {
			continue
		}
		h := network.HostPort{Protocol: port.protocol, Host: port.addr, Port: port.port}
		if routes := h.Routes(plan, n, nil); len(routes) > 0 {
			oldest, id, to, ok = p, n.ID, routes[0].To, true
		}
	}
	return id, to, ok
}

// loopbackPorts returns the ports at loopback addresses that a network's pods have. If pods of several networks have the same
// port, the oldest pod's network gets it.
func (c *Cache) loopbackPorts(id int, plan network.Plan, defaultNetwork network.Network) (out []flows.ServicePort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := map[loopbackPort]struct{}{}
	for _, p := range c.pods {
		if len(p.HostPorts) == 0 {
			continue
		}
		if n, ok := c.networkOfPod(p, defaultNetwork); !ok || n.ID != id {
			continue
		}
		for port := range loopbackPortsOf(p.HostPorts) {
			if _, ok := done[port]; ok {
				continue
			}
			done[port] = struct{}{}
			if first, to, ok := c.loopbackNetwork(port, "", plan, defaultNetwork); ok && first == id {
				out = append(out, flows.ServicePort{Addr: to, Protocol: port.protocol, Port: port.port, HostPort: true})
			}
		}
	}
	slices.SortFunc(out, func(a, b flows.ServicePort) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return out
}

// otherLoopbackNetworks returns the networks that may gain or lose a port at a loopback address by an event of the pod with that
// key, besides the pod's own network: those that have the ports without this pod. ports are those that the pod had or has.
func (c *Cache) otherLoopbackNetworks(key string, ports []network.HostPort, plan network.Plan, defaultNetwork network.Network) (ids []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for port := range loopbackPortsOf(ports) {
		if id, _, ok := c.loopbackNetwork(port, key, plan, defaultNetwork); ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
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
