// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Reasons of events on pods: one without addresses, and one whose annotation
// network.AnnotationOpenDefaultPorts cannot be read.
const (
	reasonAllocation = "ErrorAllocatingPod"
	reasonOpenPorts  = "ErrorOpeningPorts"
)

// errWait means that a pod waits for an event that will enqueue it again.
var errWait = errors.New("not yet")

// needsNoNetwork reports whether a pod has completed or uses the host's network.
func needsNoNetwork(pod *corev1.Pod) bool {
	return pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// syncPod assigns a pod's addresses. The pod's ports (by queue) and annotation
// are written concurrently.
func (z *Zone) syncPod(ctx context.Context, key string) error {
	obj, ok, err := z.podStore.GetByKey(key)
	if err != nil {
		return fmt.Errorf("read pod %s: %w", key, err)
	}
	pod, isPod := obj.(*corev1.Pod)
	if !ok || !isPod || needsNoNetwork(pod) {
		z.mu.Lock()
		defer z.mu.Unlock()
		z.releasePod(key)
		return nil
	}
	defer prometheus.NewTimer(z.metrics.pods).ObserveDuration()
	z.mu.Lock()
	_, known := z.pods[key]
	if _, initial := z.initial[string(pod.UID)]; initial {
		known = true
	}
	nets, err := z.assignNetworks(pod, false)
	foreign := z.foreignEntries(pod, known)
	early := z.decidedEarly(pod)
	z.mu.Unlock()
	if early {
		if again, err := z.decideAgain(ctx, pod); again || err != nil {
			return err
		}
	}
	if errors.Is(err, errWait) {
		return nil
	}
	if err != nil {
		// No retry: a change of a NAD, a node or a free address enqueues the pod.
		z.metrics.refused.Inc()
		z.log.Warn("cannot assign the pod's networks", "pod", key, "error", err)
		z.events.Event(reference(pod), corev1.EventTypeWarning, reasonAllocation, network.Shorten(err.Error(), network.MaxEvent))
		return nil
	}
	if len(nets) == 0 {
		return nil
	}
	for k, v := range foreign {
		if _, ours := nets[k]; !ours {
			nets[k] = v
		}
	}
	if err := z.annotate(ctx, pod, nets); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotate pod %s: %w", key, err)
	}
	return nil
}

// assignNetworks assigns a pod's networks and addresses and returns the pod's
// annotation. With restoring it only restores the addresses that the pod had.
func (z *Zone) assignNetworks(pod *corev1.Pod, restoring bool) (network.PodNetworks, error) {
	key := pod.Namespace + "/" + pod.Name
	if needsNoNetwork(pod) {
		return nil, nil
	}
	ns, err := z.nsLister.Get(pod.Namespace)
	if err != nil || !z.restored || !z.self().Ready() {
		return nil, errWait // for the namespace or this node's annotations
	}
	st := z.pods[key]
	if z.podReplaced(key, string(pod.UID)) {
		z.releasePod(key)
		st = nil
	}
	if st == nil {
		st = &podState{uid: string(pod.UID), ports: map[string]attachment{}}
	}
	// An earlier zone wrote the annotation of an initial pod. The annotation of a
	// new pod is its creator's and is ignored.
	var had network.PodNetworks
	if _, ok := z.initial[st.uid]; ok {
		if had, err = network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks]); err != nil {
			z.log.Warn("pod's annotation is malformed", "pod", key, "error", err)
		}
	}
	_, labelled := ns.Labels[network.LabelPrimaryUDN]
	wanted, err := z.wantedNetworks(pod, st, had, labelled, restoring)
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	out, fresh := network.PodNetworks{}, map[string]attachment{}
	for _, w := range wanted {
		g, ok := st.ports[w.key]
		if !ok {
			g, err = attachment{}, z.checkPort(pod, w)
			if err == nil {
				g, err = z.assign(pod, w, had, restoring)
			}
			if err != nil {
				for _, f := range fresh {
					z.addresses.release(f.network, st.uid, f.port.IPs)
				}
				z.reserveAnnotated(pod) // the pod may run with these addresses
				return nil, err
			}
			if g.network == "" {
				continue // restored only, and the pod had no addresses
			}
			g.port.Locked = !st.defaultOnly && w.net.IsDefault()
			g.port.Ingress = st.defaultOnly && w.net.IsDefault() && slices.Contains(z.cfg.IngressNamespaces, pod.Namespace)
			fresh[w.key] = g
		}
		out[w.key] = network.NewPodNetwork(w.net, z.cfg.Plan, g.port.IPs, !st.defaultOnly)
	}
	for k, entry := range had {
		if _, ok := out[k]; !ok {
			out[k] = entry
		}
	}
	for k, g := range fresh {
		st.ports[k] = g
		z.state(g.network).pods[key+" "+k] = g.port
		z.queue.AddUnits(g.network, podUnit(key))
	}
	st.undecided = st.undecided && restoring
	z.setOpenPorts(pod, st, restoring)
	z.setHostPorts(pod, st)
	if len(st.ports) > 0 {
		z.updateClusterPorts(pod, st)
		z.pods[key] = st
		if st.defaultOnly {
			z.addDefaultOnly(pod)
		}
	}
	z.addresses.dropRestored(key, func(k string) bool { return z.hasPort(key, k) })
	return out, nil
}

// setOpenPorts sets the open ports of a pod's locked port. An annotation that cannot be read
// opens none.
func (z *Zone) setOpenPorts(pod *corev1.Pod, st *podState, restoring bool) {
	key := pod.Namespace + "/" + pod.Name
	g, ok := st.ports[network.DefaultName]
	if !ok || !g.port.Locked {
		return
	}
	ports, err := network.ParseOpenPorts(pod.Annotations[network.AnnotationOpenDefaultPorts])
	if err != nil && !restoring {
		z.log.Warn("cannot open the pod's ports on the cluster default network", "pod", key, "error", err)
		z.events.Event(reference(pod), corev1.EventTypeWarning, reasonOpenPorts, network.Shorten(err.Error(), network.MaxEvent))
	}
	if slices.Equal(g.port.Open, ports) {
		return
	}
	g.port.Open = ports
	st.ports[network.DefaultName] = g
	z.state(g.network).pods[key+" "+network.DefaultName] = g.port
	z.queue.AddUnits(g.network, podUnit(key))
}

// wantedNetworks returns the networks of a pod, none if the pod is left as it is.
// The choice is made once in the pod's life, except by decideAgain.
func (z *Zone) wantedNetworks(pod *corev1.Pod, st *podState, had network.PodNetworks, labelled, restoring bool) ([]wantedNetwork, error) {
	_, assigned := st.ports[network.DefaultName]
	before, hadDefault := had[network.DefaultName]
	out := []wantedNetwork{{key: network.DefaultName, net: z.cfg.DefaultNetwork}}
	switch {
	case assigned && !st.undecided:
	case hadDefault && !st.undecided:
		if st.defaultOnly = before.Role != network.RoleInfrastructureLocked; st.defaultOnly {
			z.addDefaultOnly(pod)
		}
		if st.defaultOnly && labelled && !hasInterfaces(pod) {
			// If the pod was connected, its port exists and stays. If an earlier zone did not know the label yet, or the
			// pod's creator wrote the annotation while no zone ran, decideAgain follows.
			z.reserveAnnotated(pod)
			return nil, nil
		}
	case labelled && hasInterfaces(pod):
		z.addDefaultOnly(pod) // it runs, but was not connected to a primary network
		return nil, nil
	default:
		// The namespace decides whether the pod is locked, never the annotation.
		st.defaultOnly = !labelled
		primary, err := z.newPrimary(pod.Namespace, labelled, restoring)
		if err != nil {
			return nil, err
		}
		if primary != nil && zoneAllocates(primary.Network) {
			if err := checkPrimaryRequest(pod); err != nil && !restoring && !hasInterfaces(pod) {
				return nil, err
			}
			out = append(out, wantedNetwork{key: primary.Key(), net: primary.Network})
		}
	}
	// A pod keeps its networks even if their NADs or the namespace's primary
	// network have changed.
	has := func(k string) bool { return slices.ContainsFunc(out, func(e wantedNetwork) bool { return e.key == k }) }
	for k, g := range st.ports {
		if !has(k) && !g.cluster {
			n, ok := z.desiredNetwork(g.network)
			if !ok {
				n = z.state(g.network).net
			}
			out = append(out, wantedNetwork{key: k, net: n})
		}
	}
	for k := range had {
		if nad, ok := z.nadIndex.NAD(network.NADOf(k)); ok && !has(k) && nad.Err == nil && nad.Admits(pod.Namespace) && zoneAllocates(nad.Network) {
			out = append(out, wantedNetwork{key: k, net: nad.Network, restoreOnly: true})
		}
	}
	if restoring || hasInterfaces(pod) {
		return out, nil
	}
	selected, err := z.selectedNetworks(pod, has)
	return append(out, selected...), err
}

// errDeleting is the error of pods that would be new on a network.
func errDeleting(nad network.NAD) error {
	return fmt.Errorf("network %s (NetworkAttachmentDefinition %s) is being deleted, and new pods do not get it", nad.Network.Name, nad.Key())
}

// selectedNetworks returns the networks that a pod requests, does not have yet, and whose addresses the
// zone allocates. A NAD that does not exist yet enqueues the pod when it is created.
func (z *Zone) selectedNetworks(pod *corev1.Pod, has func(key string) bool) ([]wantedNetwork, error) {
	selections, err := kube.ParseSelections(pod.Namespace, pod.Annotations[network.AnnotationNetworks])
	if err != nil {
		return nil, err
	}
	var out []wantedNetwork
	for _, s := range selections {
		nad, ok := z.nadIndex.NAD(network.NADKey(s.Namespace, s.Name))
		if has(s.Key) || !ok || nad.Err == nil && !zoneAllocates(nad.Network) {
			continue // the pod has it, or it is another CNI plugin's, or the cluster controller allocates the addresses
		}
		if err := checkSelection(pod.Namespace, s, nad); err != nil {
			return nil, fmt.Errorf("annotation %s requests NetworkAttachmentDefinition %s: %w", network.AnnotationNetworks, nad.Key(), err)
		}
		out = append(out, wantedNetwork{key: s.Key, net: nad.Network})
	}
	return out, nil
}

// checkSelection returns why a pod of a namespace cannot have a Layer 3 network that
// it requests.
func checkSelection(namespace string, s kube.Selection, nad network.NAD) error {
	switch {
	case nad.Err != nil:
		return nad.Err
	case nad.Deleting:
		return errDeleting(nad)
	case nad.Network.IsPrimary():
		return errors.New("it is a primary network, which all pods of its namespace have without a request: remove it from the annotation")
	case !nad.Admits(namespace):
		return fmt.Errorf("it belongs to another namespace's network: remove it from the annotation, or extend the network to namespace %s", namespace)
	case s.Err != nil:
		return s.Err
	case len(s.Request.Gateways) > 0:
		return errors.New("default-route: a secondary network has no way out of the cluster: remove default-route")
	}
	return checkRequest(s.Request)
}

// checkRequest returns why a pod cannot have what it requests of its interface on a Layer 3 network.
func checkRequest(r kube.SelectionRequest) error {
	switch {
	case len(r.IPs) > 0:
		return errors.New("ips: addresses on a Layer3 network follow from the pod's node and cannot be requested: remove ips")
	case r.MAC != "":
		return errors.New("mac: the MAC address follows from the IP address on a Layer3 network and cannot be requested: remove mac")
	case r.Claim != "":
		return errors.New("ipam-claim-reference: addresses on a Layer3 network follow from the pod's node and cannot be claimed: remove ipam-claim-reference")
	}
	return nil
}

// checkPrimaryRequest is checkRequest of the annotations about a pod's primary network. They are refused, because a pod
// with other addresses than it requests would be reached by nobody.
func checkPrimaryRequest(pod *corev1.Pod) error {
	r, err := kube.ParsePrimary(pod.Annotations)
	if err != nil {
		return err
	}
	if r.ClaimSource != "" {
		return fmt.Errorf("annotation %s: addresses on a Layer3 network follow from the pod's node and cannot be claimed: remove the annotation", r.ClaimSource)
	}
	if err := checkRequest(r); err != nil {
		return fmt.Errorf("annotation %s: %w", network.AnnotationDefaultNetwork, err)
	}
	return nil
}

// newPrimary returns the primary network of a namespace's new pods, nil if they
// have none.
func (z *Zone) newPrimary(namespace string, labelled, restoring bool) (*network.NAD, error) {
	if labelled && !restoring {
		if err := z.olderPods(namespace); err != nil {
			return nil, err
		}
	}
	primary, err := z.nadIndex.Primary(namespace, labelled)
	if err != nil || primary == nil {
		return nil, err
	}
	if primary.Deleting && !restoring {
		return nil, errDeleting(*primary)
	}
	return primary, nil
}

// podReplaced reports whether the zone's state is of an earlier pod of that name.
func (z *Zone) podReplaced(key, uid string) bool {
	st, reserved, s := z.pods[key], z.addresses.reservedFor(key), z.keptPorts[key]
	namespace, _, _ := strings.Cut(key, "/")
	a := z.defaultOnly[namespace][key]
	return st != nil && st.uid != uid || reserved != "" && reserved != uid || s.uid != "" && s.uid != uid || a != "" && a != uid
}

// checkPort returns an error if the pod's port would have another port's name.
func (z *Zone) checkPort(pod *corev1.Pod, e wantedNetwork) error {
	if !e.net.IsDefault() {
		return nil
	}
	isNode := func(name string) bool { _, ok := z.nodes.nodes[name]; return ok }
	return network.CheckPodPort(pod.Namespace, pod.Name, z.cfg.OVS.ExternalBridge, z.nadIndex.HasNADs, isNode)
}

// wantedNetwork is a network of a pod and its key in the annotation.
type wantedNetwork struct {
	key         string
	net         network.Network
	restoreOnly bool // do not allocate new addresses
}

// assign restores or allocates a pod's addresses on one network.
func (z *Zone) assign(pod *corev1.Pod, e wantedNetwork, had network.PodNetworks, restoring bool) (attachment, error) {
	hosts, err := e.net.HostSubnets(z.self().ID)
	if err != nil {
		return attachment{}, fmt.Errorf("network %s on node %s: %w", e.net.Name, z.cfg.Kubernetes.NodeName, err)
	}
	z.state(e.net.Name).net = e.net
	z.addresses.setSubnets(e.net.Name, hosts)
	uid := string(pod.UID)
	g := attachment{network: e.net.Name, port: PodPort{NADKey: e.key, Namespace: pod.Namespace, Pod: pod.Name, UID: uid}}
	if before, ok := had[e.key]; ok {
		if g.port.IPs, err = z.addresses.restore(e.net.Name, uid, before.IPs); err == nil {
			return g, nil
		}
		if pod.Status.Phase != corev1.PodPending {
			return attachment{}, fmt.Errorf("cannot restore the running pod's addresses on network %s, recreate the pod: %w", e.net.Name, err)
		}
	}
	if restoring || e.restoreOnly {
		return attachment{}, nil
	}
	if g.port.IPs, err = z.addresses.allocate(e.net.Name, uid, pod.Namespace+"/"+pod.Name); err != nil {
		return attachment{}, fmt.Errorf("network %s on node %s: %w", e.net.Name, z.cfg.Kubernetes.NodeName, err)
	}
	return g, nil
}

// releasePod releases a pod's addresses and ports and, with the last pod of a
// network that no NAD describes, the network.
func (z *Zone) releasePod(key string) {
	z.addresses.dropReservation(key)
	for name := range z.keptPorts[key].networks {
		z.queue.AddUnits(name)
	}
	delete(z.keptPorts, key)
	z.removeDefaultOnly(key)
	defer z.revalidateSelf() // the pod's address may have contradicted the node's id
	p, ok := z.pods[key]
	if !ok {
		z.addresses.stopWaiting(key)
		return
	}
	delete(z.pods, key)
	delete(z.initial, p.uid)
	for k, g := range p.ports {
		if len(g.port.HostPorts) > 0 {
			g.port.HostPorts = nil
			z.claimHostPorts(g.network, g.port)
		}
		delete(z.state(g.network).pods, key+" "+k)
		z.addresses.release(g.network, p.uid, g.port.IPs)
		if _, described := z.desiredNetwork(g.network); described {
			z.queue.AddUnits(g.network, podUnit(key))
		} else {
			z.queue.AddUnits(g.network)
		}
	}
}

// foreignEntries returns the entries of the pod's annotation that the cluster
// controller writes: all but those of the cluster default network and Layer 3 networks.
// An entry without a NAD is dropped from a new pod, whose creator wrote it. In a
// known pod's annotation it is the cluster controller's, and its NAD was deleted.
func (z *Zone) foreignEntries(pod *corev1.Pod, known bool) network.PodNetworks {
	had, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		return nil
	}
	out := network.PodNetworks{}
	for key, n := range had {
		if !strings.Contains(key, "/") {
			continue
		}
		nad, ok := z.nadIndex.NAD(network.NADOf(key))
		if layer3 := ok && nad.Err == nil && nad.Network.Topology == network.Layer3; !layer3 && (ok || known) {
			out[key] = n
		}
	}
	return out
}
