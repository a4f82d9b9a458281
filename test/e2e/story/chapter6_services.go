// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
)

func hostServiceChecks() []Check {
	return []Check{{Chapter: 6, Title: "processes of tenants' host-network pods reach the services that their pods reach, and no others",
		Phase: phaseHost, Needs: needs(fixtureServices, fixtureRedHost, fixtureLayer2Host), Run: hostServicesReached, Group: groupServices}}
}

// hostServicesReached has processes of tenants' host-network pods ask their network's services
// until all endpoints, and nobody else, have answered, the API server, the name servers, and every
// network's node ports on other nodes, and try other networks' services and other ports.
func hostServicesReached(ctx context.Context, w *World) (string, error) {
	api, err := w.apiServerAddress(ctx)
	if err != nil {
		return "", err
	}
	dns, pods, err := w.nameServers(ctx)
	if err != nil {
		return "", err
	}
	var nameServers []string
	for _, p := range pods {
		nameServers = append(nameServers, p.Name)
	}
	var answers, tried atomic.Int32
	sources := []struct{ pod, container string }{{"red-host", "root"}, {"red-host", "nobody"}, {"violet-host", ""}}
	err = each(sources, func(from struct{ pod, container string }) error {
		p, err := w.pod(from.pod)
		if err != nil {
			return err
		}
		ask := func(targets []string) ([]probe, error) { return w.ask(ctx, p, from.container, targets) }
		forbidden := []string{"udp:" + api.String(), "tcp:" + netip.AddrPortFrom(api.Addr(), 6443).String()}
		for _, s := range storyServices {
			n, err := w.otherNodesAnswer(ctx, p, s.namespace, s.tenant, ask)
			answers.Add(int32(n))
			if err != nil {
				return fmt.Errorf("%s %s: %w", from.pod, from.container, err)
			}
			web, err := w.clusterIPs(ctx, s.namespace, "web", 80)
			if err != nil {
				return err
			}
			if s.tenant != p.Tenant {
				forbidden = append(forbidden, web...)
				continue
			}
			endpoints := w.webServers(s.tenant, s.namespace)
			n, err = answered(ask, web, endpoints, len(endpoints))
			answers.Add(int32(n))
			if err != nil {
				return fmt.Errorf("%s %s to service %s/web: %w", from.pod, from.container, s.namespace, err)
			}
		}
		n, err := answered(ask, dns, nameServers, len(nameServers))
		answers.Add(int32(n))
		if err != nil {
			return fmt.Errorf("%s %s to the name servers: %w", from.pod, from.container, err)
		}
		if _, err := w.reach(ctx, p, from.container, map[string]string{"tcp:" + api.String(): apiServer}); err != nil {
			return fmt.Errorf("%s %s to the API server: %w", from.pod, from.container, err)
		}
		got, err := w.attempt(ctx, p, from.container, forbidden...)
		if err != nil {
			return err
		}
		tried.Add(int32(len(forbidden)))
		return reachedAny(from.pod+" "+from.container, got)
	})
	return fmt.Sprintf("%d answers, %d denied attempts", answers.Load(), tried.Load()), err
}

// otherNodesAnswer asks the node ports of a network's service at the nodes other than the process's own.
func (w *World) otherNodesAnswer(ctx context.Context, from *pod, namespace, tenant string, ask func([]string) ([]probe, error)) (int, error) {
	var servers, at []string
	for _, e := range w.endpoints(namespace, tenant) {
		servers = append(servers, e.Namespace+"/"+e.Name)
	}
	for _, n := range w.Lab.Nodes() {
		if n.Name == from.Node {
			continue
		}
		list, err := w.nodePorts(ctx, namespace, addrs(n))
		if err != nil {
			return 0, err
		}
		at = append(at, list...)
	}
	if len(at) == 0 {
		return 0, nil
	}
	answers, err := answered(ask, at, servers, 1)
	if err != nil {
		return answers, fmt.Errorf("node ports of tenant %q on other nodes: %w", tenant, err)
	}
	return answers, nil
}
