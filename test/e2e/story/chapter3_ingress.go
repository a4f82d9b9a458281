// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync/atomic"

	"bulkhead/test/lab"
)

func ingressChecks() []Check {
	const needed = "pods of ingress namespaces, also host-network pods, "
	return []Check{
		{Chapter: 3, Title: needed + "reach the services of every network", Phase: phaseReach, Needs: needs(fixtureServices, fixtureIngress), Run: ingressReaches, Group: groupIngress},
		{Chapter: 4, Title: needed + "reach nothing else of a network", Phase: phaseIsolation, Needs: needs(fixtureServices, fixtureIngress), Run: ingressConfined, Group: groupIngress},
	}
}

var ingressNamespace = fmt.Sprintf("\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", lab.IngressNamespace)

// setUpIngress creates pods in lab.IngressNamespace on each node: one of the cluster default network
// and one in the host's network. Their tenant's name keeps them apart from the other pods of the
// default network.
func setUpIngress(ctx context.Context, w *World) error {
	if err := w.Lab.Apply(ctx, ingressNamespace); err != nil {
		return err
	}
	var pods, hosts []*pod
	var manifests []string
	for i, n := range w.Lab.Nodes() {
		pods = append(pods, &pod{Namespace: lab.IngressNamespace, Name: fmt.Sprintf("edge-%d", i+1), Node: n.Name, Tenant: lab.IngressNamespace})
		host, manifest := hostNetworkPod(lab.IngressNamespace, fmt.Sprintf("edge-host-%d", i+1), n.Name, lab.IngressNamespace, "")
		hosts, manifests = append(hosts, host), append(manifests, manifest)
	}
	w.addPods(hosts...)
	if err := w.Lab.Apply(ctx, strings.Join(manifests, "---\n")); err != nil {
		return err
	}
	if err := w.create(ctx, pods...); err != nil {
		return err
	}
	for _, p := range hosts {
		if err := w.ready(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// ingressSource is a process of a pod in an ingress namespace.
type ingressSource struct {
	pod       *pod
	container string
}

func (s ingressSource) String() string {
	return strings.TrimSpace(s.pod.Name+" "+s.container) + " on " + s.pod.Node
}

func (w *World) ingressSources() ([]ingressSource, error) {
	var out []ingressSource
	for i := range w.Lab.Nodes() {
		p, err := w.pod(fmt.Sprintf("edge-%d", i+1))
		if err != nil {
			return nil, err
		}
		host, err := w.pod(fmt.Sprintf("edge-host-%d", i+1))
		if err != nil {
			return nil, err
		}
		out = append(out, ingressSource{p, ""}, ingressSource{host, "root"}, ingressSource{host, "nobody"})
	}
	return out, nil
}

// ingressReaches has each process ask every tenant's service until all endpoints, and nobody else,
// have answered. Host-network processes ask all services' node ports, too. They do not ask the cluster IPs of
// the cluster default network, which they reach as every process outside the tenants does.
func ingressReaches(ctx context.Context, w *World) (string, error) {
	sources, err := w.ingressSources()
	if err != nil {
		return "", err
	}
	var answers atomic.Int32
	err = each(sources, func(from ingressSource) error {
		for _, s := range storyServices {
			servers, ask := w.webServers(s.tenant, s.namespace), func(list []string) ([]probe, error) { return w.ask(ctx, from.pod, from.container, list) }
			if from.pod.HostNetwork {
				n, err := w.nodePortsAnswer(ctx, s.namespace, servers, ask)
				answers.Add(int32(n))
				if err != nil {
					return fmt.Errorf("%s to node ports of %s: %w", from, s.namespace, err)
				}
			}
			if s.tenant == "" && from.pod.HostNetwork {
				continue
			}
			list, err := w.clusterIPs(ctx, s.namespace, "web", 80)
			if err != nil {
				return err
			}
			n, err := answered(ask, list, servers, len(servers))
			answers.Add(int32(n))
			if err != nil {
				return fmt.Errorf("%s to service %s/web: %w", from, s.namespace, err)
			}
		}
		return nil
	})
	return fmt.Sprintf("%d processes, %d answers", len(sources), answers.Load()), err
}

// nodePortsAnswer asks a namespace's node ports on each node until all servers have answered.
func (w *World) nodePortsAnswer(ctx context.Context, namespace string, servers []string, ask func([]string) ([]probe, error)) (answers int, err error) {
	var list []string
	for _, n := range w.Lab.Nodes() {
		ports, err := w.nodePorts(ctx, namespace, addrs(n))
		if err != nil {
			return 0, err
		}
		list = append(list, ports...)
	}
	return answered(ask, list, servers, len(servers))
}

// ingressConfined has each process try other ports of tenants' services, the services' endpoints, the
// nodes' addresses on the networks, and all pods' locked addresses.
func ingressConfined(ctx context.Context, w *World) (string, error) {
	sources, err := w.ingressSources()
	if err != nil {
		return "", err
	}
	var list []string
	controls := map[string]string{} // the services themselves
	for _, s := range storyServices {
		if s.tenant == "" {
			continue
		}
		open, err := w.clusterIPs(ctx, s.namespace, "web", 80)
		if err != nil {
			return "", err
		}
		maps.Copy(controls, anyOf(open))
		web, err := w.clusterIPs(ctx, s.namespace, "web", 81)
		if err != nil {
			return "", err
		}
		list = append(list, web...)
		for _, p := range w.tenant(s.tenant) {
			list = append(list, targets(p.Primary...)...)
			for _, a := range p.Default {
				list = append(list, "tcp:"+netip.AddrPortFrom(a, 8080).String())
			}
		}
	}
	for _, n := range w.Lab.Nodes() {
		for _, a := range w.nodeAddrs("red", n.Name) {
			list = append(list, "icmp:"+a.String())
		}
	}
	return fmt.Sprintf("%d processes, %d attempts each", len(sources), len(list)), each(sources, func(from ingressSource) error {
		got, err := w.attempts(w.tryFrom(ctx, from.pod, from.container), list, controls)
		if err != nil {
			return err
		}
		return reachedAny(from.String(), got)
	})
}
