// SPDX-License-Identifier: Apache-2.0

// Package firewall reconciles the nftables table "inet bulkhead", the second
// line of defence behind the eBPF programs and the VRFs. The whole table is
// ours; the package changes nothing outside it. The number of rules is constant:
// addresses are in sets, whose lookup time does not depend on their size.
//
// The table rejects or drops packets
//
//   - from this node to the default-network address of a local pod with a
//     primary network, unless kubelet's socket sends them or the pod has opened the port;
//   - from a pod in the host's network into a network, unless the socket has
//     that network's mark, which it gets at creation and cannot change;
//   - that the kernel would forward into or out of a network, except in local
//     gateway mode, where the kernel is the gateway, and except to the services that
//     all networks reach, and back;
//   - that the kernel would forward out of a network with the masquerade address of another;
//   - from a masquerade address, which networks' forwarded packets have, if a local
//     process sends it out of the node or a tenant's process sends it anywhere;
//   - from a tenant's process into its network, if it opens a connection from an address that is not the node's;
//   - from a tenant's process in the host's network to a service's or a gateway router's
//     address through the external bridge: only tenants' pods may use the bridge;
//   - of neighbour discovery, and answers to DHCP clients, if a tenant's process writes them;
//   - from any pod in the host's network to a gateway router, unless it sends to a node port or
//     a host port, or answers;
//   - to the overlay's port from a network or over loopback, and those that the node would forward to it;
//   - from a pod's interface that is not on the bridge: the host's IP stack would take them;
//   - that the node would forward, with a masquerade address, from an interface that is neither a network's nor the external bridge;
//   - from pods of ingress namespaces into a network, except to its services' cluster IPs;
//   - in local gateway mode, between advertised networks, from the node to one, from pods to
//     the BGP port of hosts on the node's link, and from what is outside in a network's own
//     VRF to anything but the network.
//
// It redirects what local processes send to node ports, and in local gateway mode also what
// comes from outside, to the gateway router of the service's network, and what is sent to pods'
// host ports to that of the pod's network. In local gateway mode it redirects
// packets from outside to services with external traffic policy Local to the network's
// management port, and gives what networks send out of the node the node's address.
//
// No rule that accepts matches a packet's own mark: a sender with CAP_NET_RAW
// can choose it for each packet. The rules match sockets' marks and cgroups.
//
// The table also clears a tenant's packet mark where the packet enters OVN. The
// kernel routes a tunnel's outer packet by the mark of the inner one, and would
// use the tenant's table.
package firewall

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Table is the name of the table. Everything in it is ours.
const Table = "bulkhead"

// Names inside the table.
const (
	SetLocked4 = "locked4"
	SetLocked6 = "locked6"
	// SetOwn holds pairs of a management port and the mark of its network.
	SetOwn = "own"
	// SetServices4 and SetServices6 hold address, protocol and port of the services
	// that all networks reach.
	SetServices4 = "services4"
	SetServices6 = "services6"
	// SetProcesses4 and SetProcesses6 hold pairs of a network's mark and the node's address on the network, which
	// the network's processes have in the VRF.
	SetProcesses4 = "processes4"
	SetProcesses6 = "processes6"
	// SetSources4 and SetSources6 hold pairs of a management port and its network's masquerade address.
	SetSources4 = "sources4"
	SetSources6 = "sources6"
	// SetOpen4 and SetOpen6 hold address, protocol and port of the open ports of locked
	// addresses, SetOpenICMP4 and SetOpenICMP6 the addresses that answer echo requests.
	SetOpen4     = "open4"
	SetOpen6     = "open6"
	SetOpenICMP4 = "openicmp4"
	SetOpenICMP6 = "openicmp6"
	// MapNodePorts4 and MapNodePorts6 map protocol and node port to the masquerade address of
	// the network's gateway router.
	MapNodePorts4 = "nodeports4"
	MapNodePorts6 = "nodeports6"
	// MapLocalPorts4 and MapLocalPorts6 map address, protocol and port of what services with
	// external traffic policy Local publish to the network's masquerade address on its
	// management port, and the service's node port. They are empty in shared gateway mode.
	MapLocalPorts4 = "localports4"
	MapLocalPorts6 = "localports6"
	// MapHostPorts4 and MapHostPorts6 map address, protocol and port of pods' host ports to the
	// masquerade address at which the gateway router of the pod's network has the port.
	MapHostPorts4 = "hostports4"
	MapHostPorts6 = "hostports6"
	// The rest is for advertised networks, and empty in shared gateway mode. SetDirect4 and SetDirect6
	// hold management port, MAC address of the network's router, and the node's subnet, whose pods send with
	// their own addresses. SetRouted4 and SetRouted6 hold management port and subnets.
	SetDirect4 = "direct4"
	SetDirect6 = "direct6"
	SetRouted4 = "routed4"
	SetRouted6 = "routed6"
	// SetOwnVRF holds the management ports of networks that BGP advertises into their own VRF only,
	// SetVRFs the possible names of their VRF devices.
	SetOwnVRF = "ownvrf"
	SetVRFs   = "vrfs"
	// SetPods4 and SetPods6 hold the subnets of this node's pods.
	SetPods4 = "pods4"
	SetPods6 = "pods6"
	// SetAdvertised4 and SetAdvertised6 hold the subnets of all networks that BGP announces in the nodes' default VRF,
	// without the addresses of the node and its routers. They are empty if isolation is loose.
	SetAdvertised4 = "advertised4"
	SetAdvertised6 = "advertised6"

	CounterProbeAllowed = "probe_allowed"
	CounterProbeRefused = "probe_refused"
	CounterCrossNetwork = "cross_network"
	CounterForeign      = "foreign_socket"
	CounterForwarded    = "forwarded"
	CounterTunnel       = "tunnel_port"
	CounterUnbridged    = "unbridged_pod"
	CounterPathError    = "forged_path_error"
	CounterServices     = "services"
	CounterNotLocal     = "not_local_source"

	chainOutput    = "output"
	chainFragments = "fragments"
	chainForged    = "forged"
	chainLocked    = "locked"
	chainNetworks  = "networks"
	chainForward   = "forward"
	chainInput     = "input"
	chainUnbridged = "unbridged"
	chainElsewhere = "elsewhere"
	chainUnmark    = "unmark"
	chainOut       = "out"
	chainRouted    = "out_routed"
	chainLocalNAT  = "nat_output"
	chainWireNAT   = "nat_prerouting"
	chainSourceNAT = "nat_postrouting"
)

// managementPorts matches every network's management port, including that of the
// cluster default network.
const managementPorts = `"ovn-k8s-mp*"`

// Inputs are Build's inputs.
type Inputs struct {
	// Locked are the default-network addresses of local pods with a primary
	// network.
	Locked []netip.Addr
	// Open are the open ports of locked addresses.
	Open []Port
	// Networks are this node's networks, without the cluster default network.
	Networks []network.Network
	// Default is the cluster default network.
	Default network.Network
	// NodeID is this node's; 0: it has none yet.
	NodeID int
	// Loose: routers outside the cluster decide which packets pass between advertised networks, and
	// between them and the node.
	Loose bool
	// PodRoots are the cgroups that contain all pods; empty if nft cannot match
	// sockets' cgroups.
	PodRoots []Cgroup
	// Mode is the gateway mode: in local mode the kernel forwards between
	// networks and the outside.
	Mode network.GatewayMode
	// Bridge is the external bridge; "": none.
	Bridge string
	// Services are what all networks reach, of the cluster default network.
	Services []Port
	// Plan has the cluster's ranges; those of services and the masquerade subnets are used.
	Plan network.Plan
	// Node are the node's addresses, at which NodePorts are reached, Links what is on its link, and Reserved the node's
	// addresses and its routers', which isolation does not cut off.
	Node      []netip.Addr
	Links     []netip.Prefix
	Reserved  []netip.Addr
	NodePorts []NodePort
	// LocalPorts are of services with external traffic policy Local.
	LocalPorts []LocalPort
	// HostPorts are pods', without those on which the node itself has a server.
	HostPorts []HostPort
	Ingress   *Ingress // nil: there are no ingress namespaces
	Kubelet
}

// LocalPort is a port of a service that packets from outside the cluster reach with their
// client's address, in local gateway mode.
type LocalPort struct {
	Port
	To netip.AddrPort // masquerade address of the network's management port, and node port
}

// NodePort is a node port of a network's service.
type NodePort struct {
	Protocol string
	Port     uint16
	Router   netip.Addr // masquerade address of the network's gateway router
}

// Port is a port of an address, of a service or of a pod.
type Port struct {
	Addr     netip.Addr
	Protocol string // tcp, udp or sctp; for Inputs.Open also icmp: echo requests
	Port     uint16 // 0 for icmp
}

// Cgroup is a cgroup v2 directory: its path below the mount, without a leading
// slash, and its current id. nft stores the id, so that a recreated directory
// needs a new rule.
type Cgroup struct {
	Path string
	ID   uint64
}

// Kubelet identifies kubelet's packets.
type Kubelet struct {
	// Mark is the mark that eBPF sets on kubelet's sockets; 0 if the programs
	// are not loaded. Cgroup is then the fallback. Without either, nothing on
	// the node reaches locked addresses, not even kubelet's probes.
	Mark   uint32
	Cgroup Cgroup
}

// State is the table's desired or actual content.
type State struct {
	Chains   []Chain
	Counters []string
	Sets     map[string][]string // elements in nft's format, parts joined by " . ", sorted; in maps with " : " and the value
}

// Chain is one chain. Hook is empty for a chain that other chains jump to.
type Chain struct {
	Name  string
	Hook  string
	NAT   bool // translates sources (hook postrouting) or destinations (other hooks); false: filters
	Early bool // before conntrack, which assembles fragments
	Rules []Rule
}

// Rule is one rule. nft does not return a rule's text as it was written, so the
// comment contains a digest of the text.
type Rule struct{ Text, Comment string }

func rule(name string, parts ...string) Rule {
	text := strings.Join(parts, " ")
	sum := sha256.Sum256([]byte(text))
	return Rule{Text: text, Comment: name + " " + hex.EncodeToString(sum[:4])}
}

// unmark removes Bulkhead's part of a packet's mark.
var unmark = fmt.Sprintf("meta mark set meta mark & %#x", ^network.MarkMask)

// Build returns the desired state. The number of chains and rules does not
// depend on the number of networks and pods.
func Build(in Inputs) State {
	st := State{
		Counters: []string{CounterCrossNetwork, CounterForeign, CounterPathError, CounterForwarded, CounterIngress, CounterNotLocal, CounterProbeAllowed, CounterProbeRefused, CounterServices, CounterTunnel, CounterUnbridged},
		Sets:     make(map[string][]string, len(setTypes)),
	}
	for name := range setTypes {
		st.Sets[name] = nil
	}
	in.ingressElements(st.Sets)
	if in.Mode == network.LocalGateway {
		in.advertisedElements(st.Sets)
		for _, p := range in.LocalPorts {
			set := ofAddress(p.Addr, MapLocalPorts4, MapLocalPorts6)
			st.Sets[set] = append(st.Sets[set], fmt.Sprintf("%s . %s . %d : %s . %d", p.Addr, p.Protocol, p.Port.Port, p.To.Addr(), p.To.Port()))
		}
	}
	st.Sets[MapHostPorts4], st.Sets[MapHostPorts6] = in.hostPortElements()
	for _, p := range in.NodePorts {
		set := ofAddress(p.Router, MapNodePorts4, MapNodePorts6)
		st.Sets[set] = append(st.Sets[set], fmt.Sprintf("%s . %d : %s", p.Protocol, p.Port, p.Router))
	}
	for _, s := range in.Services {
		set := ofAddress(s.Addr, SetServices4, SetServices6)
		st.Sets[set] = append(st.Sets[set], fmt.Sprintf("%s . %s . %d", s.Addr, s.Protocol, s.Port))
	}
	for _, p := range in.Open {
		set, element := ofAddress(p.Addr, SetOpen4, SetOpen6), fmt.Sprintf("%s . %s . %d", p.Addr, p.Protocol, p.Port)
		if p.Protocol == "icmp" {
			set, element = ofAddress(p.Addr, SetOpenICMP4, SetOpenICMP6), p.Addr.String()
		}
		st.Sets[set] = append(st.Sets[set], element)
	}
	for _, a := range in.Locked {
		a = a.Unmap()
		set := ofAddress(a, SetLocked4, SetLocked6)
		st.Sets[set] = append(st.Sets[set], a.String())
	}
	in.networkElements(st.Sets)
	for name, elements := range st.Sets {
		slices.Sort(elements)
		st.Sets[name] = slices.Compact(elements)
	}
	st.Chains = []Chain{
		in.networksChain(),
		in.lockedChain(),
		in.forgedChain(),
		{Name: chainOutput, Hook: "output", Rules: slices.Concat(in.tenantsNewConnections(), in.tenantsNeighbours(), []Rule{
			rule("locked pods, IPv4", "ip daddr @"+SetLocked4, "goto", chainLocked),
			rule("locked pods, IPv6", "ip6 daddr @"+SetLocked6, "goto", chainLocked),
			rule("networks", "oifname", managementPorts, "goto", chainNetworks),
		}, in.outOfNode())},
		{Name: chainFragments, Hook: "output", Early: true, Rules: in.fragments()},
		in.forwardChain(),
		inputChain(),
		unbridgedChain(),
		in.elsewhereChain(),
		{Name: chainLocalNAT, Hook: "output", NAT: true, Rules: slices.Concat(in.toNodePorts(), in.toHostPorts(true))},
		{Name: chainUnmark, Hook: "postrouting", Rules: slices.Concat(in.unmarkNetworks(), in.unmarkIngress())},
	}
	st.Chains = append(st.Chains, in.ingressChain()...)
	wire, source := in.toHostPorts(false), in.fromHostPorts()
	if in.Mode == network.LocalGateway {
		wire, source = slices.Concat(in.toLocalPorts(), in.toNodePorts(), wire), in.sourceNAT()
		st.Chains = append(st.Chains, in.outChains()...)
	}
	source = slices.Concat(in.ingressSource(), source)
	st.Chains = append(st.Chains, Chain{Name: chainWireNAT, Hook: "prerouting", NAT: true, Rules: wire}, Chain{Name: chainSourceNAT, Hook: "postrouting", NAT: true, Rules: source})
	return st
}

// unmarkNetworks clears networks' marks on packets into OVN, which keeps them: the kernel would route the
// tunnel's packet by them.
func (in Inputs) unmarkNetworks() []Rule {
	marked := []string{fmt.Sprintf("meta mark %#x-%#x", network.FirstPacketMark, network.LastPacketMark), unmark}
	rules := []Rule{rule("clear a network's mark", append([]string{"oifname", managementPorts}, marked...)...)}
	if in.Bridge != "" {
		rules = append(rules, rule("clear a network's mark, bridge", append([]string{fmt.Sprintf("oifname %q", in.Bridge)}, marked...)...))
	}
	return rules
}

// toNodePorts redirects packets for node ports to the network's gateway router.
func (in Inputs) toNodePorts() []Rule {
	var rules []Rule
	for _, f := range []struct{ ip, ports string }{{"ip", MapNodePorts4}, {"ip6", MapNodePorts6}} {
		var own []string
		for _, a := range in.Node {
			if ipOf(netip.PrefixFrom(a, 0)) == f.ip {
				own = append(own, a.String())
			}
		}
		if slices.Sort(own); len(own) > 0 {
			rules = append(rules, rule("node ports, "+f.ip, f.ip, "daddr {", strings.Join(own, ", "), "} dnat", f.ip, "to meta l4proto . th dport map @"+f.ports))
		}
	}
	return rules
}

// lockedChain filters packets to locked addresses.
func (in Inputs) lockedChain() Chain {
	c := Chain{Name: chainLocked, Rules: []Rule{
		// A tenant's processes do not reach them: the chain of networks decides.
		rule("open ports, IPv4", "ip daddr . meta l4proto . th dport @"+SetOpen4, "goto", chainNetworks),
		rule("open ports, IPv6", "ip6 daddr . meta l4proto . th dport @"+SetOpen6, "goto", chainNetworks),
		rule("open to echo requests, IPv4", "icmp type echo-request ip daddr @"+SetOpenICMP4, "goto", chainNetworks),
		rule("open to echo requests, IPv6", "icmpv6 type echo-request ip6 daddr @"+SetOpenICMP6, "goto", chainNetworks),
	}}
	reject := func(senders string, match ...string) {
		// Reject, not drop: the sender gets an error at once.
		c.Rules = append(c.Rules,
			rule(senders+", TCP", strings.Join(append(match, "meta l4proto tcp"), " "), "counter name", CounterProbeRefused, "reject with tcp reset"),
			rule(senders, strings.TrimSpace(strings.Join(match, " ")+" counter name"), CounterProbeRefused, "reject with icmpx type admin-prohibited"))
	}
	for _, g := range in.PodRoots {
		if m, ok := g.match(); ok {
			reject("pods"+g.suffix(), m) // whatever their sockets' mark
		}
	}
	if allow, ok := in.allow(); ok {
		c.Rules = append(c.Rules, allow)
	}
	// Replies to connections from such a pod to the node; OVN filters those.
	// The kernel finds the pod's MAC address, and answers the pod's search for the node's: conntrack does not track that.
	c.Rules = append(c.Rules, rule("replies", "ct state established,related accept"),
		rule("neighbour discovery", "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept"))
	reject("other senders")
	return c
}

// networksChain filters packets into a network through its management port.
func (in Inputs) networksChain() Chain {
	c := Chain{Name: chainNetworks}
	if len(in.PodRoots) == 0 {
		return c
	}
	c.Rules = append(c.Rules, rule("the network's own sockets", "oifname . socket mark @"+SetOwn, "accept"))
	c.Rules = append(c.Rules, in.ingressSockets()...)
	c.Rules = append(c.Rules, rule("tenantless pods to the default network", "oifname", fmt.Sprintf("%q", in.Default.ManagementPort()), notOfTenants, "accept"))
	for _, g := range in.PodRoots {
		if m, ok := g.match(); ok {
			c.Rules = append(c.Rules, rule("other pods"+g.suffix(), m, "counter name", CounterForeign, "drop"))
		}
	}
	return c
}

// toServices accepts what networks send to the services that all networks reach, and
// the replies. Their source must be the network's masquerade address, which OVN puts in place
// of the pod's. A packet that a pod sends to the management port past OVN's router has another
// source; so may one that a process with CAP_NET_RAW sends into the network through that port.
func (in Inputs) toServices() []Rule {
	if in.Bridge == "" {
		return nil
	}
	bridge := fmt.Sprintf("oifname %q", in.Bridge)
	var rules []Rule
	for _, ip := range families {
		from := bridge + " meta sdifname . " + ip + " saddr @" + ofFamily(ip, SetSources4, SetSources6)
		rules = append(rules,
			rule("services, "+ip, from, ip, "daddr . meta l4proto . th dport @"+ofFamily(ip, SetServices4, SetServices6), "counter name", CounterServices, "accept"),
			rule("related to services, "+ip, from, "ct state related accept"))
	}
	return append(rules, rule("replies of services", fmt.Sprintf("iifname %q oifname", in.Bridge), managementPorts, "ct state established,related accept"))
}

func ipOf(p netip.Prefix) string {
	if p.Addr().Is6() {
		return "ip6"
	}
	return "ip"
}

// forwardChain filters packets that the node forwards. Inside a VRF the input
// interface is the VRF device, and sdifname matches the port that received the
// packet. The cluster default network's port has no VRF.
func (in Inputs) forwardChain() Chain {
	c := Chain{Name: chainForward, Hook: "forward", Rules: slices.Concat(forwardedTunnel(), in.masqueradeElsewhere(), in.forwardIngress(), in.backIntoNetwork(),
		fromNetworks("between networks", "oifname", managementPorts, "counter name", CounterCrossNetwork, "drop"),
		[]Rule{rule("loopback", `iifname "lo" oifname`, managementPorts, "counter name", CounterForwarded, "drop")})}
	c.Rules = append(c.Rules, in.toServices()...)
	if in.Mode != network.LocalGateway {
		c.Rules = append(c.Rules, fromNetworks("out of a network", "counter name", CounterForwarded, "drop")...)
		c.Rules = append(c.Rules,
			rule("into a network", "oifname", managementPorts, "counter name", CounterForwarded, "drop"))
		return c
	}
	c.Rules = append(c.Rules, in.localForward()...)
	return c
}

// match returns the expression for sockets below the cgroup. ok is false for a
// path with characters that are special to nft.
func (g Cgroup) match() (expr string, ok bool) {
	if g.Path == "" || strings.ContainsAny(g.Path, "\"\\\n") {
		return "", false
	}
	return fmt.Sprintf("socket cgroupv2 level %d %q", strings.Count(g.Path, "/")+1, g.Path), true
}

// suffix makes the comment differ if the path now belongs to another cgroup.
func (g Cgroup) suffix() string { return fmt.Sprintf(" of cgroup %d", g.ID) }

// allow returns the rule that accepts kubelet's packets; ok is false if kubelet
// cannot be identified.
func (k Kubelet) allow() (r Rule, ok bool) {
	if k.Mark != 0 {
		return rule("kubelet", fmt.Sprintf("socket mark %#x", k.Mark), "counter name", CounterProbeAllowed, "accept"), true
	}
	if m, ok := k.Cgroup.match(); ok {
		return rule("kubelet"+k.Cgroup.suffix(), m, "counter name", CounterProbeAllowed, "accept"), true
	}
	return Rule{}, false
}
