// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary"
)

// besideNamespace is a network namespace of the near node that is no pod's: a machine on a second interface of the node, or a
// container outside Kubernetes.
const besideNamespace = "beside"

// The interface between the node and besideNamespace: the node's end, and the MAC address of the other, which is eth0.
const (
	besideLink   = "beside0"
	besideMAC    = "02:00:00:00:00:be"
	besideOwnMAC = "02:00:00:00:00:bf"
)

// besideAddresses are those of the machine. It sends frames alone, and needs no address on its interface.
var besideAddresses = []netip.Addr{netip.MustParseAddr("198.51.100.77"), netip.MustParseAddr("2001:db8:be::77")}

// fromOutside are the parts in which a machine beside the cluster, and one on another interface of the node, send to addresses
// inside by the node as next hop, and forged datagrams to the overlay's port. They reach what is outside.
func (a *attackSetup) fromOutside(ctx context.Context, inside []netip.Addr) ([]part, error) {
	external, near := actor{machine: a.w.Lab.External()}, actor{machine: a.near}
	links, err := readLinks(ctx, external.machine)
	if err != nil {
		return nil, err
	}
	own := addrs(external.machine)
	device := ""
	for name, list := range links.addrs {
		if slices.ContainsFunc(list, func(x netip.Addr) bool { return slices.Contains(own, x) }) {
			device = name
		}
	}
	if device == "" {
		return nil, fmt.Errorf("%s has none of its addresses %v on an interface: %v", external, own, links.addrs)
	}
	nodeMAC := a.nodes[a.near.Name].mac[bridgeOfANode]
	forged := slices.Concat(own, a.victim("green-3", false).Addrs, inside)
	out := part{what: "from a machine beside the cluster to addresses inside", victims: []string{"green-1", "green-2", near.String()},
		elsewhere: trials([]actor{external}, adversary.FromOutside(device, links.mac[device], nodeMAC, forged, inside))}
	for _, x := range adversary.FromOutside(device, links.mac[device], nodeMAC, own, addrs(a.near)) {
		if x.Frame == "" && x.DstMAC == nodeMAC && len(x.How) == 0 { // the node's listeners receive datagrams
			out.controls = append(out.controls, trial{external, x})
		}
	}
	overlay := part{what: "to the overlay's port, from a machine beside the cluster", victims: []string{"green-2"}, controls: trials([]actor{a.admin()}, a.tunnelWays()),
		elsewhere: trials([]actor{external}, a.tunnelWaysFrom(own, []adversary.Interface{{Name: device, MAC: links.mac[device]}}))}

	beside := actor{machine: a.near, namespace: besideNamespace}
	if err := a.addBeside(ctx); err != nil {
		return nil, err
	}
	masquerade, err := a.w.masquerade(ctx)
	if err != nil {
		return nil, err
	}
	plan, green := network.Plan{Masquerade: masquerade}, network.Network{ID: a.greenID}
	var routers []netip.Addr
	for _, p := range slices.Concat(plan.MasqueradeGateway(green), plan.MasqueradeManagement(green)) {
		routers = append(routers, p.Addr())
	}
	besides := a.w.served(besideAddresses)
	second := part{what: "from a second interface of the node", victims: []string{external.String(), "green-1", near.String()},
		elsewhere: trials([]actor{beside}, slices.Concat(
			adversary.FromOutside("eth0", besideOwnMAC, besideMAC, slices.Concat(besides, routers, own), inside),
			adversary.FromOutside("eth0", besideOwnMAC, besideMAC, routers, own)))}
	for _, x := range adversary.FromOutside("eth0", besideOwnMAC, besideMAC, besides, own) {
		if x.DstMAC == besideMAC && len(x.How) == 0 {
			second.controls = append(second.controls, trial{beside, x})
		}
	}
	return []part{out, overlay, second}, nil
}

// addBeside adds the network namespace with its interface.
func (a *attackSetup) addBeside(ctx context.Context) error {
	if err := a.removeBeside(ctx); err != nil { // of a run that was interrupted
		return err
	}
	script := []string{
		"ip netns add " + besideNamespace,
		fmt.Sprintf("ip link add %s address %s type veth peer name eth0 address %s netns %s", besideLink, besideMAC, besideOwnMAC, besideNamespace),
		fmt.Sprintf("ip -n %s link set eth0 up", besideNamespace),
		fmt.Sprintf("ip link set %s up", besideLink),
		fmt.Sprintf("echo 0 > /proc/sys/net/ipv4/conf/%s/rp_filter", besideLink),
		fmt.Sprintf("echo 1 > /proc/sys/net/ipv4/conf/%s/forwarding", besideLink),
	}
	for _, x := range a.w.served(besideAddresses) {
		script = append(script, fmt.Sprintf("ip route add %s dev %s", x, besideLink))
	}
	return a.script(ctx, strings.Join(script, " && "))
}

// removeBeside undoes addBeside, as far as it went.
func (a *attackSetup) removeBeside(ctx context.Context) error {
	return a.script(ctx, fmt.Sprintf("ip link delete %s 2>/dev/null; ip netns delete %s 2>/dev/null; ! ip link show %[1]s 2>/dev/null", besideLink, besideNamespace))
}
