// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/healthcheck"
	"bulkhead/pkg/network"
)

// reasonHealthPort is the event of a Service whose health check port cannot be opened.
const reasonHealthPort = "HealthCheckPortNotServed"

// healthChecks is the interface of the zone to healthcheck.Server.
type healthChecks interface {
	Replace(network string, services []healthcheck.Service, keep func(key string) bool)
	Set(network string, service healthcheck.Service)
	Lower(network string, service healthcheck.Service)
	Remove(network, key string)
	Run(ctx context.Context)
}

// serveHealth serves the health checks of the services whose rows a job has written: load balancers
// outside the cluster send nothing to a node before OVN knows the endpoints. failed are the units of which a row
// could not be written. If the topology is among them, the node may not lead packets to the services: endpoints and
// ports that are gone are taken away, and none are added.
func (z *Zone) serveHealth(name string, j job, failed map[Unit]bool) {
	var services []healthcheck.Service
	for _, s := range j.in.Services {
		if s.HealthPort != 0 {
			services = append(services, healthcheck.Service{Key: s.Key(), Port: s.HealthPort, Endpoints: s.reachedOn(j.node)})
		}
	}
	kept := func(service string) bool { return failed[serviceUnit(service)] }
	of := func(key string) int {
		return slices.IndexFunc(services, func(s healthcheck.Service) bool { return s.Key == key })
	}
	whole, set := !j.known || j.units == nil, z.health.Set
	if failed[topologyUnit] {
		set = z.health.Lower
	}
	switch {
	case whole && failed[topologyUnit]:
		z.health.Replace(name, nil, func(service string) bool { return kept(service) || of(service) >= 0 })
		for _, s := range services {
			if !kept(s.Key) {
				set(name, s)
			}
		}
		return
	case whole:
		z.health.Replace(name, services, kept)
		return
	}
	for _, u := range j.units {
		switch at := of(u.Name); {
		case u.Kind != KindService || kept(u.Name):
		case at < 0:
			z.health.Remove(name, u.Name)
		default:
			set(name, services[at])
		}
	}
}

// endpointsOn counts the node's ready endpoints, whatever the number of ports and IP families.
func (s Service) endpointsOn(node string) int {
	return s.countEndpoints(node, func(netip.Addr) bool { return true })
}

// reachedOn counts the node's ready endpoints that clients outside the cluster reach with external
// traffic policy Local: in local gateway mode, these are not processes of the node.
func (s Service) reachedOn(node network.Node) int {
	return s.countEndpoints(node.Name, func(a netip.Addr) bool {
		return node.Mode != network.LocalGateway || !node.HasAddress(a)
	})
}

func (s Service) countEndpoints(node string, counts func(netip.Addr) bool) int {
	v4, v6 := map[netip.Addr]struct{}{}, map[netip.Addr]struct{}{}
	for _, p := range s.Ports {
		for _, e := range p.Endpoints {
			switch a := e.Addr.Addr(); {
			case e.Node != node || e.State != EndpointReady || !counts(a):
			case a.Is4():
				v4[a] = struct{}{}
			default:
				v6[a] = struct{}{}
			}
		}
	}
	return max(len(v4), len(v6))
}

// healthPortFailed reports a health check port that cannot be opened to the Service's author.
func (z *Zone) healthPortFailed(s healthcheck.Service, err error) {
	obj, ok, _ := z.services.GetByKey(s.Key)
	if service, isService := obj.(*corev1.Service); ok && isService {
		z.serviceEvent(service, reasonHealthPort,
			"node %s does not answer health checks on port %d (spec.healthCheckNodePort): %v: stop what uses the port there, or recreate the Service with another one", z.cfg.Kubernetes.NodeName, s.Port, err)
	}
}
