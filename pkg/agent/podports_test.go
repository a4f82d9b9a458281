// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestPodPorts(t *testing.T) {
	http := func(port intstr.IntOrString) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: port}}}
	}
	spec := corev1.PodSpec{
		HostNetwork: true,
		InitContainers: []corev1.Container{{StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000}}},
			Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 81}}}},
		Containers: []corev1.Container{
			{LivenessProbe: http(intstr.FromInt32(8080)), ReadinessProbe: http(intstr.FromString("web")), Ports: []corev1.ContainerPort{
				{Name: "web", ContainerPort: 80}, {Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP}, {ContainerPort: 443, Protocol: corev1.ProtocolTCP}}},
			{LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8081)}}},
				ReadinessProbe: http(intstr.FromString("undeclared")), StartupProbe: http(intstr.FromInt32(70000)),
				Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8082)}},
					PreStop: &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8083)}}}},
			{LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}}, Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}},
		},
	}
	for what, s := range map[string]corev1.PodSpec{"whole": spec, "trimmed": trimSpec(spec)} {
		probes, declared := podPorts(s)
		if want := []uint16{80, 8080, 8081, 8082, 8083, 9000}; !slices.Equal(probes, want) {
			t.Errorf("%s: probes %v, want %v", what, probes, want)
		}
		if want := []uint16{80, 81, 443}; !slices.Equal(declared, want) {
			t.Errorf("%s: declared %v, want %v", what, declared, want)
		}
	}
	spec.HostNetwork = false
	if probes, declared := podPorts(trimSpec(spec)); len(probes)+len(declared) > 0 {
		t.Errorf("pod that is not host-network: %v %v", probes, declared)
	}
}

// A Localnet network on the product's own name for the external bridge's physical network is
// refused with the remedy.
func TestMappedOwnPhysicalNetwork(t *testing.T) {
	mapped, err := podPortManager{own: "physnet"}.Mapped(t.Context(), "physnet")
	if mapped || err == nil || !strings.Contains(err.Error(), "map another name to it in external_ids:ovn-bridge-mappings") {
		t.Errorf("mapped %v, %v", mapped, err)
	}
}
