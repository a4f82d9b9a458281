// SPDX-License-Identifier: Apache-2.0

package story

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
	"bulkhead/test/lab"
)

func gatewayChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "pods of every network, from one source port at once, reach hosts and nodes", Phase: phaseReach, Needs: needs(fixturePlain, fixtureTenants, fixtureLayer2), Run: outsideReached, Group: groupEgress},
		{Chapter: 3, Title: "node ports answer hosts, nodes and other networks, each with its network's pods", Phase: phaseReach, Needs: needs(fixtureServices), Run: nodePortsReached, Group: groupNodePorts},
		{Chapter: 3, Title: "node ports with external traffic policy Local: the node's own endpoints answer hosts, whose addresses they see, and other networks' pods", Phase: phaseReach, Needs: needs(fixtureServices), Run: localNodePortsReached, Group: groupNodePorts},
		{Chapter: 3, Title: "datagrams of several fragments, from pods of every network to hosts, arrive, and so do their answers", Phase: phaseReach, Needs: needs(fixturePlain, fixtureTenants, fixtureLayer2), Run: fragmentsPass, Group: groupEgress},
		{Chapter: 3, Title: "external addresses: hosts reach the oldest service, which sees their addresses", Phase: phaseReach, Needs: needs(fixtureServices), Run: externalAddressesReached, Group: groupNodePorts},
		{Chapter: 4, Title: "a tenant's service that claims other hosts' or nodes' addresses as external IPs receives none of their packets", Phase: phaseIsolation, Needs: needs(fixturePlain, fixtureTenants, fixtureLayer2), Run: claimsCaptureNothing, Group: groupNodePorts},
	}
}

// tenantNodes are the nodes on which each network has pods: the first and the last.
func (w *World) tenantNodes() []*lab.Node {
	nodes := w.Lab.Nodes()
	if len(nodes) == 1 {
		return nodes
	}
	return []*lab.Node{nodes[0], nodes[len(nodes)-1]}
}

// perNode returns one pod of each network on each of tenantNodes.
func (w *World) perNode() (out []*pod, err error) {
	for _, s := range storyServices {
		for _, n := range w.tenantNodes() {
			pods := w.tenant(s.tenant)
			i := slices.IndexFunc(pods, func(p *pod) bool { return p.Node == n.Name })
			if i < 0 {
				return nil, fmt.Errorf("tenant %q has no pod on %s", s.tenant, n.Name)
			}
			out = append(out, pods[i])
		}
	}
	return out, nil
}

// machines are the external machine and the nodes.
func (w *World) machines() []*lab.Node {
	return append([]*lab.Node{w.Lab.External()}, w.Lab.Nodes()...)
}

// serveOnMachines starts a server on each machine, which answers with the machine's name.
func (w *World) serveOnMachines(ctx context.Context, port uint16) (stop func(), err error) {
	var servers []*lab.Process
	stop = func() {
		for _, s := range servers {
			s.Kill()
		}
	}
	for _, m := range w.machines() {
		server, err := m.Start(ctx, fmt.Sprintf("exec %s/netprobe serve --name %s --listen :%d", toolsDir, m.Name, port))
		if err != nil {
			stop()
			return nil, err
		}
		servers = append(servers, server)
	}
	return stop, nil
}

// outsideReached has pods of each network probe servers on the external machine, which has no
// route to pods, and on the nodes. Tenants have the same addresses and use the same port:
// each must get its own replies.
func outsideReached(ctx context.Context, w *World) (string, error) {
	const listenPort, sourcePort = 8070, 40000
	stop, err := w.serveOnMachines(ctx, listenPort)
	if err != nil {
		return "", err
	}
	defer stop()
	want := map[string]string{}
	for _, m := range w.machines() {
		for _, a := range addrs(m) {
			at := netip.AddrPortFrom(a, listenPort)
			want[fmt.Sprintf("tcp@%d:%s", sourcePort, at)], want[fmt.Sprintf("udp@%d:%s", sourcePort, at)], want["icmp:"+a.String()] = m.Name, m.Name, ""
		}
	}
	sources, err := w.perNode()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d pods, %d targets each", len(sources), len(want)), each(sources, func(from *pod) error {
		if _, err := w.reach(ctx, from, "", want); err != nil {
			return fmt.Errorf("from %s on %s: %w", from.Name, from.Node, err)
		}
		return nil
	})
}

// nodePortsReached asks each network's node ports at each node: from the external machine
// until all endpoints have answered, from the nodes' own processes, and from pods of the other
// networks.
func nodePortsReached(ctx context.Context, w *World) (string, error) {
	type client struct {
		name, tenant string
		pod          bool
		ask          func([]string) ([]probe, error)
	}
	clients := []client{{name: "the external machine", ask: w.fromNode(ctx, w.Lab.External())}}
	for _, n := range w.Lab.Nodes() {
		clients = append(clients, client{name: n.Name, ask: w.fromNode(ctx, n)})
	}
	pods, err := w.perNode()
	if err != nil {
		return "", err
	}
	for _, p := range pods {
		clients = append(clients, client{p.Name + " on " + p.Node, p.Tenant, true, w.fromPod(ctx, p)})
	}
	targets, servers := map[string][]string{}, map[string][]string{}
	for _, s := range storyServices {
		for _, n := range w.Lab.Nodes() {
			list, err := w.nodePorts(ctx, s.namespace, addrs(n))
			if err != nil {
				return "", err
			}
			targets[s.tenant] = append(targets[s.tenant], list...)
		}
		for _, p := range w.endpoints(s.namespace, s.tenant) {
			servers[s.tenant] = append(servers[s.tenant], p.Namespace+"/"+p.Name)
		}
	}
	var answers atomic.Int32
	err = each(clients, func(c client) error {
		for tenant, list := range targets {
			enough := 1
			if c.name == clients[0].name {
				enough = len(servers[tenant])
			}
			if c.pod && c.tenant == tenant {
				continue // serviceTypesReached asks these
			}
			n, err := answered(c.ask, list, servers[tenant], enough)
			answers.Add(int32(n))
			if err != nil {
				return fmt.Errorf("%s to node ports of tenant %q: %w", c.name, tenant, err)
			}
		}
		return nil
	})
	return fmt.Sprintf("%d clients, %d answers", len(clients), answers.Load()), err
}

// externalRoute routes the external machine's packets to the address by the node.
func (w *World) externalRoute(ctx context.Context, to netip.Addr, by *lab.Node) error {
	via, ok := network.FirstOfFamily(addrs(by), to)
	if !ok {
		return fmt.Errorf("node %s has no address of the IP family of %s", by.Name, to)
	}
	res, err := w.Lab.External().Run(ctx, fmt.Sprintf("ip route replace %s via %s", to, via))
	if err == nil && res.ExitCode != 0 {
		err = errors.New(res.Stderr)
	}
	if err != nil {
		return fmt.Errorf("route to %s on the external machine: %w", to, err)
	}
	return nil
}

// externalAddressesReached has the external machine send to the addresses that all networks'
// services balancer have, by each node. Their external traffic policy is Local: the node's
// endpoints of the oldest service answer, and see the machine's address. They answer the node's
// own processes at the balancers' addresses, but not at those that a service's owner chooses:
// they may be any host's.
func externalAddressesReached(ctx context.Context, w *World) (string, error) {
	namespace, tenant, err := w.oldestBalancer(ctx)
	if err != nil {
		return "", err
	}
	external := w.Lab.External()
	shared := append(w.served(externalAddresses), w.served(balancerAddresses)...)
	answers := 0
	defer func() {
		for _, a := range shared {
			_, _ = external.Run(context.WithoutCancel(ctx), "ip route del "+a.String())
		}
	}()
	for i, n := range w.tenantNodes() {
		near := w.near(namespace, tenant, n)
		clients := map[string]string{} // by target, the client's address
		for j, a := range shared {
			if err := w.externalRoute(ctx, a, n); err != nil {
				return "", err
			}
			target := []string{"client-tcp:", "client-udp:"}[(i+j)%2] + netip.AddrPortFrom(a, 80).String()
			clients[target] = addrs(external)[slices.IndexFunc(addrs(external), func(own netip.Addr) bool { return own.Is4() == a.Is4() })].String()
		}
		count, err := answered(w.fromNode(ctx, external), portTargets(shared), near, len(near))
		answers += count
		if err != nil {
			return "", fmt.Errorf("the external machine by %s: %w", n.Name, err)
		}
		if _, err := reach(w.fromNode(ctx, external), clients); err != nil {
			return "", fmt.Errorf("what the endpoints see by %s: %w", n.Name, err)
		}
		answers += len(clients)
		count, err = answered(w.fromNode(ctx, n), portTargets(w.served(balancerAddresses)), near, 1)
		answers += count
		if err != nil {
			return "", fmt.Errorf("%s: %w", n.Name, err)
		}
		got, err := w.attempts(tryFromNode(ctx, n), portTargets(w.served(externalAddresses)), anyOf(portTargets(w.served(balancerAddresses))))
		if err := cmp.Or(err, reachedAny(n.Name, got)); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d answers of %s/balancer", answers, namespace), nil
}

// localNodePortsReached has the external machine ask the node ports of each network's service
// near-port, at each node, and the other networks' pods those of their own node.
func localNodePortsReached(ctx context.Context, w *World) (string, error) {
	external := w.Lab.External()
	pods, err := w.perNode()
	if err != nil {
		return "", err
	}
	answers := 0
	for _, s := range storyServices {
		for _, n := range w.tenantNodes() {
			list, err := w.nodePortsOf(ctx, s.namespace, "near-port", addrs(n))
			if err != nil {
				return "", err
			}
			near := w.near(s.namespace, s.tenant, n)
			count, err := answered(w.fromNode(ctx, external), list, near, len(near))
			answers += count
			if err != nil {
				return "", fmt.Errorf("the external machine to node ports of namespace %s on %s: %w", s.namespace, n.Name, err)
			}
			clients := map[string]string{} // by target, the client's address
			for _, target := range list {
				_, address, _ := strings.Cut(target, ":")
				at, err := netip.ParseAddrPort(address)
				if err != nil {
					return "", fmt.Errorf("node port of namespace %s: %w", s.namespace, err)
				}
				own, ok := network.FirstOfFamily(addrs(external), at.Addr())
				if !ok {
					return "", fmt.Errorf("the external machine has no address of the IP family of %s", at.Addr())
				}
				clients["client-"+target] = own.String()
			}
			if _, err := reach(w.fromNode(ctx, external), clients); err != nil {
				return "", fmt.Errorf("what the endpoints of namespace %s see on %s: %w", s.namespace, n.Name, err)
			}
			answers += len(clients)
			for _, p := range pods {
				if p.Node != n.Name || p.Tenant == s.tenant {
					continue
				}
				count, err := answered(w.fromPod(ctx, p), list, near, 1)
				answers += count
				if err != nil {
					return "", fmt.Errorf("%s to node ports of namespace %s on its node %s: %w", p.Name, s.namespace, n.Name, err)
				}
			}
		}
	}
	return fmt.Sprintf("%d answers", answers), nil
}

// overlayMTU is the MTU of pods on networks with an overlay.
const overlayMTU = 1400

// fragmentsPass has pods of each network send datagrams to the external machine that no link carries in one
// packet, and the machine answer with as large ones. Its fragments have to fit into the pods' MTU, which nobody
// tells it: it has a route with that MTU, as docs/networks.md says.
func fragmentsPass(ctx context.Context, w *World) (string, error) {
	const listenPort = 8072
	stop, err := w.serveOnMachines(ctx, listenPort)
	if err != nil {
		return "", err
	}
	defer stop()
	external := w.Lab.External()
	pods, err := w.perNode()
	if err != nil {
		return "", err
	}
	defer func() {
		for _, n := range w.Lab.Nodes() {
			for _, a := range addrs(n) {
				_, _ = external.Run(context.WithoutCancel(ctx), "ip route del "+a.String())
			}
		}
	}()
	for _, n := range w.Lab.Nodes() {
		for _, a := range addrs(n) {
			script := fmt.Sprintf(`set -e; dev=$(ip -o route get %[1]s | sed 's/.* dev \([^ ]*\).*/\1/'); ip route replace %[1]s dev $dev mtu %[2]d`, a, overlayMTU)
			if err := external.Script(ctx, script); err != nil {
				return "", fmt.Errorf("give the route to %s the pods' MTU: %w", a, err)
			}
		}
	}
	want := map[string]string{}
	for _, a := range addrs(external) {
		want["large-udp:"+netip.AddrPortFrom(a, listenPort).String()] = external.Name
	}
	return fmt.Sprintf("%d pods, %d targets each", len(pods), len(want)), each(pods, func(p *pod) error {
		if _, err := w.reach(ctx, p, "", want); err != nil {
			return fmt.Errorf("from %s on %s: %w", p.Name, p.Node, err)
		}
		return nil
	})
}

// near returns those of a namespace's endpoints that are on a node.
func (w *World) near(namespace, tenant string, n *lab.Node) (names []string) {
	for _, p := range w.endpoints(namespace, tenant) {
		if p.Node == n.Name {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return names
}

// portTargets are TCP and UDP to port 80 of each address.
func portTargets(list []netip.Addr) (out []string) {
	for _, a := range list {
		at := netip.AddrPortFrom(a, 80).String()
		out = append(out, "tcp:"+at, "udp:"+at)
	}
	return out
}

// oldestBalancer returns the namespace and tenant of the oldest service balancer. Of those of
// one second, the first by name counts.
func (w *World) oldestBalancer(ctx context.Context) (namespace, tenant string, err error) {
	services, err := w.Lab.Client().CoreV1().Services("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=balancer"})
	if err != nil {
		return "", "", err
	}
	if len(services.Items) != len(storyServices) {
		return "", "", fmt.Errorf("%d services balancer, want %d", len(services.Items), len(storyServices))
	}
	oldest := services.Items[0]
	for _, s := range services.Items[1:] {
		if c := s.CreationTimestamp.Compare(oldest.CreationTimestamp.Time); c < 0 || c == 0 && strings.Compare(s.Namespace, oldest.Namespace) < 0 {
			oldest = s
		}
	}
	for _, s := range storyServices {
		if s.namespace == oldest.Namespace {
			return s.namespace, s.tenant, nil
		}
	}
	return "", "", errors.New("the oldest service balancer is not the story's: " + oldest.Namespace)
}
