// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Addresses outside the cluster, of the ranges for documentation (RFC 5737, RFC 3849). All
// networks' services have the same.
var (
	externalAddresses = []netip.Addr{netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8:10::10")}
	balancerAddresses = []netip.Addr{netip.MustParseAddr("198.51.100.11"), netip.MustParseAddr("2001:db8:10::11")}
)

// served returns the addresses of the lab's IP families.
func (w *World) served(list []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return !w.has(a) })
}

// setUpServiceTypes creates a service of each type in a namespace, all with the same
// endpoints.
func setUpServiceTypes(ctx context.Context, w *World, namespace, tenant string) error {
	var endpoints []netip.Addr
	for _, p := range w.endpoints(namespace, tenant) {
		if tenant == "" {
			endpoints = append(endpoints, p.Default...)
		} else {
			endpoints = append(endpoints, p.Primary...)
		}
	}
	const ports = `ports: [{name: tcp, port: 80, targetPort: web, protocol: TCP}, {name: udp, port: 80, targetPort: web-udp, protocol: UDP}]`
	var quoted []string
	for _, a := range w.served(externalAddresses) {
		quoted = append(quoted, `"`+a.String()+`"`)
	}
	// In local gateway mode the node leads packets from outside to a node port.
	local, err := w.localGateway(ctx)
	if err != nil {
		return err
	}
	var manifests []string
	for name, spec := range map[string]string{
		"node-port": "type: NodePort, selector: {role: server}",
		"near-port": "type: NodePort, externalTrafficPolicy: Local, selector: {role: server}",
		"balancer":  "type: LoadBalancer, allocateLoadBalancerNodePorts: " + strconv.FormatBool(local) + ", externalTrafficPolicy: Local, externalIPs: [" + strings.Join(quoted, ", ") + "], selector: {role: server}",
		"near":      "internalTrafficPolicy: Local, selector: {role: server}",
		"sticky":    "sessionAffinity: ClientIP, selector: {role: server}",
		"manual":    "type: ClusterIP",
	} {
		manifests = append(manifests, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec: {ipFamilyPolicy: PreferDualStack, %s, %s}
`, name, namespace, spec, ports))
	}
	for _, a := range endpoints {
		manifests = append(manifests, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: manual-%s, namespace: %s, labels: {kubernetes.io/service-name: manual}}
addressType: %s
endpoints: [{addresses: [%q]}]
ports: [{name: tcp, port: %[5]s, protocol: TCP}, {name: udp, port: %[5]s, protocol: UDP}]
`, strings.NewReplacer(".", "-", ":", "-").Replace(a.StringExpanded()), namespace, addressType(a), a, port))
	}
	if err := w.Lab.Apply(ctx, strings.Join(manifests, "---\n")); err != nil {
		return err
	}
	services := w.Lab.Client().CoreV1().Services(namespace)
	balancer, err := services.Get(ctx, "balancer", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, a := range w.served(balancerAddresses) {
		balancer.Status.LoadBalancer.Ingress = append(balancer.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
	_, err = services.UpdateStatus(ctx, balancer, metav1.UpdateOptions{})
	return err
}

// endpoints returns the pods behind a namespace's services.
func (w *World) endpoints(namespace, tenant string) []*pod {
	return slices.DeleteFunc(w.tenant(tenant), func(p *pod) bool { return p.Namespace != namespace })
}

// nodePorts returns the targets of a namespace's service node-port on a node.
func (w *World) nodePorts(ctx context.Context, namespace string, node []netip.Addr) ([]string, error) {
	return w.nodePortsOf(ctx, namespace, "node-port", node)
}

// nodePortsOf returns the targets of a service's node ports on a node.
func (w *World) nodePortsOf(ctx context.Context, namespace, name string, node []netip.Addr) ([]string, error) {
	s, err := w.Lab.Client().CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range s.Spec.Ports {
		if p.NodePort == 0 {
			return nil, fmt.Errorf("service %s/%s has no node port", namespace, name)
		}
		for _, a := range node {
			out = append(out, strings.ToLower(string(p.Protocol))+":"+netip.AddrPortFrom(a, uint16(p.NodePort)).String())
		}
	}
	return out, nil
}

// serviceTypesReached has a pod on each of tenantNodes ask each type of service of its network. All
// networks' services have the same addresses outside the cluster, so each must be answered
// by its own endpoints.
func serviceTypesReached(ctx context.Context, w *World) (string, error) {
	type source struct {
		*pod
		namespace string
	}
	var sources []source
	for _, s := range storyServices {
		pods := w.tenant(s.tenant)
		slices.Reverse(pods) // of red, one is in the other namespace
		for _, n := range w.tenantNodes() {
			i := slices.IndexFunc(pods, func(p *pod) bool { return p.Node == n.Name })
			if i < 0 {
				return "", fmt.Errorf("namespace %s has no pod on %s", s.namespace, n.Name)
			}
			sources = append(sources, source{pods[i], s.namespace})
		}
	}
	var answers atomic.Int32
	err := each(sources, func(from source) error {
		var all, near []string
		for _, p := range w.endpoints(from.namespace, from.Tenant) {
			name := p.Namespace + "/" + p.Name
			all = append(all, name)
			if p.Node == from.Node {
				near = append(near, name)
			}
		}
		if len(near) == 0 || len(near) == len(all) {
			return fmt.Errorf("of the endpoints %v of namespace %s, %v are on %s", all, from.namespace, near, from.Node)
		}
		asked, err := w.typedTargets(ctx, from.pod, from.namespace)
		if err != nil {
			return err
		}
		n, err := w.allAnswer(ctx, from.pod, asked, all)
		answers.Add(int32(n))
		if err != nil {
			return fmt.Errorf("%s to node ports, external addresses and endpoints without a selector: %w", from.Name, err)
		}
		local, err := w.clusterIPs(ctx, from.namespace, "near", 80)
		if err != nil {
			return err
		}
		n, err = w.allAnswer(ctx, from.pod, local, near)
		answers.Add(int32(n))
		if err != nil {
			return fmt.Errorf("%s to a service with internal traffic policy Local: %w", from.Name, err)
		}
		sticky, err := w.clusterIPs(ctx, from.namespace, "sticky", 80)
		if err != nil {
			return err
		}
		n, err = w.oneAnswers(ctx, from.pod, sticky, all)
		answers.Add(int32(n))
		if err != nil {
			return fmt.Errorf("%s to a service with session affinity: %w", from.Name, err)
		}
		return nil
	})
	return fmt.Sprintf("%d pods, %d answers", len(sources), answers.Load()), err
}

// typedTargets returns a pod's targets that all endpoints answer. Half have TCP and half
// UDP: TestNativeServices has every combination.
func (w *World) typedTargets(ctx context.Context, from *pod, namespace string) ([]string, error) {
	var own []netip.Addr
	for _, n := range w.Lab.Nodes() {
		if n.Name == from.Node {
			own = addrs(n)
		}
	}
	list, err := w.nodePorts(ctx, namespace, own)
	if err != nil {
		return nil, err
	}
	manual, err := w.clusterIPs(ctx, namespace, "manual", 80)
	if err != nil {
		return nil, err
	}
	list = append(list, manual...)
	for i, a := range append(w.served(externalAddresses), w.served(balancerAddresses)...) {
		list = append(list, []string{"tcp:", "udp:"}[i%2]+netip.AddrPortFrom(a, 80).String())
	}
	return list, nil
}

// oneAnswers asks each target once and then again and again: the first server must answer
// every time, and be one of the wanted.
func (w *World) oneAnswers(ctx context.Context, from *pod, list, want []string) (answers int, err error) {
	const again = 3
	for _, t := range list {
		server := ""
		for deadline, left := time.Now().Add(patience), 1+again; left > 0; {
			repeat := 1
			if server != "" {
				repeat = left
			}
			got, err := w.ask(ctx, from, "", slices.Repeat([]string{t}, repeat))
			if err != nil {
				return answers, err
			}
			for _, g := range got {
				switch {
				case !g.OK:
					continue
				case server == "":
					server = g.Who
				}
				if g.Who != server || !slices.Contains(want, g.Who) {
					return answers, fmt.Errorf("%q answers for %s after %q", g.Who, t, server)
				}
				answers, left = answers+1, left-1
			}
			if left > 0 && time.Now().After(deadline) {
				return answers, fmt.Errorf("no answer of %s within %s", t, patience)
			}
		}
	}
	return answers, nil
}
