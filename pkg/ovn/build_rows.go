// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/ovn-kubernetes/libovsdb/model"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// Rows that more than one topology has.

// add adds a row. Its external_ids get our marks and extra, a list of key-value
// pairs.
func (b *builder) add(effect Effect, table, id string, m model.Model, in []Ref, extra ...string) {
	if f := field(m, "external_ids"); f.IsValid() {
		ids := f.Interface().(map[string]string)
		if ids == nil {
			ids = map[string]string{}
		}
		ids[markOwner], ids[markNetwork], ids[markUnit], ids[markID] = ownerValue, b.net.Name, b.unit.mark(b.net.Name), id
		if effect != Neutral {
			ids[markEffect] = string(effect)
		}
		if table == nbdb.LogicalSwitchTable || table == nbdb.LogicalRouterTable {
			ids[markNetworkID] = strconv.Itoa(b.net.ID)
		}
		for i := 0; i+1 < len(extra); i += 2 {
			ids[extra[i]] = extra[i+1]
		}
		setField(m, "external_ids", ids)
	}
	b.rows = append(b.rows, Row{Table: table, ID: id, Model: m, In: in, UUID: b.uuid(table, id), Unit: b.unit.mark(b.net.Name), Effect: effect})
}

// ref returns the column of one of the network's rows.
func (b *builder) ref(table, id, column string) Ref {
	return Ref{Table: table, ID: id, Column: column, UUID: b.uuid(table, id)}
}

// uuid returns the UUID of one of the network's rows.
func (b *builder) uuid(table, id string) string {
	return uuid.NewSHA1(b.space, []byte(table+"/"+id)).String()
}

// symbol returns a name for a row of a table whose rows' names OVN's matches can
// have: the network's name may have characters that such names cannot.
func (b *builder) symbol(table, id string) string {
	return "bulkhead_" + strings.ReplaceAll(b.uuid(table, id), "-", "")
}

// uuidSpace returns the name space of the UUIDs of a network's rows (RFC 9562 § 5.5).
// A deleted network's successor of the same name has another one: northd keys
// datapaths by these UUIDs, and the new network must not inherit MAC bindings.
func uuidSpace(net network.Network) uuid.UUID {
	return uuid.NewSHA1(bulkheadSpace, []byte(net.OwnerUID+"/"+strconv.Itoa(net.ID)+"/"+net.Name))
}

// bulkheadSpace is the name space of uuidSpace; random.
var bulkheadSpace = uuid.MustParse("0e86b8e2-ac66-4237-9984-f70873f249fc")

// router adds a logical router.
func (b *builder) router(name string, options map[string]string, extra ...string) {
	extra = append(extra, markTopology, string(b.net.Topology), markRole, string(b.net.Role))
	b.add(Neutral, nbdb.LogicalRouterTable, name, &nbdb.LogicalRouter{Name: name, Options: options, Copp: b.limitsOf(name)}, nil, extra...)
}

// logicalSwitch adds a logical switch.
func (b *builder) logicalSwitch(name string, otherConfig map[string]string) {
	b.add(Neutral, nbdb.LogicalSwitchTable, name, &nbdb.LogicalSwitch{Name: name, OtherConfig: otherConfig, Copp: b.limitsOf(name)}, nil)
}

// switchPort adds m as a port with that name to a switch.
func (b *builder) switchPort(sw, name string, m *nbdb.LogicalSwitchPort, extra ...string) {
	b.groupPort(sw, name, m, nil, extra...)
}

// groupPort is switchPort for a port that is also in port groups.
func (b *builder) groupPort(sw, name string, m *nbdb.LogicalSwitchPort, groups []Ref, extra ...string) {
	m.Name = name
	in := append(slices.Clone(groups), b.ref(nbdb.LogicalSwitchTable, sw, "ports"))
	b.add(Neutral, nbdb.LogicalSwitchPortTable, name, m, in, extra...)
}

// link is a connection of a router and a switch.
type link struct {
	router, routerPort string
	addrs              []netip.Prefix
	mac                string // empty: derived from addrs
	sw, switchPort     string
	key                int               // requested tunnel key of the switch port; 0: northd chooses
	options            map[string]string // of the switch port
	groups             []Ref             // port groups of the switch port
	ra                 map[string]string // router advertisements
}

func (b *builder) connect(l link) {
	if l.mac == "" {
		l.mac = network.MACOf(l.addrs)
	}
	b.add(Neutral, nbdb.LogicalRouterPortTable, l.routerPort, &nbdb.LogicalRouterPort{
		Name: l.routerPort, MAC: l.mac, Networks: prefixStrings(l.addrs), Ipv6RaConfigs: l.ra,
	}, []Ref{b.ref(nbdb.LogicalRouterTable, l.router, "ports")})
	options := keyOption(l.key)
	options["router-port"] = l.routerPort
	maps.Copy(options, l.options)
	b.groupPort(l.sw, l.switchPort, &nbdb.LogicalSwitchPort{Type: "router", Addresses: []string{"router"}, Options: options}, l.groups)
}

// peerPort adds a port to a router that is connected with a port of another router.
// peer is empty if that router is in another zone.
func (b *builder) peerPort(router, name, peer string, addrs []netip.Prefix, options map[string]string, extra ...string) {
	m := &nbdb.LogicalRouterPort{Name: name, MAC: network.MACOf(addrs), Networks: prefixStrings(addrs), Options: options}
	if peer != "" {
		m.Peer = ptr(peer)
	}
	b.add(Neutral, nbdb.LogicalRouterPortTable, name, m, []Ref{b.ref(nbdb.LogicalRouterTable, router, "ports")}, extra...)
}

// bindRouterPort binds a port of a router that spans zones to this node's chassis.
// NAT on the router needs one such port.
func (b *builder) bindRouterPort(port string) {
	name := port + "-" + b.node.Chassis
	b.add(Neutral, nbdb.GatewayChassisTable, name, &nbdb.GatewayChassis{Name: name, ChassisName: b.node.Chassis, Priority: 1},
		[]Ref{b.ref(nbdb.LogicalRouterPortTable, port, "gateway_chassis")})
}

// routerOptions returns the options of the router that is the pods' gateway.
func (b *builder) routerOptions() map[string]string {
	options := map[string]string{
		// Otherwise every router of every network would learn a MAC binding for
		// every host of the uplink. The neighbours that a router needs are rows.
		"always_learn_from_arp_request": "false",
	}
	if b.localGateway() && b.net.IsPrimary() {
		// The kernel routes both directions through this router. Without
		// committing all connections, replies to SNATed ones would be lost.
		options["ct-commit-all"] = "true"
	}
	return options
}

// managementPort adds the logical port of the node's own interface on the network.
// key is its requested tunnel key; 0: northd chooses.
func (b *builder) managementPort(sw string, key int) {
	mgmt := b.management()
	b.switchPort(sw, b.net.ManagementLSP(b.node.Name), &nbdb.LogicalSwitchPort{
		Addresses: []string{addressLine(network.MACOf(mgmt), mgmt)}, Options: keyOption(key),
	}, markNode, b.node.Name)
}

// interconnSwitch adds a switch that spans the zones. Its key is a function of the
// network's id, so all zones use the same key without an allocator. more is added to its
// options.
func (b *builder) interconnSwitch(name string, more map[string]string) {
	options := keyOption(b.net.TunnelKey())
	maps.Copy(options, more)
	options["interconn-ts"] = name
	b.logicalSwitch(name, options)
}

// pod adds the logical port of a pod of this node.
func (b *builder) pod(sw string, pod PodPort) {
	name := network.PodLSP(pod.NADKey, pod.Namespace, pod.Pod)
	line := portAddresses(pod.MAC, pod.IPs)
	in := []Ref{b.ref(nbdb.LogicalSwitchTable, sw, "ports")}
	if pod.Locked {
		// In one operation with the port, so that it never exists unlocked.
		locked := b.ref(nbdb.PortGroupTable, LockedPortGroup, "ports")
		locked.Closes = true
		in = append([]Ref{locked}, in...)
	}
	options := keyOption(pod.TunnelKey)
	// Keeps ovn-controller from binding an interface of a deleted pod of the same
	// name.
	options["iface-id-ver"] = pod.UID
	dhcpv4, dhcpv6 := b.dhcp(name, pod)
	b.add(portEffect(pod.Disabled), nbdb.LogicalSwitchPortTable, name, &nbdb.LogicalSwitchPort{
		Name: name, Addresses: activeAddresses(line, pod.Disabled), PortSecurity: []string{line}, Enabled: portEnabled(pod.Disabled), Options: options,
		Dhcpv4Options: dhcpv4, Dhcpv6Options: dhcpv6,
	}, in, markNamespace, pod.Namespace, markPod, pod.Pod, markPodUID, pod.UID, markNAD, pod.NADKey, markRole, string(b.net.Role))
	if pod.Locked && len(pod.Open) > 0 {
		b.openPorts(name, pod.Open)
	}
	if pod.Ingress && !pod.Locked {
		b.ingress(pod)
	}
	if len(pod.HostPorts) > 0 && !pod.Locked && !pod.Disabled && b.primary() && b.hasGateway() {
		b.hostPorts(pod)
	}
}

// portAddresses returns a pod port's "MAC IP IP". Without IPs, on networks without
// subnets, it is the MAC: pods assign addresses themselves, and port security only
// prevents other MACs.
func portAddresses(mac string, ips []netip.Prefix) string {
	if mac == "" {
		mac = network.MACOf(ips)
	}
	return addressLine(mac, ips)
}

// portEffect returns the effect of a pod's port: a disabled port lets nothing
// through. So of a live migration's two ports one is disabled before the other is
// enabled.
func portEffect(disabled bool) Effect {
	if disabled {
		return Neutral
	}
	return Opens
}

// activeAddresses returns the column addresses of a pod's port. A disabled port has
// none: OVN would drop what its node sends to them, although another port, or a host
// behind the localnet port, has them now. When they come back to a port of a Localnet
// network, ovn-controller announces them to the physical network.
func activeAddresses(line string, disabled bool) []string {
	if disabled {
		return nil
	}
	return []string{line}
}

// portEnabled returns the column enabled of a pod's port: nil is true.
func portEnabled(disabled bool) *bool {
	if disabled {
		return ptr(false)
	}
	return nil
}

// keyOption returns the option that requests a tunnel key, if it is not 0.
func keyOption(key int) map[string]string {
	options := map[string]string{}
	if key != 0 {
		options["requested-tnl-key"] = strconv.Itoa(key)
	}
	return options
}

// Policies of a static route: what its prefix is compared with.
const (
	srcIP = "src-ip"
	dstIP = "dst-ip"
)

// route adds a static route to a router. port may be empty.
func (b *builder) route(router, policy string, dest netip.Prefix, via netip.Addr, port string, extra ...string) {
	id := router + " " + policy + " " + dest.String() + " " + via.String()
	r := &nbdb.LogicalRouterStaticRoute{IPPrefix: dest.String(), Nexthop: via.String(), Policy: ptr(policy)}
	if port != "" {
		r.OutputPort = ptr(port)
	}
	b.add(Opens, nbdb.LogicalRouterStaticRouteTable, id, r, []Ref{b.ref(nbdb.LogicalRouterTable, router, "static_routes")}, extra...)
}

// discard adds a route that drops packets.
func (b *builder) discard(router string, dest netip.Prefix) {
	b.add(Closes, nbdb.LogicalRouterStaticRouteTable, router+" discard "+dest.String(),
		&nbdb.LogicalRouterStaticRoute{IPPrefix: dest.String(), Nexthop: "discard", Policy: ptr(dstIP)},
		[]Ref{b.ref(nbdb.LogicalRouterTable, router, "static_routes")})
}

// routesToPeer adds routes by destination to another node. The next hop may be of another IP
// family.
func (b *builder) routesToPeer(router string, dests []netip.Prefix, via netip.Addr, peer network.Node) {
	for _, dest := range dests {
		b.route(router, dstIP, dest, via, "", markPeer, peer.Name)
	}
}

// natScope is what a NAT rule applies to.
type natScope struct {
	match  string // may be empty
	exempt string // UUID of an address set, or empty
}

// snat adds a source NAT to a router; port may be empty.
func (b *builder) snat(router string, inside netip.Prefix, outside netip.Addr, port string, scope natScope) {
	id := router + " snat " + inside.String() + " " + outside.String()
	n := &nbdb.NAT{Type: nbdb.NATTypeSNAT, LogicalIP: inside.String(), ExternalIP: outside.String(), ExternalPortRange: network.EgressPorts, Match: scope.match}
	if inside.IsSingleIP() {
		n.LogicalIP = inside.Addr().String()
	}
	if port != "" {
		n.LogicalPort = ptr(port)
	}
	if scope.exempt != "" {
		n.ExemptedExtIPs = ptr(scope.exempt)
	}
	b.add(Neutral, nbdb.NATTable, id, n, []Ref{b.ref(nbdb.LogicalRouterTable, router, "nat")})
}

func mapPrefixes(ps []netip.Prefix, f func(netip.Prefix) netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, len(ps))
	for i, p := range ps {
		out[i] = f(p)
	}
	return out
}

// addrOfFamily returns the address in ps of p's IP family.
func addrOfFamily(ps []netip.Prefix, p netip.Addr) (netip.Addr, bool) {
	x, ok := network.FirstOfFamily(ps, p)
	return x.Addr(), ok
}

func prefixStrings(ps []netip.Prefix) []string {
	out := make([]string, len(ps))
	for i, p := range ps {
		out[i] = p.String()
	}
	return out
}

// addressLine returns a logical switch port's "MAC IP IP".
func addressLine(mac string, ps []netip.Prefix) string {
	for _, p := range ps {
		mac += " " + p.Addr().String()
	}
	return mac
}

// single returns the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func singles(ps []netip.Prefix) []netip.Prefix {
	return mapPrefixes(ps, func(p netip.Prefix) netip.Prefix { return single(p.Addr()) })
}

// defaultRoute returns 0.0.0.0/0 or ::/0, by a's IP family.
func defaultRoute(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func ptr[T any](v T) *T { return &v }
