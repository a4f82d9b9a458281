// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
)

// MaxHostPorts is how many host ports of a pod count: each costs rows and rules on its node, and its author
// chooses how many there are.
const MaxHostPorts = 128

// HostPorts returns the first MaxHostPorts host ports of a pod's containers, and the number of the others. A host-network
// pod has none: its containers use the node's ports themselves.
func HostPorts(spec corev1.PodSpec) (ports []network.HostPort, left int) {
	if spec.HostNetwork {
		return nil, 0
	}
	var out []network.HostPort
	for _, list := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
		for _, c := range list {
			for _, p := range c.Ports {
				if p.HostPort <= 0 || p.HostPort >= 1<<16 || p.ContainerPort <= 0 || p.ContainerPort >= 1<<16 {
					continue
				}
				h := network.HostPort{Protocol: strings.ToLower(string(cmp.Or(p.Protocol, corev1.ProtocolTCP))), Port: uint16(p.HostPort), PodPort: uint16(p.ContainerPort)}
				if p.HostIP != "" {
					a, err := netip.ParseAddr(p.HostIP)
					if err != nil {
						continue // the API server does not admit it
					}
					h.Host = a.Unmap()
				}
				out = append(out, h)
			}
		}
	}
	n := min(len(out), MaxHostPorts)
	return out[:n:n], len(out) - n
}

// TrimHostPorts returns what HostPorts reads of a pod.
func TrimHostPorts(spec corev1.PodSpec) (containers, initContainers []corev1.Container) {
	trim := func(list []corev1.Container) (kept []corev1.Container) {
		for _, c := range list {
			var ports []corev1.ContainerPort
			for _, p := range c.Ports {
				if p.HostPort != 0 {
					ports = append(ports, p)
				}
			}
			if len(ports) > 0 {
				kept = append(kept, corev1.Container{Name: c.Name, Ports: ports})
			}
		}
		return kept
	}
	return trim(spec.Containers), trim(spec.InitContainers)
}
