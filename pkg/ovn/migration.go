// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
)

// Two pods of a namespace have the same addresses if they use one IPAMClaim: the
// pods of a virtual machine during a live migration. Only one of their ports passes
// packets. Every zone chooses it by itself, from the pods in the API: no zone waits
// for another, or for the cluster controller.

// activePod returns the pod that has the addresses that all of pods share, nil if
// all have completed. It is the newest that KubeVirt has reported to run the virtual
// machine after a migration, and the oldest if there is none. A migration that fails
// therefore leaves the addresses with the pod that had them.
func activePod(pods []*corev1.Pod) *corev1.Pod {
	pods = slices.DeleteFunc(slices.Clone(pods), needsNoNetwork)
	if len(pods) == 0 {
		return nil
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	for _, pod := range slices.Backward(pods) {
		if pod.Annotations[network.AnnotationMigrationTargetReady] != "" {
			return pod
		}
	}
	return pods[0]
}

// indexMAC indexes pods by namespace and MAC address.
const indexMAC = "mac"

func macKey(namespace, mac string) string { return namespace + " " + mac }

func podMACs(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	entries, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		return nil, nil //nolint:nilerr // such a pod has no ports
	}
	var out []string
	for _, e := range entries {
		out = append(out, macKey(pod.Namespace, e.MAC))
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// podsWithMAC returns the namespace's pods that have the MAC address on the network of
// an attachment, on this node and on others. key is the attachment's in the annotation.
func (z *Zone) podsWithMAC(namespace, key, mac string) (own, remote []*corev1.Pod) {
	return z.filterByMAC(z.podStore.ByIndex, namespace, key, mac), z.filterByMAC(z.remotePods.ByIndex, namespace, key, mac)
}

func (z *Zone) filterByMAC(byIndex func(index, value string) ([]any, error), namespace, key, mac string) []*corev1.Pod {
	objs, err := byIndex(indexMAC, macKey(namespace, mac))
	if err != nil {
		z.log.Error("cannot list the pods with a MAC address", "nad", key, "error", err)
	}
	var out []*corev1.Pod
	for _, obj := range objs {
		if pod, ok := obj.(*corev1.Pod); ok && z.hasMAC(pod, key, mac) {
			out = append(out, pod)
		}
	}
	return out
}

// hasMAC reports whether a pod has the MAC address on the network of an attachment.
// A NAD that was deleted by force names no network, but running pods keep its key.
func (z *Zone) hasMAC(pod *corev1.Pod, key, mac string) bool {
	entries, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		return false
	}
	wanted, _ := z.nadIndex.NAD(network.NADOf(key))
	for k, e := range entries {
		nad, _ := z.nadIndex.NAD(network.NADOf(k))
		if e.MAC == mac && (network.NADOf(k) == network.NADOf(key) || nad.Network.Name != "" && nad.Network.Name == wanted.Network.Name) {
			return true
		}
	}
	return false
}

// withHandover returns a port of a pod of this node, disabled if another pod has its
// addresses.
func (z *Zone) withHandover(p PodPort) PodPort {
	if p.MAC != "" { // the cluster controller's networks
		p.Disabled = z.inactive(p.Namespace, p.UID, p.NADKey, p.MAC)
	}
	return p
}

// inactive reports whether another pod has the addresses that a pod shares with it.
func (z *Zone) inactive(namespace, uid, key, mac string) bool {
	own, remote := z.podsWithMAC(namespace, key, mac)
	if len(own)+len(remote) < 2 {
		return false
	}
	active := activePod(slices.Concat(own, remote))
	return active != nil && string(active.UID) != uid
}

// enqueueSharing enqueues the units of all pods that have a pod's addresses, if there
// are others: the pod's change may hand the addresses over.
func (z *Zone) enqueueSharing(pod *corev1.Pod) {
	if !z.synced {
		return
	}
	entries, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		return
	}
	for k, e := range entries {
		nad, ok := z.nadIndex.NAD(network.NADOf(k))
		if !ok || nad.Network.Name == "" || zoneAllocates(nad.Network) {
			continue
		}
		name := nad.Network.Name
		own, remote := z.podsWithMAC(pod.Namespace, k, e.MAC)
		if !slices.ContainsFunc(slices.Concat(own, remote), func(p *corev1.Pod) bool { return p.UID != pod.UID }) {
			continue
		}
		var units []Unit
		for _, p := range own {
			units = append(units, podUnit(p.Namespace+"/"+p.Name))
		}
		for _, p := range remote {
			units = append(units, remoteUnit(p.Namespace+"/"+p.Name))
		}
		z.queue.AddUnits(name, units...)
	}
}

// enqueueVirtualMachines enqueues the ports of this node's virtual machines.
func (z *Zone) enqueueVirtualMachines() {
	for key, st := range z.pods {
		for _, a := range st.ports {
			if a.port.VirtualMachine != "" {
				z.queue.AddUnits(a.network, podUnit(key))
			}
		}
	}
}
