// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"bulkhead/pkg/network"
)

func hostNetworkChecks() []Check {
	return []Check{
		{6, "an unmodified server in red's host-network pod answers red's pods at the node's red address", hostServerReached, 0},
		{6, "it answers neither blue nor the node's default address", hostServerConfined, 0},
		{6, "an unmodified client there reaches red's pods, its loopback and the node's address, as root", func(ctx context.Context, w *World) (string, error) {
			return hostClient(ctx, w, "root")
		}, 0},
		{6, "the same as a user without any capability", func(ctx context.Context, w *World) (string, error) {
			return hostClient(ctx, w, "nobody")
		}, 0},
		{6, "it reaches neither blue nor the default network's tenant-locked addresses", hostClientConfined, 0},
		{6, "the same binary outside the tenant does not reach red", outsiderRefused, 0},
	}
}

const hostPort = 8088

// hostPod is a host-network pod of red with an unmodified busybox httpd on
// 0.0.0.0, and two places to run clients from: root, and a user with nothing.
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
  - name: server
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}]
    command: [/bin/sh, -c, "mkdir -p /tmp/www && echo red-host > /tmp/www/index.html && exec httpd -f -p 0.0.0.0:%d -h /tmp/www"]
  - name: loopback
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}]
    command: [/tools/netprobe, serve, --name, loopback, --listen, "127.0.0.1:8089"]
  - name: root
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}]
    command: [/bin/sleep, "100000"]
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
`, p.Name, p.Namespace, p.Node, toolsDir, hostPort)
}

// nodeRedAddrs are the node's own addresses on red.
func (w *World) nodeRedAddrs(node string) []netip.Addr {
	var out []netip.Addr
	for _, p := range w.tenant("red") {
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

func v4(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if a.Is4() {
			out = append(out, a)
		}
	}
	return out
}

func hostServerReached(ctx context.Context, w *World) (string, error) {
	p, manifest := hostPod(w)
	w.pods[p.Name] = p
	if err := w.Lab.Apply(ctx, manifest); err != nil {
		return "", err
	}
	if err := w.ready(ctx, p); err != nil {
		return "", err
	}
	list := addrTargets("tcp", v4(w.nodeRedAddrs(p.Node)), hostPort)
	return strings.Join(list, " "), each(w.tenant("red"), func(from *pod) error {
		want := map[string]string{}
		for _, t := range list {
			want[t] = "red-host"
		}
		if _, err := reach(func(list []string) ([]probe, error) { return w.check(ctx, from, "", probeTime, list...) }, want); err != nil {
			return fmt.Errorf("%s to red's server: %w", from.Name, err)
		}
		return nil
	})
}

func hostServerConfined(ctx context.Context, w *World) (string, error) {
	p := w.pods["red-host"]
	node := w.Lab.Node(p.Node)
	list := addrTargets("tcp", v4(append(w.nodeRedAddrs(p.Node), addrs(node)...)), hostPort)
	strangers := w.tenant("blue")
	for _, p := range w.pods {
		if p.Tenant == "" {
			strangers = append(strangers, p)
		}
	}
	err := each(strangers, func(from *pod) error {
		got, err := w.check(ctx, from, "", 2*time.Second, list...)
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
	// From the node itself, from the other node and from outside, at the default address.
	list = addrTargets("tcp", v4(addrs(node)), hostPort)
	for _, n := range w.Lab.Nodes() {
		got, err := nodeProbe(ctx, n, 2*time.Second, list...)
		if err != nil {
			return "", err
		}
		for _, g := range got {
			if g.OK {
				return "", fmt.Errorf("node %s reached red's server at its node's default address %s", n.Name, g.Target)
			}
		}
	}
	return "", nil
}

func hostClient(ctx context.Context, w *World, container string) (string, error) {
	p := w.pods["red-host"]
	node := w.Lab.Node(p.Node)
	want := map[string]string{"tcp:127.0.0.1:8089": "loopback", "udp:127.0.0.1:8089": "loopback", "icmp:127.0.0.1": ""}
	for _, to := range w.tenant("red") {
		for _, t := range targets(to.Primary...) {
			if container == "nobody" && strings.HasPrefix(t, "icmp:") {
				continue // neither raw nor, by the default ping_group_range, ping sockets
			}
			want[t] = ""
			if !strings.HasPrefix(t, "icmp:") {
				want[t] = to.Namespace + "/" + to.Name
			}
		}
	}
	if container == "nobody" {
		delete(want, "icmp:127.0.0.1")
	}
	// A server of the node's own, outside the tenant, at the node's address.
	srv, err := node.Start(ctx, toolsDir+"/netprobe serve --name node --listen :8090")
	if err != nil {
		return "", err
	}
	defer srv.Kill()
	for _, t := range append(addrTargets("tcp", addrs(node), 8090), addrTargets("udp", addrs(node), 8090)...) {
		want[t] = "node"
	}
	err = w.Lab.Wait(ctx, "the node's own server to listen", func(ctx context.Context) (bool, string, error) {
		got, err := nodeProbe(ctx, node, probeTime, "tcp:127.0.0.1:8090")
		if err != nil {
			return false, "", err
		}
		return got[0].OK, got[0].Detail, nil
	})
	if err != nil {
		return "", err
	}
	if _, err := reach(func(list []string) ([]probe, error) { return w.check(ctx, p, container, probeTime, list...) }, want); err != nil {
		return "", fmt.Errorf("%s in red's host-network pod: %w", container, err)
	}
	return fmt.Sprintf("%d targets", len(want)), nil
}

func hostClientConfined(ctx context.Context, w *World) (string, error) {
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
		got, err := w.check(ctx, w.pods["red-host"], container, 3*time.Second, list...)
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
	p := w.pods["red-host"]
	var list []string
	for _, to := range w.tenant("red") {
		list = append(list, targets(to.Primary...)...)
	}
	list = append(list, addrTargets("tcp", v4(w.nodeRedAddrs(p.Node)), hostPort)...)
	for _, n := range w.Lab.Nodes() {
		got, err := nodeProbe(ctx, n, 2*time.Second, list...)
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
