// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
)

// Pods on hulk, a Localnet network on the nodes' own network whose pods choose their addresses.
const (
	liar   = "grey-3" // has its own MAC address
	taker  = "grey-4" // requests the other node's
	routed = "grey-5" // requests the router's

	tagged   = "grey-6" // on mole, a Localnet network in a VLAN
	moleVLAN = 77
)

// hulkManifest is the network hulk.
const hulkManifest = `
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: hulk}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: grey}}
  network:
    topology: Localnet
    localnet: {role: Secondary, physicalNetworkName: harbor, ipam: {mode: Disabled}}
`

// moleManifest is the network mole.
var moleManifest = fmt.Sprintf(`
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: mole}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: grey}}
  network:
    topology: Localnet
    localnet: {role: Secondary, physicalNetworkName: harbor, ipam: {mode: Disabled}, vlan: {mode: Access, access: {id: %d}}}
`, moleVLAN)

// hulkPods are the pods on hulk, which know the MAC addresses of their victims.
func (a *attackSetup) hulkPods(ctx context.Context) ([]*pod, error) {
	near, err := a.w.Lab.Client().CoreV1().Nodes().Get(ctx, a.near.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	known, err := network.ParseNode(near.Name, near.Annotations)
	if err != nil {
		return nil, err
	}
	a.routers = known.NextHops
	links, err := readLinks(ctx, a.far)
	if err != nil {
		return nil, err
	}
	if a.routerMAC, err = a.macOf(ctx, a.routers); err != nil {
		return nil, err
	}
	var pods []*pod
	for name, mac := range map[string]string{liar: "", taker: links.mac["br-ex"], routed: a.routerMAC} {
		request := `{"name": "hulk", "interface": "hulk0"}`
		if mac != "" {
			request = fmt.Sprintf(`{"name": "hulk", "interface": "hulk0", "mac": %q}`, mac)
		}
		pods = append(pods, &pod{Namespace: "grey", Name: name, Node: a.near.Name, Networks: "[" + request + "]"})
	}
	return pods, nil
}

// macOf returns the MAC address of the first router that the near node knows.
func (a *attackSetup) macOf(ctx context.Context, routers []netip.Addr) (mac string, err error) {
	err = a.w.Lab.Wait(ctx, fmt.Sprintf("%s to know a MAC address of the routers %v", a.near.Name, routers), func(ctx context.Context) (bool, string, error) {
		var list []struct{ Dst, LLAddr string }
		if err := nodeJSON(ctx, a.near, "ip -j neigh show dev br-ex", &list); err != nil {
			return false, "", err
		}
		for _, n := range list {
			if to, err := netip.ParseAddr(n.Dst); err == nil && n.LLAddr != "" && slices.Contains(routers, to) {
				mac = n.LLAddr
			}
		}
		return mac != "", fmt.Sprint(list), nil
	})
	return mac, err
}

// free are addresses of the nodes' network that nobody has.
var free = []netip.Addr{netip.MustParseAddr("172.30.0.120"), netip.MustParseAddr("fd00:172:30::120")}

const (
	everybody     = "ff:ff:ff:ff:ff:ff"
	everybodyIPv6 = "33:33:00:00:00:01"
	allNodes      = "ff02::1"
	aLinkLocal    = "fe80::bad"
	hulkInterface = "hulk0"
	bridgeOfANode = "br-ex"
)

// claims are the ways to claim an address on the nodes' network, with frames of that MAC address.
func claims(address netip.Addr, mac string, to netip.Addr) []attack.Attempt {
	frame := attack.Attempt{Socket: "packet", Device: hulkInterface, SrcMAC: mac, Src: address.String(), To: to.String(), DstMAC: everybody}
	echo, claim := frame, frame
	echo.Frame = "echo"
	if address.Is4() {
		claim.Frame = "arp-announcement"
		return []attack.Attempt{echo, claim}
	}
	claim.Frame, claim.How, claim.Src, claim.To, claim.DstMAC = "neighbour-advertisement", []string{"target=" + address.String()}, aLinkLocal, allNodes, everybodyIPv6
	own := claim
	own.Src = address.String()
	return []attack.Attempt{echo, claim, own}
}

// impersonation is the part in which pods on a Localnet network claim the addresses of nodes and of the router.
// A host beside the cluster receives the same claims of an address that nobody has.
func (a *attackSetup) impersonation(ctx context.Context, m *round) (part, error) {
	victim := actor{machine: a.w.Lab.External()}
	if err := m.listenOnce(ctx, victim, attack.Listener{Kind: "sniff"}); err != nil {
		return part{}, err
	}
	out := part{what: "in the name of a node or router, from pods on a Localnet network", victims: []string{victim.String()}}
	farMAC := a.nodes[a.far.Name].mac[bridgeOfANode]
	pod := actor{pod: a.pods[liar]}
	mac := a.annotations[liar]["grey/hulk"].MAC
	for _, to := range addrs(a.w.Lab.External()) {
		for _, address := range slices.Concat(a.w.served(free), addrs(a.near), addrs(a.far), a.routers) {
			if address.Is4() != to.Is4() {
				continue
			}
			list := trials([]actor{pod}, claims(address, mac, to))
			if slices.Contains(free, address) {
				out.controls = append(out.controls, list...)
				for name, mac := range map[string]string{taker: farMAC, routed: a.routerMAC} {
					out.elsewhere = append(out.elsewhere, trials([]actor{{pod: a.pods[name]}}, claims(address, mac, to))...)
				}
				continue
			}
			out.elsewhere = append(out.elsewhere, list...)
		}
	}
	if len(a.routers) == 0 || farMAC == "" || mac == "" {
		return out, fmt.Errorf("%s has the MAC address %q, %s has %q, and the routers are %v", liar, mac, a.far.Name, farMAC, a.routers)
	}
	return out, nil
}

// copies is the part in which the near node sends to the other node and to the router, and pods that
// requested these hosts' MAC addresses listen. A pod with another MAC address receives what is for it.
func (a *attackSetup) copies(ctx context.Context, m *round) (part, error) {
	out := part{what: "the nodes' own packets, to pods on a Localnet network"}
	for _, name := range []string{liar, taker, routed} {
		p := actor{pod: a.pods[name]}
		if err := m.listen(ctx, p, attack.Listener{Kind: "sniff"}); err != nil {
			return part{}, err
		}
		out.victims = append(out.victims, p.String())
	}
	// With each other, inside OVN, the pods use these MAC addresses.
	macOf := func(name string) string { return a.annotations[name]["grey/hulk"].MAC }
	for _, name := range []string{taker, routed} {
		for _, pair := range [][2]string{{liar, name}, {name, liar}} {
			for _, address := range a.w.served(free) {
				frame := attack.Attempt{Socket: "packet", Frame: "echo", Device: hulkInterface, SrcMAC: macOf(pair[0]), DstMAC: macOf(pair[1]), Src: address.String(), To: address.String()}
				out.controls = append(out.controls, trial{actor{pod: a.pods[pair[0]]}, frame})
			}
		}
	}
	near := a.nodes[a.near.Name]
	for _, from := range near.addrs[bridgeOfANode] {
		for _, to := range addrs(a.far) {
			if from.Is4() != to.Is4() {
				continue
			}
			frame := attack.Attempt{Socket: "packet", Frame: "echo", Device: bridgeOfANode, SrcMAC: near.mac[bridgeOfANode], Src: from.String(), To: to.String()}
			for _, mac := range []string{a.nodes[a.far.Name].mac[bridgeOfANode], a.routerMAC} {
				frame.DstMAC = mac
				out.elsewhere = append(out.elsewhere, trial{a.admin(), frame})
			}
			out.elsewhere = append(out.elsewhere, trial{a.admin(), attack.Attempt{Socket: "udp", To: to.String(), Port: listenedPort}})
			frame.DstMAC = a.annotations[liar]["grey/hulk"].MAC
			out.controls = append(out.controls, trial{a.admin(), frame})
		}
	}
	return out, nil
}

// onLocalnet is the part in which a pod that a Localnet network puts among the nodes sends
// forged datagrams to the overlay's port of the other node, from every kind of socket. The
// same ways lead to another port there.
func (a *attackSetup) onLocalnet(ctx context.Context, m *round) (part, error) {
	pod := actor{pod: a.pods["grey-2"]}
	berth := a.annotations["grey-2"]["grey/berth"]
	var own []netip.Addr
	for _, ip := range berth.IPs {
		own = append(own, ip.Addr())
	}
	ways := a.tunnelWaysFrom(own, []adversary.Interface{{Name: "berth0", MAC: berth.MAC}})
	out := part{what: "to the overlay's port, from a pod on a Localnet network", elsewhere: trials([]actor{pod}, ways), controls: trials([]actor{a.admin()}, a.tunnelWays()), victims: []string{"green-2"}}
	for _, x := range ways {
		if x.Socket == "hdrincl" && slices.Contains(x.How, "fragments") {
			for _, overlap := range []string{"fragments=harmless-first", "fragments=harmless-between"} {
				x.How = []string{overlap}
				out.elsewhere = append(out.elsewhere, trial{pod, x})
			}
		}
	}
	var arrives []*trial
	for _, x := range ways {
		if slices.Contains(x.How, "tagged") || slices.Contains(x.How, "etype=0x88cc") {
			continue // an untagged network carries no tags, and no server receives the other
		}
		x.Port = listenedPort
		arrives = append(arrives, &trial{pod, x})
	}
	if len(arrives) == 0 {
		return part{}, fmt.Errorf("grey-2 has no way to %s from %v", a.far.Name, own)
	}
	return out, m.untilReceived(ctx, "grey-2 to reach "+a.far.Name, actor{machine: a.far}, arrives)
}
