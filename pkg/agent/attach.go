// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/cni"
	"bulkhead/pkg/ovs"
)

// podPortManager is cni.Ports over Open vSwitch. Before it creates a pod's
// ports, it locks the pod's address and guards the ports' interfaces:
// restrictions are in place before the pod is reachable.
type podPortManager struct {
	ovs   *ovs.Client
	hosts *hostReconciler
	doors *doorReader
	pod   func(namespace, name string) (*corev1.Pod, bool) // from the informer
	own   string                                           // the product's name for the external bridge's physical network
	log   *slog.Logger
}

var _ cni.Ports = podPortManager{}

// Ensure implements cni.Ports. All ports are of one pod.
func (m podPortManager) Ensure(ctx context.Context, ports []cni.Port) (replaced []string, err error) {
	if len(ports) > 0 {
		if pod, running := m.storePod(ports[0].Namespace, ports[0].Pod); running {
			if err := m.hosts.lock(ctx, pod); err != nil {
				return nil, err
			}
		}
	}
	defer m.doors.connected(ports)
	if err := m.doors.guardPorts(ctx, ports); err != nil {
		return nil, err
	}
	return m.ovs.EnsurePods(ctx, toOVS(ports))
}

// storePod copies a pod from the informer into the agent's cache, because the pod's event may not have been handled yet,
// and returns it. running is false if the pod is gone or has ended. storePod repeats until the informer's object stays
// the same, so that it does not undo an event: an object is in the informer before its event is handled.
func (m podPortManager) storePod(namespace, name string) (pod Pod, running bool) {
	cache := m.hosts.cache
	for {
		o, ok := m.pod(namespace, name)
		running = false
		if ok {
			pod, running = parsePod(o, m.log)
		}
		if running {
			updatePod(cache, m.hosts.queue, m.hosts.config, pod)
		} else {
			removePod(cache, m.hosts.queue, m.hosts.config, namespace+"/"+name)
		}
		if now, still := m.pod(namespace, name); still == ok && now == o {
			return pod, running
		}
	}
}

// Delete implements cni.Ports.
func (m podPortManager) Delete(ctx context.Context, sandbox, attachment string) error {
	return m.ovs.DeletePods(ctx, sandbox, attachment)
}

// DeleteNames implements cni.Ports.
func (m podPortManager) DeleteNames(ctx context.Context, names []string) error {
	return m.ovs.DeletePodPorts(ctx, names)
}

// List implements cni.Ports.
func (m podPortManager) List(ctx context.Context) ([]cni.Port, error) {
	list, err := m.ovs.ListPods(ctx)
	out := make([]cni.Port, len(list))
	for i, p := range list {
		out[i] = cni.Port(p)
	}
	return out, err
}

// Mapped implements cni.Ports.
func (m podPortManager) Mapped(ctx context.Context, physicalNetwork string) (bool, error) {
	if physicalNetwork == m.own {
		return false, fmt.Errorf("physical network %s is Bulkhead's own: for a Localnet network on the external bridge, map another name to it in external_ids:ovn-bridge-mappings", m.own)
	}
	ids, err := m.ovs.ExternalIDs(ctx)
	if err != nil {
		return false, err
	}
	_, ok := ovs.BridgeMappings(ids)[physicalNetwork]
	return ok, nil
}

// WaitInstalled implements cni.Ports.
func (m podPortManager) WaitInstalled(ctx context.Context, ports []cni.Port) error {
	return m.ovs.WaitInstalled(ctx, toOVS(ports))
}

func toOVS(ports []cni.Port) []ovs.PodPort {
	out := make([]ovs.PodPort, len(ports))
	for i, p := range ports {
		out[i] = ovs.PodPort(p)
	}
	return out
}
