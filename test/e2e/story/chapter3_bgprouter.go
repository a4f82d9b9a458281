// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// mist is a network without an overlay whose routes a route reflector outside the cluster passes on.

const (
	mistASN  = 64512 // that of the lab's managed fabric: a router has one
	mistPort = 8073
)

func (w *World) mistRouter() bgpRouter {
	r := bgpRouter{name: "mist", asn: mistASN, nodes: mistASN}
	for _, a := range addrs(w.Lab.External()) {
		bits := 24
		if a.Is6() {
			bits = 64
		}
		r.link = append(r.link, netip.PrefixFrom(a, bits))
	}
	return r
}

// setUpMist creates the network, its RouteAdvertisements and the router.
func setUpMist(ctx context.Context, w *World) error {
	external := w.Lab.External()
	var neighbors strings.Builder
	for _, a := range addrs(external) {
		fmt.Fprintf(&neighbors, `{address: "%s", asn: %d}, `, a, mistASN)
	}
	if err := w.script(ctx, external, w.mistRouter().start()); err != nil {
		return fmt.Errorf("start the router: %w", err)
	}
	if err := w.Lab.Apply(ctx, w.noOverlayNetwork("mist", "router: outside", 94, "Disabled", "Unmanaged")+fmt.Sprintf(`
apiVersion: frrk8s.metallb.io/v1beta1
kind: FRRConfiguration
metadata: {name: mist, namespace: %s, labels: {fabric: outside}}
spec: {bgp: {routers: [{asn: %d, neighbors: [%s]}]}}
---
apiVersion: k8s.ovn.org/v1
kind: RouteAdvertisements
metadata: {name: mist}
spec:
  advertisements: [PodNetwork]
  nodeSelector: {}
  frrConfigurationSelector: {matchLabels: {fabric: outside}}
  networkSelectors:
  - networkSelectionType: ClusterUserDefinedNetworks
    clusterUserDefinedNetworkSelector: {networkSelector: {matchLabels: {router: outside}}}
`, frrNamespace, mistASN, neighbors.String())); err != nil {
		return err
	}
	if err := w.conditions(ctx, cudns, "", "mist", "True"); err != nil {
		return err
	}
	var pods []*pod
	for _, n := range w.tenantNodes() {
		pods = append(pods, &pod{Namespace: "mist", Name: "mist-" + n.Name, Node: n.Name, Tenant: "mist"})
	}
	return w.create(ctx, pods...)
}

func undoMist(ctx context.Context, w *World) error {
	if err := w.dynamic.Resource(routeAdvertisements).Delete(ctx, "mist", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err := w.dynamic.Resource(frrConfigurations).Namespace(frrNamespace).Delete(ctx, "mist", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return w.script(ctx, w.Lab.External(), w.mistRouter().stop())
}

// routerReached has mist's pods ask each other and a server outside, which sees their own addresses, and
// the router ask the pods. Then the router's daemons are killed, which ends the nodes' routes, and pods
// reach each other again when the router is back.
func routerReached(ctx context.Context, w *World) (string, error) {
	external, pods := w.Lab.External(), w.tenant("mist")
	server, err := external.Start(ctx, fmt.Sprintf("exec %s/netprobe serve --name outside --listen :%d", toolsDir, mistPort))
	if err != nil {
		return "", err
	}
	defer server.Kill()
	reached := func() (string, error) {
		figures, err := w.mesh(ctx, pods)
		if err != nil {
			return "", err
		}
		inside := map[string]string{}
		for _, p := range pods {
			want := map[string]string{}
			for _, own := range p.Primary {
				i := slices.IndexFunc(addrs(external), func(a netip.Addr) bool { return a.Is4() == own.Is4() })
				at := netip.AddrPortFrom(addrs(external)[i], mistPort).String()
				want["tcp:"+at], want["udp:"+at], want["client-tcp:"+at] = "outside", "outside", own.String()
			}
			for _, t := range targets(p.Primary...) {
				inside[t] = p.Namespace + "/" + p.Name
			}
			if _, err := w.reach(ctx, p, "", want); err != nil {
				return "", fmt.Errorf("%s to the router: %w", p.Name, err)
			}
		}
		if _, err := reach(w.fromNode(ctx, external), inside); err != nil {
			return "", fmt.Errorf("the router to pods: %w", err)
		}
		return figures, nil
	}
	figures, err := reached()
	if err != nil {
		return "", err
	}
	if err := w.defaultServices(ctx, pods, false); err != nil {
		return "", err
	}
	if err := w.noTunnel(ctx, pods); err != nil {
		return "", err
	}
	if err := w.noDifferences(ctx, "mist", network.VRFDefault); err != nil {
		return "", err
	}
	var addresses []netip.Addr
	for _, p := range pods {
		addresses = append(addresses, p.Primary...)
	}
	denied, err := w.deniedTo(ctx, addresses)
	if err != nil {
		return "", err
	}
	if len(pods) > 1 {
		if err := w.routerGone(ctx, pods[0], pods[len(pods)-1]); err != nil {
			return "", err
		}
		if err := w.script(ctx, external, w.mistRouter().start()); err != nil {
			return "", fmt.Errorf("start the router again: %w", err)
		}
		if _, err := reached(); err != nil {
			return "", fmt.Errorf("after the router was away: %w", err)
		}
	}
	return fmt.Sprintf("%s; %d denied attempts", figures, denied), nil
}

// routerGone kills the router's daemons, and waits until one pod does not reach the other.
func (w *World) routerGone(ctx context.Context, from, to *pod) error {
	external, router := w.Lab.External(), w.mistRouter()
	if err := w.script(ctx, external, fmt.Sprintf(`kill -KILL "$(cat %s/zebra.pid)" && kill -KILL "$(cat %[1]s/bgpd.pid)"`, router.dir())); err != nil {
		return fmt.Errorf("kill the router's daemons: %w", err)
	}
	list := targets(to.Primary...)
	return w.Lab.Wait(ctx, to.Name+" to be unreachable without routes", func(ctx context.Context) (bool, string, error) {
		got, err := w.check(ctx, from, "", 2*time.Second, list...)
		if err != nil {
			return false, "", err
		}
		err = reachedAny(from.Name, got)
		return err == nil, fmt.Sprint(err), nil
	})
}
