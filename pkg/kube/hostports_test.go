// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The first host ports of a pod count, those of its containers before those of its init containers.
func TestHostPortsLimit(t *testing.T) {
	var many []corev1.ContainerPort
	for i := range MaxHostPorts {
		many = append(many, corev1.ContainerPort{ContainerPort: 80, HostPort: int32(1000 + i)})
	}
	spec := corev1.PodSpec{Containers: []corev1.Container{{Ports: many}}, InitContainers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 1}, {ContainerPort: 80, HostPort: 2}}}}}
	ports, left := HostPorts(spec)
	if len(ports) != MaxHostPorts || left != 2 || ports[MaxHostPorts-1].Port != uint16(1000+MaxHostPorts-1) {
		t.Errorf("%d ports, %d left, the last is %d", len(ports), left, ports[len(ports)-1].Port)
	}
	spec.InitContainers = nil
	if ports, left = HostPorts(spec); len(ports) != MaxHostPorts || left != 0 {
		t.Errorf("%d ports, %d left", len(ports), left)
	}
}
