// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/cni"
	"bulkhead/pkg/ovs"
)

// PodPorts is cni.Ports over Open vSwitch. Before it makes a pod's ports, it
// has the pod locked and their interfaces guarded: closed comes before
// reachable.
type PodPorts struct {
	OVS   *ovs.Client
	Agent *Agent
	// Pod is the pod as the API server has it now.
	Pod func(namespace, name string) (*corev1.Pod, bool)
}

var _ cni.Ports = PodPorts{}

// Ensure implements cni.Ports.
func (p PodPorts) Ensure(ctx context.Context, ports []cni.Port) error {
	if len(ports) > 0 { // all of them are one pod's
		if o, ok := p.Pod(ports[0].Namespace, ports[0].Pod); ok {
			if pod, live := podOf(o, p.Agent.Log); live {
				if err := p.Agent.Lock(ctx, pod); err != nil {
					return err
				}
			}
		}
	}
	defer p.Agent.Connected(ports)
	if err := p.Agent.GuardPorts(ctx, ports); err != nil {
		return err
	}
	return p.OVS.EnsurePods(ctx, toOVS(ports))
}

// Delete implements cni.Ports.
func (p PodPorts) Delete(ctx context.Context, sandbox, attachment string) error {
	return p.OVS.DeletePods(ctx, sandbox, attachment)
}

// DeleteNames implements cni.Ports.
func (p PodPorts) DeleteNames(ctx context.Context, names []string) error {
	return p.OVS.DeletePodPorts(ctx, names)
}

// List implements cni.Ports.
func (p PodPorts) List(ctx context.Context) ([]cni.Port, error) {
	list, err := p.OVS.ListPods(ctx)
	out := make([]cni.Port, len(list))
	for i, x := range list {
		out[i] = cni.Port(x)
	}
	return out, err
}

// WaitInstalled implements cni.Ports.
func (p PodPorts) WaitInstalled(ctx context.Context, ports []cni.Port) error {
	return p.OVS.WaitInstalled(ctx, toOVS(ports))
}

func toOVS(ports []cni.Port) []ovs.PodPort {
	out := make([]ovs.PodPort, len(ports))
	for i, x := range ports {
		out[i] = ovs.PodPort(x)
	}
	return out
}
