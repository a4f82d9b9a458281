// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/network"
)

// The cluster controller allocates the addresses of pods on Layer 2 and Localnet networks
// and writes them into the pods' annotation. This node's pods get their ports from
// it. On Layer 2 networks other nodes' pods have remote ports here: the cluster controller
// labels those pods.

// zoneAllocates reports whether the zone allocates the network's addresses.
func zoneAllocates(n network.Network) bool { return n.Topology == network.Layer3 }

// updateClusterPorts updates the pod's ports on networks whose addresses the cluster
// controller allocates. A port stays as long as the pod, even if its NAD becomes unusable or
// is deleted.
func (z *Zone) updateClusterPorts(pod *corev1.Pod, st *podState) {
	key := pod.Namespace + "/" + pod.Name
	entries, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		return // only our roles write it, and the cluster controller repairs it
	}
	set := func(k string, g attachment) {
		if was, ok := st.ports[k]; ok && reflect.DeepEqual(was, g) {
			return
		}
		if !slices.Equal(st.ports[k].port.HostPorts, g.port.HostPorts) {
			z.claimHostPorts(g.network, g.port)
		}
		st.ports[k] = g
		z.state(g.network).pods[key+" "+k] = g.port
		z.queue.AddUnits(g.network, podUnit(key))
	}
	for k, e := range entries {
		n, ok := z.clusterNetwork(pod.Namespace, k)
		if !ok {
			continue
		}
		if err := checkEntry(n, e); err != nil {
			z.log.Warn("pod gets no port: its annotation is wrong", "pod", key, "network", n.Name, "error", err)
			continue
		}
		z.state(n.Name).net = n
		set(k, attachment{network: n.Name, cluster: true, port: PodPort{
			NADKey: k, Namespace: pod.Namespace, Pod: pod.Name, UID: st.uid, MAC: e.MAC, IPs: e.IPs, TunnelKey: e.TunnelID,
			VirtualMachine: pod.Labels[network.LabelVirtualMachine], HostPorts: hostPorts(pod, n), Created: pod.CreationTimestamp.Time,
		}})
	}
}

// clusterNetwork returns the network of a key of the annotation, if nodes build it,
// the cluster controller allocates its addresses, and pods of the namespace may have it.
func (z *Zone) clusterNetwork(namespace, key string) (network.Network, bool) {
	nad, ok := z.nadIndex.NAD(network.NADOf(key))
	if key == network.DefaultName || !ok || nad.Err != nil || zoneAllocates(nad.Network) || !nad.Admits(namespace) {
		return network.Network{}, false
	}
	return nad.Network, true
}

// checkEntry checks an entry of the annotation: port security would let the pod send
// from whatever it names.
func checkEntry(n network.Network, e network.PodNetwork) error {
	hw, err := net.ParseMAC(e.MAC)
	if err != nil || len(hw) != 6 || hw[0]&1 != 0 {
		return fmt.Errorf("mac_address %q is not a unicast Ethernet address", e.MAC)
	}
	for _, ip := range e.IPs {
		if !n.Contains(ip.Addr()) {
			return fmt.Errorf("%s is outside the network's subnets %v", ip, n.CIDRs())
		}
	}
	if len(e.IPs) == 0 && len(n.Subnets) > 0 {
		return errors.New("it has no addresses")
	}
	if n.Topology == network.Layer2 && e.TunnelID == 0 {
		return errors.New("it has no tunnel_id")
	}
	return nil
}

// Indexes of other nodes' pods.
const (
	indexNADs = "nads"
	indexNode = "node"
)

var remotePodIndexers = cache.Indexers{
	indexNADs: func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return network.PodNADs(pod.Annotations[network.AnnotationPodNetworks]), nil
		}
		return nil, nil
	},
	indexMAC: podMACs,
	indexNode: func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	},
}

// remotePodChanged enqueues the units of another node's pod, unless only what remote
// ports do not depend on has changed, e.g. a condition in its status.
func (z *Zone) remotePodChanged(old, obj any) {
	was, ok := old.(*corev1.Pod)
	if now, isPod := obj.(*corev1.Pod); ok && isPod && was.UID == now.UID && was.Spec.NodeName == now.Spec.NodeName &&
		was.Status.Phase == now.Status.Phase && reflect.DeepEqual(was.Annotations, now.Annotations) {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, o := range []any{old, obj} {
		if pod, ok := o.(*corev1.Pod); ok {
			z.enqueueRemotePod(pod)
			z.enqueueSharing(pod)
		}
	}
}

func (z *Zone) enqueueRemotePod(pod *corev1.Pod) {
	if !z.synced {
		return
	}
	for _, key := range network.PodNADs(pod.Annotations[network.AnnotationPodNetworks]) {
		name := z.withoutNAD[key]
		if nad, ok := z.nadIndex.NAD(key); ok {
			name = nad.Network.Name
		}
		if name != "" {
			z.queue.AddUnits(name, remoteUnit(pod.Namespace+"/"+pod.Name))
		}
	}
}

// enqueueRemotePodsOf enqueues the units of another node's pods.
func (z *Zone) enqueueRemotePodsOf(node string) {
	pods, err := z.remotePods.ByIndex(indexNode, node)
	if err != nil {
		z.log.Error("cannot list the pods of a node", "node", node, "error", err)
	}
	for _, obj := range pods {
		if pod, ok := obj.(*corev1.Pod); ok {
			z.enqueueRemotePod(pod)
		}
	}
}

// remotePodsOn returns the keys of other nodes' pods on a Layer 2 network, sorted.
func (z *Zone) remotePodsOn(name string) []string {
	var out []string
	for _, nad := range z.nadIndex.Keys(name) {
		keys, err := z.remotePods.IndexKeys(indexNADs, nad)
		if err != nil {
			z.log.Error("cannot list the pods of a network", "network", name, "error", err)
		}
		out = append(out, keys...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// remotePorts returns another node's pod's ports on a network. known is false if the
// node lacks facts: what exists of the ports is then kept. That a NAD has become
// unusable does not matter.
func (z *Zone) remotePorts(n network.Network, key string) (ports []RemotePod, known bool) {
	obj, ok, err := z.remotePods.GetByKey(key)
	pod, isPod := obj.(*corev1.Pod)
	if err != nil || !ok || !isPod || needsNoNetwork(pod) || pod.Spec.NodeName == "" || pod.Spec.NodeName == z.cfg.Kubernetes.NodeName {
		return nil, true
	}
	node := z.nodes.node(pod.Spec.NodeName)
	if !node.Ready() {
		return nil, false
	}
	entries, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		return nil, true
	}
	for k, e := range entries {
		// The pod's node may have written the annotation, so the namespace decides.
		if nad, ok := z.nadIndex.NAD(network.NADOf(k)); !ok || nad.Network.Name != n.Name || n.Topology != network.Layer2 || !nad.Admits(pod.Namespace) {
			continue
		}
		if err := checkEntry(n, e); err != nil {
			z.log.Warn("pod of another node gets no port: its annotation is wrong", "pod", key, "network", n.Name, "error", err)
			continue
		}
		ports = append(ports, RemotePod{NADKey: k, Namespace: pod.Namespace, Pod: pod.Name, Node: node.Name, Chassis: node.Chassis,
			MAC: e.MAC, IPs: e.IPs, TunnelKey: e.TunnelID, Disabled: z.inactive(pod.Namespace, string(pod.UID), k, e.MAC)})
	}
	slices.SortFunc(ports, func(a, b RemotePod) int { return strings.Compare(a.NADKey, b.NADKey) })
	return ports, true
}

// addRemotePods adds the ports of other nodes' pods to a job.
func (z *Zone) addRemotePods(j *job, pods []string) {
	for _, key := range pods {
		ports, known := z.remotePorts(j.net, key)
		j.in.RemotePods = append(j.in.RemotePods, ports...)
		if !known {
			if j.unknownPods == nil {
				j.unknownPods = map[Unit]struct{}{}
			}
			j.unknownPods[remoteUnit(key)] = struct{}{}
		}
	}
}

// unknownPodRows returns the rows of have that belong to other nodes' pods, of which
// the node lacks facts or the NAD was deleted. When such a pod ends, nothing but withoutNAD says on which network it was.
func (z *Zone) unknownPodRows(name string, unknownPods map[Unit]struct{}, have State) State {
	z.mu.Lock()
	defer z.mu.Unlock()
	var out State
	for _, r := range have {
		_, u := parseUnitMark(r.Unit)
		if u.Kind != KindRemote {
			continue
		}
		_, unknown := unknownPods[u]
		nad := network.NADOf(externalIDs(r.Model)[markNAD])
		_, hasNAD := z.nadIndex.NAD(nad)
		obj, ok, err := z.remotePods.GetByKey(u.Name)
		pod, isPod := obj.(*corev1.Pod)
		runs := err == nil && ok && isPod && !needsNoNetwork(pod)
		if !hasNAD && runs {
			z.withoutNAD[nad] = name
		}
		if unknown || !hasNAD && runs {
			out = append(out, r)
		}
	}
	return out
}

// endedRemoteRows returns the rows of a deleted network that belong to other nodes' pods which have ended.
func (z *Zone) endedRemoteRows(name string, have State) State {
	remote := slices.DeleteFunc(slices.Clone(have), func(r Row) bool {
		_, u := parseUnitMark(r.Unit)
		return u.Kind != KindRemote
	})
	return missing(remote, z.unknownPodRows(name, nil, remote))
}

// trimRemotePod keeps what remote ports are built from.
func trimRemotePod(obj any) (any, error) {
	if p, ok := obj.(*corev1.Pod); ok {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion,
				CreationTimestamp: p.CreationTimestamp, Annotations: keep(p.Annotations, network.AnnotationPodNetworks, network.AnnotationMigrationTargetReady),
			},
			Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork},
			Status: corev1.PodStatus{Phase: p.Status.Phase},
		}, nil
	}
	return obj, nil
}
