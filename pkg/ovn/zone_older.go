// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

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

// connectPause is how often the zone looks whether a pod that kubelet does not report yet is still connected.
const connectPause = 10 * time.Second

// decidedEarly reports whether a pod has the cluster default network alone although its namespace has the label,
// and its status does not say that it has interfaces. Either it was just connected, or the zone did not know the label yet:
// pods and namespaces have different watches, and a namespace may be recreated with the label.
func (z *Zone) decidedEarly(pod *corev1.Pod) bool {
	ns, err := z.nsLister.Get(pod.Namespace)
	if err != nil || hasInterfaces(pod) {
		return false
	}
	_, labelled := ns.Labels[network.LabelPrimaryUDN]
	return labelled && z.defaultOnly[pod.Namespace][pod.Namespace+"/"+pod.Name] == string(pod.UID)
}

// decideAgain has the networks of a pod that was decidedEarly decided again, unless it is connected. It reports whether it
// has enqueued the pod for that. The pod's port is locked at once: the decision may have to wait for the primary network.
func (z *Zone) decideAgain(ctx context.Context, pod *corev1.Pod) (bool, error) {
	key := pod.Namespace + "/" + pod.Name
	up, err := z.portUp(ctx, pod)
	if err != nil {
		return false, fmt.Errorf("read the port of pod %s: %w", key, err)
	}
	if up {
		z.podQueue.AddAfter(key, connectPause) // kubelet may fail to start the pod, and connect it again
		return false, nil
	}
	z.log.Info("pod was assigned the cluster default network alone before its namespace's label was known: deciding again", "pod", key)
	z.mu.Lock()
	defer z.mu.Unlock()
	z.removeDefaultOnly(key)
	st := z.pods[key]
	if st == nil {
		st = &podState{uid: string(pod.UID), ports: map[string]attachment{}}
		z.pods[key] = st
	}
	st.defaultOnly, st.undecided = false, true
	if g, ok := st.ports[network.DefaultName]; ok {
		g.port.Locked, g.port.Ingress = true, false
		st.ports[network.DefaultName] = g
		z.state(g.network).pods[key+" "+network.DefaultName] = g.port
		z.queue.AddUnits(g.network, podUnit(key))
	}
	z.podQueue.Add(key)
	return true, nil
}

// portUp reports whether the pod's port on the cluster default network is bound to an interface.
func (z *Zone) portUp(ctx context.Context, pod *corev1.Pod) (bool, error) {
	unit := podUnit(pod.Namespace + "/" + pod.Name)
	rows, err := z.nb.Read(ctx, Selection{Network: network.DefaultName, Node: z.cfg.Kubernetes.NodeName, Units: []Unit{unit}})
	return slices.ContainsFunc(rows, func(r Row) bool {
		p, ok := r.Model.(*nbdb.LogicalSwitchPort)
		return ok && p.Up != nil && *p.Up && p.ExternalIDs[markPodUID] == string(pod.UID)
	}), err
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
