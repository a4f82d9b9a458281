// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"bulkhead/pkg/network"
	"bulkhead/test/lab"
)

// Tenants have the same subnets and, outside the nodes, a VLAN and a router each, with the same
// addresses again. The VLANs of two are in their networks' own VRFs, that of the third in a VRF of the
// administrator's, which BGP joins with the network's. The routers are network namespaces of nodes, with an FRR of their own: the
// kernel of the machine beside the nodes may have neither VLANs nor VRFs.

var liteTenants = []liteTenant{{"lite1", 301, "lite1"}, {"lite2", 302, "lite2"}, {"lite3", 303, liteVRF}}

type liteTenant struct {
	name string
	vlan int
	vrf  string // of the VLAN
}

const (
	liteVRF      = "core" // the administrator's
	liteVRFTable = 3003
)

// liteLink is the link of nodes and router in each VLAN, per IP family. The router has the first address
// and behind it liteOutside.
var (
	liteLink    = []netip.Prefix{netip.MustParsePrefix("10.99.0.1/24"), netip.MustParsePrefix("fd9a::1/64")}
	liteOutside = []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8:113::1")}
)

const (
	liteRouterASN = 65001
	liteNodeASN   = 64513
	litePort      = 8072
)

var (
	routeAdvertisements = schema.GroupVersionResource{Group: "k8s.ovn.org", Version: "v1", Resource: "routeadvertisements"}
	frrConfigurations   = schema.GroupVersionResource{Group: "frrk8s.metallb.io", Version: "v1beta1", Resource: "frrconfigurations"}
)

// liteAdvertisements are the RouteAdvertisements by name: their targetVRF and the label of their networks.
var liteAdvertisements = map[string]struct{ target, label string }{"lite": {network.VRFAuto, "own"}, "lite-" + liteVRF: {liteVRF, liteVRF}}

// localGateway reports whether the lab's nodes have gateway mode local.
func (w *World) localGateway(ctx context.Context) (bool, error) {
	obj, err := w.Lab.Client().CoreV1().Nodes().Get(ctx, w.Lab.Nodes()[0].Name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	n, err := network.ParseNode(obj.Name, obj.Annotations)
	return n.Mode == network.LocalGateway, err
}

// setUpLite creates the networks, and in local gateway mode their routers and pods.
func setUpLite(ctx context.Context, w *World) error {
	var manifest, routers strings.Builder
	for _, t := range liteTenants {
		label := "vrf: own"
		if t.vrf == liteVRF {
			label = "vrf: " + liteVRF
		}
		manifest.WriteString(w.noOverlayNetwork(t.name, label, 93, "Disabled", "Unmanaged"))
		fmt.Fprintf(&routers, "\n    - {asn: %d, vrf: %s, neighbors: [", liteNodeASN, t.vrf)
		for _, a := range liteLink {
			if w.has(a.Addr()) {
				fmt.Fprintf(&routers, `{address: "%s", asn: %d, toReceive: {allowed: {mode: all}}}, `, a.Addr(), liteRouterASN)
			}
		}
		routers.WriteString("]}")
	}
	local, err := w.localGateway(ctx)
	if err != nil {
		return err
	}
	if local { // else there is no router to have sessions with
		fmt.Fprintf(&manifest, `
apiVersion: frrk8s.metallb.io/v1beta1
kind: FRRConfiguration
metadata: {name: lite, namespace: %s, labels: {fabric: lite}}
spec:
  bgp:
    routers:%s
---`, lab.FRRNamespace, routers.String())
	}
	for name, ra := range liteAdvertisements {
		fmt.Fprintf(&manifest, `
apiVersion: k8s.ovn.org/v1
kind: RouteAdvertisements
metadata: {name: %s}
spec:
  targetVRF: %s
  advertisements: [PodNetwork]
  nodeSelector: {}
  frrConfigurationSelector: {matchLabels: {fabric: lite}}
  networkSelectors:
  - networkSelectionType: ClusterUserDefinedNetworks
    clusterUserDefinedNetworkSelector: {networkSelector: {matchLabels: {vrf: %s}}}
---`, name, ra.target, ra.label)
	}
	if err := w.Lab.Apply(ctx, manifest.String()); err != nil {
		return err
	}
	if !local {
		return nil
	}
	var pods []*pod
	for _, t := range liteTenants {
		if err := w.conditions(ctx, cudns, "", t.name, "True"); err != nil {
			return err
		}
		for _, n := range w.tenantNodes() {
			pods = append(pods, &pod{Namespace: t.name, Name: t.name + "-" + n.Name, Node: n.Name, Tenant: t.name})
		}
	}
	// FRR needs a minute to start on an emulated node: its routers start while the pods do.
	started := make(chan error, 1)
	go func() { started <- each(liteTenants, func(t liteTenant) error { return w.connectLite(ctx, t) }) }()
	return errors.Join(w.create(ctx, pods...), <-started)
}

// home is the index of the node with the tenant's router.
func (w *World) home(t liteTenant) int { return slices.Index(liteTenants, t) % len(w.Lab.Nodes()) }

// connectLite connects all nodes to a tenant's VLAN, and starts the tenant's router.
func (w *World) connectLite(ctx context.Context, t liteTenant) error {
	for i, n := range w.Lab.Nodes() {
		if err := n.Script(ctx, w.liteNode(t, i)); err != nil {
			return fmt.Errorf("connect %s to VLAN %d: %w", n.Name, t.vlan, err)
		}
	}
	if err := w.Lab.Nodes()[w.home(t)].Script(ctx, w.startLiteRouter(t)); err != nil {
		return fmt.Errorf("start the router of %s: %w", t.name, err)
	}
	return nil
}

// liteNode connects node i to a tenant's VLAN. On the router's node a bridge connects the router, too.
func (w *World) liteNode(t liteTenant, i int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "set -e\nmodprobe -a 8021q bridge veth 2>/dev/null || true\nip link add link br-ex name %[1]s-up type vlan id %[2]d\n", t.name, t.vlan)
	if t.vrf == liteVRF {
		fmt.Fprintf(&b, "ip link add %[1]s type vrf table %[2]d\nip link set %[1]s up\n", liteVRF, liteVRFTable)
	}
	dev := t.name + "-up"
	if i == w.home(t) {
		dev = t.name + "-lan"
		fmt.Fprintf(&b, `ip link add %[1]s-lan type bridge
ip netns add %[1]s
ip link add %[1]s-rt type veth peer name lan netns %[1]s
for p in up rt; do ip link set %[1]s-$p master %[1]s-lan up; done
`, t.name)
	}
	fmt.Fprintf(&b, "ip link set %s master %s up\n", dev, t.vrf)
	for _, a := range liteLink {
		if w.has(a.Addr()) {
			own := a.Addr()
			for range 10 + i {
				own = own.Next()
			}
			fmt.Fprintf(&b, "ip address add %s dev %s%s\n", netip.PrefixFrom(own, a.Bits()), dev, noDAD(own))
		}
	}
	return b.String()
}

func noDAD(a netip.Addr) string {
	if a.Is6() {
		return " nodad"
	}
	return ""
}

// liteRouter is a tenant's router.
func (w *World) liteRouter(tenant string) bgpRouter {
	r := bgpRouter{name: tenant, run: "ip netns exec " + tenant, asn: liteRouterASN, nodes: liteNodeASN}
	for i, a := range liteLink {
		if w.has(a.Addr()) {
			r.link = append(r.link, a)
			r.networks = append(r.networks, netip.PrefixFrom(liteOutside[i], liteOutside[i].BitLen()))
		}
	}
	return r
}

// startLiteRouter configures a tenant's router and starts it, and a server behind it. BGP joins
// routes that it has learned: a network whose VLAN is in another VRF does not know the link, so its
// router asks from the address behind it.
func (w *World) startLiteRouter(t liteTenant) string {
	tenant, r := t.name, w.liteRouter(t.name)
	var b strings.Builder
	fmt.Fprintf(&b, "set -e\nip -n %[1]s link set lo up\nip -n %[1]s link set lan up\nip netns exec %[1]s sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n", tenant)
	for i, a := range r.link {
		options := noDAD(a.Addr())
		if t.vrf == liteVRF {
			options += map[bool]string{true: " scope link", false: " preferred_lft 0"}[a.Addr().Is4()]
		}
		fmt.Fprintf(&b, "ip -n %[1]s address add %[2]s dev lan%[3]s\nip -n %[1]s address add %[4]s dev lo\n", tenant, a, options, r.networks[i])
	}
	b.WriteString(r.start())
	fmt.Fprintf(&b, "setsid %[1]s %[2]s/netprobe serve --name %[3]s-outside --listen :%[4]d >/dev/null 2>&1 </dev/null &\necho $! > %[5]s/server.pid\n", r.run, toolsDir, tenant, litePort, r.dir())
	return b.String()
}

// undoLite removes routers and links, which are nobody's once the networks' VRFs are gone.
func undoLite(ctx context.Context, w *World) error {
	for name := range liteAdvertisements {
		if err := w.dynamic.Resource(routeAdvertisements).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if err := w.dynamic.Resource(frrConfigurations).Namespace(lab.FRRNamespace).Delete(ctx, "lite", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	for _, t := range liteTenants {
		if err := w.deletePods(ctx, t.name); err != nil {
			return err
		}
		if err := each(w.Lab.Nodes(), func(n *lab.Node) error {
			return n.Script(ctx, w.liteRouter(t.name).stop()+fmt.Sprintf(`ip netns del %[1]s 2>/dev/null
for l in %[1]s-rt %[1]s-lan %[1]s-up %[2]s; do ip link del $l 2>/dev/null; done; true`, t.name, liteVRF))
		}); err != nil {
			return err
		}
	}
	return nil
}

// liteReached has each tenant's pods ask each other, across nodes, and the server behind their router,
// which sees their own addresses. The answers have names: those of another tenant, at the same
// addresses, would be noticed. In shared gateway mode the RouteAdvertisements are refused.
func liteReached(ctx context.Context, w *World) (string, error) {
	if local, err := w.localGateway(ctx); err != nil || !local {
		return "refused in shared gateway mode", w.Lab.Wait(ctx, "targetVRF to be refused", func(ctx context.Context) (bool, string, error) {
			for name := range liteAdvertisements {
				obj, err := w.dynamic.Resource(routeAdvertisements).Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return false, "", err
				}
				if text := fmt.Sprint(obj.Object["status"]); !strings.Contains(text, "has gateway mode shared") {
					return false, name + ": " + text, nil
				}
			}
			return true, "", nil
		})
	}
	var figures []string
	for _, t := range liteTenants {
		pods := w.tenant(t.name)
		asked, err := w.mesh(ctx, pods)
		if err != nil {
			return "", err
		}
		for _, p := range pods {
			want := map[string]string{}
			for _, own := range p.Primary {
				i := slices.IndexFunc(liteOutside, func(a netip.Addr) bool { return a.Is4() == own.Is4() })
				at := netip.AddrPortFrom(liteOutside[i], litePort).String()
				want["tcp:"+at], want["udp:"+at], want["client-tcp:"+at] = t.name+"-outside", t.name+"-outside", own.String()
			}
			if _, err := w.reach(ctx, p, "", want); err != nil {
				return "", fmt.Errorf("%s to the world outside: %w", p.Name, err)
			}
		}
		if err := w.reachedFromRouter(ctx, t, pods); err != nil {
			return "", err
		}
		if err := w.noTunnel(ctx, pods); err != nil {
			return "", err
		}
		if err := w.defaultServices(ctx, pods, false); err != nil {
			return "", err
		}
		if err := w.noDifferences(ctx, t.name, t.vrf); err != nil {
			return "", err
		}
		figures = append(figures, t.name+": "+asked)
	}
	var addresses []netip.Addr
	for _, p := range w.tenant(liteTenants[0].name) {
		addresses = append(addresses, p.Primary...)
	}
	denied, err := w.deniedTo(ctx, addresses)
	return fmt.Sprintf("%s; %d denied attempts", strings.Join(figures, ", "), denied), err
}

// reachedFromRouter has the tenant's router ask the tenant's pods.
func (w *World) reachedFromRouter(ctx context.Context, t liteTenant, pods []*pod) error {
	want := map[string]string{}
	for _, p := range pods {
		for _, at := range targets(p.Primary...) {
			want[at] = p.Namespace + "/" + p.Name
		}
	}
	_, err := reach(func(list []string) ([]probe, error) {
		res, err := w.Lab.Nodes()[w.home(t)].Run(ctx, fmt.Sprintf("ip netns exec %s %s/netprobe check --timeout %s %s", t.name, toolsDir, probeTime, strings.Join(list, " ")))
		if err != nil {
			return nil, err
		}
		return parseProbes(res.Stdout, len(list))
	}, want)
	if err != nil {
		return fmt.Errorf("the router of %s: %w", t.name, err)
	}
	return nil
}
