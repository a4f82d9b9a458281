// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
	"net/netip"
	"strconv"

	"github.com/google/uuid"
	"github.com/ovn-kubernetes/libovsdb/model"
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
	b.add(Neutral, nbdb.LogicalRouterTable, name, &nbdb.LogicalRouter{Name: name, Options: options}, nil, extra...)
}

// switchPort adds m as a port with that name to a switch.
func (b *builder) switchPort(sw, name string, m *nbdb.LogicalSwitchPort, extra ...string) {
	m.Name = name
	b.add(Neutral, nbdb.LogicalSwitchPortTable, name, m, []Ref{b.ref(nbdb.LogicalSwitchTable, sw, "ports")}, extra...)
}

// link is a connection of a router and a switch.
type link struct {
	router, routerPort string
	addrs              []netip.Prefix
	mac                string // empty: derived from addrs
	sw, switchPort     string
	key                int // requested tunnel key of the switch port; 0: northd chooses
	options            map[string]string
}

func (b *builder) connect(l link) {
	if l.mac == "" {
		l.mac = network.MACOf(l.addrs)
	}
	b.add(Neutral, nbdb.LogicalRouterPortTable, l.routerPort, &nbdb.LogicalRouterPort{
		Name: l.routerPort, MAC: l.mac, Networks: prefixStrings(l.addrs),
	}, []Ref{b.ref(nbdb.LogicalRouterTable, l.router, "ports")})
	options := map[string]string{"router-port": l.routerPort}
	for k, v := range l.options {
		options[k] = v
	}
	if l.key != 0 {
		options["requested-tnl-key"] = strconv.Itoa(l.key)
	}
	b.switchPort(l.sw, l.switchPort, &nbdb.LogicalSwitchPort{Type: "router", Addresses: []string{"router"}, Options: options})
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

// snat adds a source NAT to a router; match and port may be empty.
func (b *builder) snat(router string, inside netip.Prefix, outside netip.Addr, port, match string) {
	id := router + " snat " + inside.String() + " " + outside.String()
	n := &nbdb.NAT{Type: nbdb.NATTypeSNAT, LogicalIP: inside.String(), ExternalIP: outside.String(), Match: match}
	if inside.IsSingleIP() {
		n.LogicalIP = inside.Addr().String()
	}
	if port != "" {
		n.LogicalPort = ptr(port)
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

// defaultRoute returns 0.0.0.0/0 or ::/0, by a's IP family.
func defaultRoute(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func ptr[T any](v T) *T { return &v }
