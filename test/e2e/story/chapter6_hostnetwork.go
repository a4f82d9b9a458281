// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"bulkhead/pkg/network"
)

func hostNetworkChecks() []Check {
	check := func(title string, run func(context.Context, *World) (string, error)) Check {
		return Check{Chapter: 6, Title: title, Phase: phaseHost, Needs: needs(fixturePlain, fixtureRedHost), Run: run, Group: groupHostNetwork}
	}
	return []Check{
		check("an unmodified server in red's host-network pod answers red's pods at the node's red address", hostServerReached),
		check("a server in red's host-network pod answers neither blue nor at the node's default address", hostServerConfined),
		check("an unmodified client in red's host-network pod reaches red's pods, loopback, nodes and other hosts, as root", func(ctx context.Context, w *World) (string, error) {
			return hostClient(ctx, w, "root", 8090)
		}),
		check("an unmodified client in red's host-network pod reaches red's pods, loopback, nodes and other hosts, as a user without capabilities", func(ctx context.Context, w *World) (string, error) {
			return hostClient(ctx, w, "nobody", 8091)
		}),
		check("a client in red's host-network pod reaches neither blue nor locked addresses on the default network", hostClientConfined),
		check("the same binary outside the tenant does not reach red", outsiderRefused),
		// By itself: it stops kubelet on a node.
		{Chapter: 6, Title: "processes of a pod that is deleted by force keep their network, and reach no other", Phase: phaseFaults, Needs: needs(fixturePlain, fixtureRedHost), Run: forcedDeletionConfines, Group: groupHostNetwork},
	}
}

// Ports of the servers in red's host-network pod.
const (
	hostPort  = 8088 // on 0.0.0.0
	hostPort6 = 8087 // on [::], for both families
)

// serverTargets are the servers at addresses: each family's, and that of both.
func serverTargets(at []netip.Addr) []string {
	return append(addrTargets("tcp", network.FilterFamilies(at, true, false), hostPort), addrTargets("tcp", at, hostPort6)...)
}

// hostPod is a host-network pod of red with an unmodified busybox httpd on
// 0.0.0.0 and another on [::], servers on loopback, and two containers to run
// clients in: one of root, and one of a user without capabilities.
func hostPod(w *World) (*pod, string) {
	p := &pod{Namespace: "red-a", Name: "red-host", Node: w.Lab.Nodes()[0].Name, Tenant: "red", HostNetwork: true}
	return p, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {app: story}}
spec:
  nodeName: %s
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  volumes: [{name: tools, hostPath: {path: %s}}]
  containers:
  - name: root
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}]
    command:
    - /bin/sh
    - -c
    - |
      mkdir -p /tmp/www && echo red-host > /tmp/www/index.html
      httpd -f -p 0.0.0.0:%d -h /tmp/www &
      httpd -f -p '[::]:%d' -h /tmp/www &
      /tools/netprobe serve --name loopback --listen '[::1]:8089' &
      exec /tools/netprobe serve --name loopback --listen 127.0.0.1:8089
  - name: nobody
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}]
    command: [/bin/sleep, "100000"]
    securityContext:
      runAsUser: 65534
      runAsNonRoot: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
`, p.Name, p.Namespace, p.Node, toolsDir, hostPort, hostPort6)
}

// nodeAddrs are the node's own addresses on a tenant's Layer 3 network, of which it has a pod.
func (w *World) nodeAddrs(tenant, node string) []netip.Addr {
	var out []netip.Addr
	for _, p := range w.tenant(tenant) {
		if p.Node == node {
			for _, a := range p.Primary {
				bits := 24
				if a.Is6() {
					bits = 64
				}
				out = append(out, network.Management(netip.PrefixFrom(a, bits).Masked()).Addr())
			}
			return out
		}
	}
	return nil
}

func setUpRedHost(ctx context.Context, w *World) error {
	p, manifest := hostPod(w)
	w.addPods(p)
	if err := w.Lab.Apply(ctx, manifest); err != nil {
		return err
	}
	return w.ready(ctx, p)
}

func hostServerReached(ctx context.Context, w *World) (string, error) {
	p, err := w.pod("red-host")
	if err != nil {
		return "", err
	}
	list := serverTargets(w.nodeAddrs("red", p.Node))
	return strings.Join(list, " "), each(w.tenant("red"), func(from *pod) error {
		want := map[string]string{}
		for _, t := range list {
			want[t] = "red-host"
		}
		if _, err := w.reach(ctx, from, "", want); err != nil {
			return fmt.Errorf("%s to red's server: %w", from.Name, err)
		}
		return nil
	})
}

func hostServerConfined(ctx context.Context, w *World) (string, error) {
	p, err := w.pod("red-host")
	if err != nil {
		return "", err
	}
	node := w.Lab.Node(p.Node)
	list := serverTargets(append(w.nodeAddrs("red", p.Node), addrs(node)...))
	others := append(w.tenant("blue"), w.tenant("")...)
	err = each(others, func(from *pod) error {
		got, err := w.attempt(ctx, from, "", list...)
		if err != nil {
			return err
		}
		for _, g := range got {
			if g.OK {
				return fmt.Errorf("%s reached red's server at %s", from.Name, g.Target)
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	// From all nodes, at the node's default address.
	list = serverTargets(addrs(node))
	for _, n := range w.Lab.Nodes() {
		got, err := w.nodeAttempt(ctx, n, list...)
		if err != nil {
			return "", err
		}
		for _, g := range got {
			if g.OK {
				return "", fmt.Errorf("node %s reached red's server at its node's default address %s", n.Name, g.Target)
			}
		}
	}
	return fmt.Sprintf("%d pods, %d nodes", len(others), len(w.Lab.Nodes())), nil
}

func hostClient(ctx context.Context, w *World, container string, port uint16) (string, error) {
	p, err := w.pod("red-host")
	if err != nil {
		return "", err
	}
	want := map[string]string{}
	for _, a := range w.loopback() {
		at := netip.AddrPortFrom(a, 8089).String()
		want["tcp:"+at], want["udp:"+at], want["icmp:"+a.String()] = "loopback", "loopback", ""
	}
	for _, to := range w.tenant("red") {
		for _, t := range targets(to.Primary...) {
			if container == "nobody" && strings.HasPrefix(t, "icmp:") {
				continue // may open neither raw sockets nor, by the default ping_group_range, ping sockets
			}
			want[t] = ""
			if !strings.HasPrefix(t, "icmp:") {
				want[t] = to.Namespace + "/" + to.Name
			}
		}
	}
	if container == "nobody" {
		delete(want, "icmp:127.0.0.1")
		delete(want, "icmp:::1")
	}
	// Servers outside the tenant, at the addresses of this node, the others and the external machine.
	stop, err := w.serveOnMachines(ctx, port)
	if err != nil {
		return "", err
	}
	defer stop()
	for _, m := range w.machines() {
		for _, t := range append(addrTargets("tcp", addrs(m), port), addrTargets("udp", addrs(m), port)...) {
			want[t] = m.Name
		}
	}
	if _, err := w.reach(ctx, p, container, want); err != nil {
		return "", fmt.Errorf("%s in red's host-network pod: %w", container, err)
	}
	return fmt.Sprintf("%d targets", len(want)), nil
}

func hostClientConfined(ctx context.Context, w *World) (string, error) {
	p, err := w.pod("red-host")
	if err != nil {
		return "", err
	}
	var list []string
	for _, to := range append(w.tenant("blue"), w.tenant("red")...) {
		list = append(list, dropICMP(targets(to.Default...))...)
	}
	red := map[netip.Addr]bool{}
	for _, p := range w.tenant("red") {
		for _, a := range p.Primary {
			red[a] = true
		}
	}
	for _, to := range w.tenant("blue") {
		for _, a := range to.Primary {
			if !red[a] {
				list = append(list, targets(a)...)
			}
		}
	}
	for _, container := range []string{"root", "nobody"} {
		tried := list
		if container == "nobody" {
			tried = dropICMP(list) // it may not open such sockets
		}
		got, err := w.attempt(ctx, p, container, tried...)
		if err != nil {
			return "", err
		}
		for _, g := range got {
			if g.OK {
				return "", fmt.Errorf("%s in red's host-network pod reached %s (%q)", container, g.Target, g.Who)
			}
		}
	}
	return fmt.Sprintf("%d targets", len(list)), nil
}

func outsiderRefused(ctx context.Context, w *World) (string, error) {
	p, err := w.pod("red-host")
	if err != nil {
		return "", err
	}
	var list []string
	for _, to := range w.tenant("red") {
		list = append(list, targets(to.Primary...)...)
	}
	list = append(list, serverTargets(w.nodeAddrs("red", p.Node))...)
	for _, n := range w.Lab.Nodes() {
		got, err := w.nodeAttempt(ctx, n, list...)
		if err != nil {
			return "", err
		}
		for _, g := range got {
			if g.OK {
				return "", fmt.Errorf("a process of no tenant on %s reached %s (%q)", n.Name, g.Target, g.Who)
			}
		}
	}
	return fmt.Sprintf("%d targets on each node", len(list)), nil
}
