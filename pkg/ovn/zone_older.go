// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// A namespace whose pods are to have a primary network may have pods from
// before that was so: its label came late. Those stay as they are, and no
// other pod of the namespace gets a network on this node until they are gone.

// runs tells whether a pod has interfaces, whoever made them.
func runs(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning || len(pod.Status.PodIPs) > 0
}

// isAlone notes a pod on the cluster default network without a primary one.
func (z *Zone) isAlone(pod *corev1.Pod) {
	if z.alone[pod.Namespace] == nil {
		z.alone[pod.Namespace] = map[string]string{}
	}
	z.alone[pod.Namespace][pod.Namespace+"/"+pod.Name] = string(pod.UID)
}

// notAlone forgets such a pod. After the last of a namespace, the others are
// looked at again.
func (z *Zone) notAlone(key string) {
	namespace, _, _ := strings.Cut(key, "/")
	if _, ok := z.alone[namespace][key]; !ok {
		return
	}
	delete(z.alone[namespace], key)
	if len(z.alone[namespace]) == 0 {
		delete(z.alone, namespace)
		z.enqueuePods(namespace)
	}
}

// olderPods says which pods keep new ones of a labelled namespace from getting
// networks, nil for none.
func (z *Zone) olderPods(namespace string) error {
	var names []string
	for key := range z.alone[namespace] {
		names = append(names, strings.TrimPrefix(key, namespace+"/"))
	}
	return network.OlderPods(namespace, names)
}

// asLocked are pods with the locks that their ports have besides: while a pod
// lives, what its annotation came to say opens no port.
func asLocked(pods []PodPort, have State) []PodPort {
	locked := map[string]string{} // UID by port
	for _, r := range have {
		if r.Table == nbdb.LogicalSwitchPortTable && slices.ContainsFunc(r.In, weak) {
			locked[r.ID] = externalIDs(r.Model)[markPodUID]
		}
	}
	out := slices.Clone(pods)
	for i, p := range out {
		out[i].Locked = p.Locked || locked[network.PodLSP(p.NADKey, p.Namespace, p.Pod)] == p.UID
	}
	return out
}
