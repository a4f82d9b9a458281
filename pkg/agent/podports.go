// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"bulkhead/pkg/kube"
)

// trimSpec keeps what parsePod reads: the ports of a host-network pod's
// containers, probes and hooks, and other pods' host ports.
func trimSpec(spec corev1.PodSpec) corev1.PodSpec {
	out := corev1.PodSpec{HostNetwork: spec.HostNetwork, NodeName: spec.NodeName}
	if !spec.HostNetwork {
		out.Containers, out.InitContainers = kube.TrimHostPorts(spec)
		return out
	}
	trim := func(list []corev1.Container) []corev1.Container {
		var kept []corev1.Container
		for _, c := range list {
			kept = append(kept, corev1.Container{Name: c.Name, Ports: c.Ports, LivenessProbe: c.LivenessProbe, ReadinessProbe: c.ReadinessProbe,
				StartupProbe: c.StartupProbe, Lifecycle: c.Lifecycle})
		}
		return kept
	}
	out.Containers, out.InitContainers = trim(spec.Containers), trim(spec.InitContainers)
	return out
}

// podPorts are the TCP ports of the probes and hooks of a pod's containers, and
// the TCP ports that the containers declare.
func podPorts(spec corev1.PodSpec) (probes, declared []uint16) {
	probed, declaredSet := map[uint16]bool{}, map[uint16]bool{}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		add := func(p intstr.IntOrString) {
			n := p.IntValue()
			if p.Type == intstr.String {
				n = 0
				for _, x := range c.Ports {
					if x.Name == p.StrVal {
						n = int(x.ContainerPort)
					}
				}
			}
			if n > 0 && n < 1<<16 {
				probed[uint16(n)] = true
			}
		}
		for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			switch {
			case p == nil:
			case p.HTTPGet != nil:
				add(p.HTTPGet.Port)
			case p.TCPSocket != nil:
				add(p.TCPSocket.Port)
			case p.GRPC != nil:
				add(intstr.FromInt32(p.GRPC.Port))
			}
		}
		if c.Lifecycle != nil {
			for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
				switch {
				case h == nil:
				case h.HTTPGet != nil:
					add(h.HTTPGet.Port)
				case h.TCPSocket != nil:
					add(h.TCPSocket.Port)
				}
			}
		}
		for _, x := range c.Ports {
			if x.ContainerPort > 0 && x.ContainerPort < 1<<16 && (x.Protocol == "" || x.Protocol == corev1.ProtocolTCP) {
				declaredSet[uint16(x.ContainerPort)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(probed)), slices.Sorted(maps.Keys(declaredSet))
}
