// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"slices"
	"strings"
)

// Kind is the kind of a Unit.
type Kind string

const (
	KindTopology Kind = "topology" // routers, switches, the node's own ports, isolation; no name
	KindImport   Kind = "import"   // the uplink router's routes that BGP has learned; no name
	KindPeer     Kind = "peer"     // the port of and the routes to another node, by its name
	KindPod      Kind = "pod"      // the ports of a pod of this node, by its namespace/name
	KindRemote   Kind = "remote"   // the ports of a pod of another node, by its namespace/name
	KindService  Kind = "service"  // the load balancers of a service, by its namespace/name
	KindExposed  Kind = "exposed"  // the way to a service of the cluster default network, by its namespace/name
)

// Unit is a part of a network's rows that is read, compared and written on its own.
// An event affects the units that it names, and not the whole network.
type Unit struct {
	Kind Kind
	Name string
}

// wholeNetwork stands for all units in a report of a change.
var wholeNetwork = Unit{}

var topologyUnit, importUnit = Unit{Kind: KindTopology}, Unit{Kind: KindImport}

func peerUnit(node string) Unit { return Unit{KindPeer, node} }

func podUnit(key string) Unit { return Unit{KindPod, key} }

func remoteUnit(key string) Unit { return Unit{KindRemote, key} }

func serviceUnit(key string) Unit { return Unit{KindService, key} }

func exposedUnit(key string) Unit { return Unit{KindExposed, key} }

func (u Unit) String() string {
	if u.Name == "" {
		return string(u.Kind)
	}
	return string(u.Kind) + "/" + u.Name
}

// mark returns the value of markUnit in the unit's rows: unlike the unit, it is
// unique among networks, whose names have no "/".
func (u Unit) mark(network string) string { return network + "/" + u.String() }

// parseUnitMark is the inverse of mark.
func parseUnitMark(mark string) (network string, u Unit) {
	network, rest, _ := strings.Cut(mark, "/")
	kind, name, _ := strings.Cut(rest, "/")
	return network, Unit{Kind(kind), name}
}

// compareUnits orders units: the topology first, which contains the others' rows.
func compareUnits(a, b Unit) int {
	topologyFirst := func(u Unit) int {
		if u.Kind == KindTopology {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(topologyFirst(a), topologyFirst(b)), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// Selection selects rows of one network on one node.
type Selection struct {
	Network, Node string
	Units         []Unit // nil: all
}

func (s Selection) has(u Unit) bool { return s.Units == nil || slices.Contains(s.Units, u) }
