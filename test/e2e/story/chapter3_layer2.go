// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"bulkhead/pkg/network"
)

func layer2Checks() []Check {
	return []Check{
		{Chapter: 3, Title: "violet, a Layer 2 network: pods on both nodes reach each other in one subnet", Phase: phaseReach, Needs: needs(fixtureLayer2), Run: layer2Reach},
		{Chapter: 6, Title: "a process in violet's host-network pod reaches violet's pods on both nodes, and serves its node's", Phase: phaseHost, Needs: needs(fixtureLayer2Host), Run: layer2Host, Group: groupHostNetwork},
	}
}

// layer2Manifest is a namespace with a Layer 2 primary network, of the address plan
// that red and blue have.
func (w *World) layer2Manifest() string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: violet, labels: {k8s.ovn.org/primary-user-defined-network: ""}}
---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: net, namespace: violet}
spec:
  topology: Layer2
  layer2: {role: Primary, subnets: %s}
`, w.cidrs("10.20.0.0/16", "fd20::/64"))
}

func setUpLayer2(ctx context.Context, w *World) error {
	if err := w.Lab.Apply(ctx, w.layer2Manifest()); err != nil {
		return err
	}
	if err := w.conditions(ctx, udns, "violet", "net", "True"); err != nil {
		return err
	}
	nodes := w.Lab.Nodes()
	return w.create(ctx,
		&pod{Namespace: "violet", Name: "violet-1", Node: nodes[0].Name, Tenant: "violet"},
		&pod{Namespace: "violet", Name: "violet-2", Node: nodes[len(nodes)-1].Name, Tenant: "violet"},
		&pod{Namespace: "violet", Name: "violet-3", Node: nodes[len(nodes)-1].Name, Tenant: "violet"})
}

func layer2Reach(ctx context.Context, w *World) (string, error) {
	return w.mesh(ctx, w.tenant("violet"))
}

func setUpLayer2Host(ctx context.Context, w *World) error {
	p := &pod{Namespace: "violet", Name: "violet-host", Node: w.Lab.Nodes()[0].Name, Tenant: "violet", HostNetwork: true}
	w.addPods(p)
	if err := w.Lab.Apply(ctx, fmt.Sprintf(`
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
  - name: netprobe
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}]
    command: [/tools/netprobe, serve, --name, violet-host, --listen, ":8095"]
`, p.Name, p.Namespace, p.Node, toolsDir)); err != nil {
		return err
	}
	return w.ready(ctx, p)
}

// layer2Host probes from violet's host-network pod, and from violet's pods on its
// node. The node has the same address on violet as all others: pods on other nodes
// reach their own node there, where nobody serves.
func layer2Host(ctx context.Context, w *World) (string, error) {
	host, err := w.pod("violet-host")
	if err != nil {
		return "", err
	}
	want := map[string]string{}
	var own []netip.Addr
	for _, p := range w.tenant("violet") {
		for _, t := range targets(p.Primary...) {
			want[t] = p.Namespace + "/" + p.Name
		}
		if p.Node == host.Node {
			own = own[:0]
			for _, a := range p.Primary {
				bits := 16
				if a.Is6() {
					bits = 64
				}
				own = append(own, network.Management(netip.PrefixFrom(a, bits).Masked()).Addr())
			}
		}
	}
	if _, err := w.reach(ctx, host, "", want); err != nil {
		return "", fmt.Errorf("from violet's host-network pod: %w", err)
	}
	list := append(addrTargets("tcp", own, 8095), addrTargets("udp", own, 8095)...)
	return fmt.Sprintf("%d targets", len(want)+len(list)), each(w.tenant("violet"), func(from *pod) error {
		if from.Node == host.Node {
			answers := map[string]string{}
			for _, t := range list {
				answers[t] = "violet-host"
			}
			if _, err := w.reach(ctx, from, "", answers); err != nil {
				return fmt.Errorf("%s to violet's host-network pod: %w", from.Name, err)
			}
			return nil
		}
		got, err := w.check(ctx, from, "", probeTime, list...)
		if err != nil {
			return err
		}
		var errs []error
		for _, g := range got {
			if g.OK {
				errs = append(errs, fmt.Errorf("%s reached %s (%q) on its own node", from.Name, g.Target, g.Who))
			}
		}
		return errors.Join(errs...)
	})
}
