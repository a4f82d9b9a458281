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
	"bulkhead/test/lab"
)

// mist is a network without an overlay whose routes a router outside the cluster passes on.

const (
	mistASN  = 64512 // that of the lab's managed fabric: a router has one
	mistPort = 8073
)

// mistSessions are the sessions that the nodes have in turn.
var mistSessions = []struct {
	name string
	asn  int  // of the router
	mesh bool // and iBGP sessions of each node with each other one
}{
	{"a route reflector", mistASN, false},
	{"eBGP", 65002, false},
	{"eBGP beside a mesh", 65002, true},
}

// mistRouter is the router with its i-th kind of sessions.
func (w *World) mistRouter(i int) bgpRouter {
	r := bgpRouter{name: "mist", asn: mistSessions[i].asn, nodes: mistASN}
	for _, a := range addrs(w.Lab.External()) {
		bits := 24
		if a.Is6() {
			bits = 64
		}
		r.link = append(r.link, netip.PrefixFrom(a, bits))
	}
	return r
}

// startMist starts the router with the i-th kind of sessions, and configures the nodes for them.
func (w *World) startMist(ctx context.Context, i int) error {
	external := w.Lab.External()
	var neighbors strings.Builder
	add := func(n *lab.Node, asn int) {
		for _, a := range addrs(n) {
			fmt.Fprintf(&neighbors, `{address: "%s", asn: %d}, `, a, asn)
		}
	}
	add(external, mistSessions[i].asn)
	if mistSessions[i].mesh { // each node leaves itself out
		for _, n := range w.Lab.Nodes() {
			add(n, mistASN)
		}
	}
	if err := external.Script(ctx, w.mistRouter(i).start()); err != nil {
		return fmt.Errorf("start the router: %w", err)
	}
	return w.Lab.Apply(ctx, fmt.Sprintf(`
apiVersion: frrk8s.metallb.io/v1beta1
kind: FRRConfiguration
metadata: {name: mist, namespace: %s, labels: {fabric: outside}}
spec: {bgp: {routers: [{asn: %d, neighbors: [%s]}]}}
`, lab.FRRNamespace, mistASN, neighbors.String()))
}

// setUpMist creates the network, its RouteAdvertisements and the router.
func setUpMist(ctx context.Context, w *World) error {
	if err := w.startMist(ctx, 0); err != nil {
		return err
	}
	if err := w.Lab.Apply(ctx, w.noOverlayNetwork("mist", "router: outside", 94, "Disabled", "Unmanaged")+`
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
`); err != nil {
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
	if err := w.dynamic.Resource(frrConfigurations).Namespace(lab.FRRNamespace).Delete(ctx, "mist", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return w.Lab.External().Script(ctx, w.mistRouter(0).stop())
}

// routerReached has mist's pods ask each other and a server outside, which sees their own addresses, and
// the router ask the pods. Then the router's daemons are killed, which ends the nodes' routes, and pods
// reach each other again when the router is back. If everything is run, all of it again with the
// other kinds of sessions: with a mesh, the pods reach each other without the router, too.
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
	var done []string
	for i, sessions := range mistSessions {
		if i > 0 && !w.Full {
			break
		}
		if i > 0 {
			if err := external.Script(ctx, w.mistRouter(0).stop()); err != nil {
				return "", fmt.Errorf("stop the router: %w", err)
			}
			if err := w.startMist(ctx, i); err != nil {
				return "", err
			}
			if _, err := reached(); err != nil {
				return "", fmt.Errorf("by %s: %w", sessions.name, err)
			}
			if err := w.noDifferences(ctx, "mist", network.VRFDefault); err != nil {
				return "", fmt.Errorf("by %s: %w", sessions.name, err)
			}
		}
		if len(pods) == 1 {
			continue
		}
		if err := w.killMist(ctx); err != nil {
			return "", err
		}
		if sessions.mesh {
			err = w.reachedByMesh(ctx, pods)
		} else {
			err = w.routesGone(ctx, pods[0], pods[len(pods)-1])
		}
		if err != nil {
			return "", fmt.Errorf("by %s, while the router is away: %w", sessions.name, err)
		}
		if err := w.startMist(ctx, i); err != nil {
			return "", err
		}
		if _, err := reached(); err != nil {
			return "", fmt.Errorf("by %s, after the router was away: %w", sessions.name, err)
		}
		done = append(done, sessions.name)
	}
	return fmt.Sprintf("%s; %d denied attempts; %s", figures, denied, strings.Join(done, ", ")), nil
}

// killMist kills the router's daemons.
func (w *World) killMist(ctx context.Context) error {
	if err := w.Lab.External().Script(ctx, fmt.Sprintf(`kill -KILL "$(cat %s/zebra.pid)" && kill -KILL "$(cat %[1]s/bgpd.pid)"`, w.mistRouter(0).dir())); err != nil {
		return fmt.Errorf("kill the router's daemons: %w", err)
	}
	return nil
}

// routesGone waits until one pod does not reach the other.
func (w *World) routesGone(ctx context.Context, from, to *pod) error {
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

// reachedByMesh has pods ask each other when no node has a session with the router any more.
func (w *World) reachedByMesh(ctx context.Context, pods []*pod) error {
	for _, n := range w.Lab.Nodes() {
		if err := w.Lab.Wait(ctx, "the sessions of "+n.Name+" with the router to be gone", func(ctx context.Context) (bool, string, error) {
			up, text, err := established(ctx, n, addrs(w.Lab.External()))
			return up == 0, text, err
		}); err != nil {
			return err
		}
	}
	_, err := w.mesh(ctx, pods)
	return err
}
