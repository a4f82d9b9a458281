// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"bulkhead/pkg/network"
)

// Names of the benchmark's objects. Network i has the namespace of its name, its
// pods and services are numbered.
func nodeName(i int) string    { return fmt.Sprintf("node%d", i+1) }
func networkName(i int) string { return fmt.Sprintf("t%d", i) }
func podName(j int) string     { return fmt.Sprintf("p%d", j) }
func serviceName(j int) string { return fmt.Sprintf("s%d", j) }

// topologyOf alternates between the topologies unless the shape has one.
func (s shape) topologyOf(i int) network.Topology {
	switch {
	case s.topology != "":
		return s.topology
	case i%2 == 0:
		return network.Layer3
	}
	return network.Layer2
}

// each calls f for 0 to n-1, several at a time.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}

// node returns node i as its agent describes it.
func node(i int) network.Node {
	low := fmt.Sprintf("%d.%d", (i+1)/250, (i+1)%250+1)
	return network.Node{
		Name: nodeName(i), ID: i + 1, Chassis: fmt.Sprintf("chassis-%d", i), EncapIPs: []netip.Addr{netip.MustParseAddr("172.30." + low)},
		Addresses: []netip.Prefix{netip.MustParsePrefix("172.18." + low + "/16"), netip.MustParsePrefix(fmt.Sprintf("fc00::%x/64", i+1))},
		NextHops:  []netip.Addr{netip.MustParseAddr("172.18.255.254"), netip.MustParseAddr("fc00::ffff")},
		BridgeMAC: fmt.Sprintf("02:00:00:00:%02x:%02x", (i+1)>>8, (i+1)&255), Bridge: "br-ex", Mode: network.SharedGateway,
	}
}

// createNode creates node i. The cluster controller gives it its id.
func (c *cluster) createNode(ctx context.Context, i int) error {
	a, err := node(i).AgentAnnotations()
	if err != nil {
		return err
	}
	_, err = c.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Annotations: a}}, metav1.CreateOptions{})
	return err
}

var cudns = schema.GroupVersionResource{Group: "k8s.ovn.org", Version: "v1", Resource: "clusteruserdefinednetworks"}

// createNetwork creates network i, dual stack, and its namespace. All networks have
// the same subnets.
func (c *cluster) createNetwork(ctx context.Context, s shape, i int) error {
	name := networkName(i)
	_, err := c.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{network.LabelPrimaryUDN: "", "bench": name},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	spec := map[string]any{"topology": "Layer3", "layer3": map[string]any{"role": "Primary", "subnets": []any{
		map[string]any{"cidr": "10.20.0.0/16", "hostSubnet": int64(24)}, map[string]any{"cidr": "fd20::/48", "hostSubnet": int64(64)},
	}}}
	if s.topologyOf(i) == network.Layer2 {
		spec = map[string]any{"topology": "Layer2", "layer2": map[string]any{"role": "Primary", "subnets": []any{"10.20.0.0/16", "fd20::/64"}}}
	}
	if s.noOverlay {
		spec["transport"], spec["noOverlayOptions"] = "NoOverlay", map[string]any{"outboundSNAT": "Disabled", "routing": "Unmanaged"}
	}
	_, err = c.dynamic.Resource(cudns).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.ovn.org/v1", "kind": "ClusterUserDefinedNetwork", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"bench": name}}, "network": spec},
	}}, metav1.CreateOptions{})
	return err
}

// createPod creates pod j of network i on node n, scheduled but not run. Its zone, or
// the cluster controller, gives it its addresses; no zone runs on nodes other than node1,
// and this function acts for it.
func (c *cluster) createPod(ctx context.Context, t network.Topology, i, j, n int) error {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: networkName(i), Name: podName(j)},
		Spec:       corev1.PodSpec{NodeName: nodeName(n), Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	if n > 0 && t == network.Layer3 {
		ip := netip.MustParsePrefix(fmt.Sprintf("10.20.%d.%d/24", n+1, j+10))
		annotation, err := network.PodNetworks{networkName(i) + "/" + networkName(i): {
			IPs: []netip.Prefix{ip, netip.MustParsePrefix(fmt.Sprintf("fd20:0:0:%x::%x/64", n+1, j+10))}, MAC: network.MACOf([]netip.Prefix{ip}), Role: network.RolePrimary,
		}}.Render()
		if err != nil {
			return err
		}
		p.Annotations = map[string]string{network.AnnotationPodNetworks: annotation}
	}
	_, err := c.kube.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// createService creates service j of network i, with the slice that Kubernetes would
// write: the network's pods as endpoints, at their addresses on the default network.
func (c *cluster) createService(ctx context.Context, s shape, i, j int) error {
	ns, name := networkName(i), serviceName(j)
	svc, err := c.kube.CoreV1().Services(ns).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pods, err := c.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: name + "-pods", Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: name, UID: svc.UID}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP)}},
	}
	for k, p := range pods.Items {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.128.%d.%d", i%250, k+10)}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(true)}, NodeName: ptr(p.Spec.NodeName),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: p.Name, UID: p.UID},
		})
	}
	_, err = c.kube.DiscoveryV1().EndpointSlices(ns).Create(ctx, slice, metav1.CreateOptions{})
	return err
}

func ptr[T any](v T) *T { return &v }
