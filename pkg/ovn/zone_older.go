// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// A namespace may get the primary network label after its first pods. These pods
// keep the cluster default network alone, and no other pod of the namespace gets
// a network on this node until they are gone.

// hasInterfaces reports whether a pod has interfaces, created by us or others.
func hasInterfaces(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning || len(pod.Status.PodIPs) > 0
}

// addDefaultOnly records a pod without a primary network.
func (z *Zone) addDefaultOnly(pod *corev1.Pod) {
	if z.defaultOnly[pod.Namespace] == nil {
		z.defaultOnly[pod.Namespace] = map[string]string{}
	}
	z.defaultOnly[pod.Namespace][pod.Namespace+"/"+pod.Name] = string(pod.UID)
}

// removeDefaultOnly forgets a pod without a primary network. After the last one
// of a namespace it enqueues the namespace's other pods.
func (z *Zone) removeDefaultOnly(key string) {
	namespace, _, _ := strings.Cut(key, "/")
	if _, ok := z.defaultOnly[namespace][key]; !ok {
		return
	}
	delete(z.defaultOnly[namespace], key)
	if len(z.defaultOnly[namespace]) == 0 {
		delete(z.defaultOnly, namespace)
		z.enqueuePods(namespace)
	}
}

// olderPods returns an error that names the pods without a primary network that
// block new pods of a labelled namespace, nil for none.
func (z *Zone) olderPods(namespace string) error {
	var names []string
	for key := range z.defaultOnly[namespace] {
		names = append(names, strings.TrimPrefix(key, namespace+"/"))
	}
	return network.OlderPods(namespace, names)
}

// keepLocks returns pods, locked also where their existing port is: a changed
// annotation must not unlock the port of a living pod.
func keepLocks(pods []PodPort, have State) []PodPort {
	locked := map[string]string{} // UID by port
	for _, r := range have {
		if r.Table == nbdb.LogicalSwitchPortTable && r.locked() {
			locked[r.ID] = externalIDs(r.Model)[markPodUID]
		}
	}
	out := slices.Clone(pods)
	for i, p := range out {
		out[i].Locked = p.Locked || locked[network.PodLSP(p.NADKey, p.Namespace, p.Pod)] == p.UID
	}
	return out
}
