// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/lab"
)

func serviceChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "services: each network's pods reach its own, on every node and back to themselves", Phase: phaseReach, Needs: needs(fixtureServices), Run: servicesReached, Group: groupServices},
		{Chapter: 3, Title: "services of each type: node ports, external addresses, traffic policy, affinity, no selector", Phase: phaseReach, Needs: needs(fixtureServices), Run: serviceTypesReached, Group: groupServiceTypes},
		{Chapter: 3, Title: "the API server's service answers pods of every network, on that port alone", Phase: phaseReach, Needs: needs(fixtureServices), Run: apiServerReached, Group: groupDNS},
		{Chapter: 3, Title: "services whose endpoint is a node answer tenants' pods, also on that node", Phase: phaseReach, Needs: needs(fixtureServices), Run: nodeEndpointsReached, Group: groupServiceTypes},
		{Chapter: 3, Title: "DNS answers pods of every network, from every node (TCP, UDP), and they resolve names", Phase: phaseReach, Needs: needs(fixtureServices), Run: dnsReached, Group: groupDNS},
		{Chapter: 4, Title: "services: no network's pods reach another's", Phase: phaseIsolation, Needs: needs(fixtureServices), Run: servicesConfined, Group: groupServices},
	}
}

// Services of the story: web has all the tenant's pods of one namespace, self one pod.
var storyServices = []struct{ tenant, namespace, self string }{
	{"red", "red-a", "red-a-1"}, {"blue", "blue", "blue-1"}, {"violet", "violet", "violet-1"}, {"", "plain", "plain-1"},
}

func setUpServices(ctx context.Context, w *World) error {
	var manifests []string
	for _, s := range storyServices {
		for name, selector := range map[string]string{"web": "role: server", "self": "pod: " + s.self} {
			manifests = append(manifests, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {%s}
  ports: [{name: tcp, port: 80, targetPort: %[4]s, protocol: TCP}, {name: udp, port: 80, targetPort: %[4]s, protocol: UDP}]
`, name, s.namespace, selector, port))
		}
	}
	for _, n := range w.Lab.Nodes() {
		manifests = append(manifests, nodeService(n))
	}
	if err := w.Lab.Apply(ctx, strings.Join(manifests, "---\n")); err != nil {
		return err
	}
	for _, s := range storyServices {
		if err := setUpServiceTypes(ctx, w, s.namespace, s.tenant); err != nil {
			return err
		}
	}
	return nil
}

// nodeService is one of lab.AllowedServices. Its endpoint is a node, as that of the API
// server's service is on a control plane node: the node's kubelet, which answers netprobe
// like an API server.
func nodeService(n *lab.Node) string {
	out := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: plain}
spec:
  ipFamilyPolicy: PreferDualStack
  ports: [{name: https, port: 443, targetPort: %d}]
`, n.Name, kubeletPort)
	for _, a := range addrs(n) {
		out += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-%[2]s, namespace: plain, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
endpoints: [{addresses: [%[4]q], nodeName: %[1]s}]
ports: [{name: https, port: %[5]d}]
`, n.Name, strings.ToLower(string(addressType(a))), addressType(a), a, kubeletPort)
	}
	return out
}

// nodeEndpointsReached has pods of each tenant ask each node's kubelet by its
// service, several times.
func nodeEndpointsReached(ctx context.Context, w *World) (string, error) {
	want := map[string]string{}
	var others []string
	for _, n := range w.Lab.Nodes() {
		list, err := w.clusterIPs(ctx, "plain", n.Name, 443)
		if err != nil {
			return "", err
		}
		for _, t := range list {
			if strings.HasPrefix(t, "tcp:") {
				want[t] = apiServer
				others = append(others, strings.TrimSuffix(t, "443")+fmt.Sprint(kubeletPort))
			} else {
				others = append(others, t)
			}
		}
	}
	var sources []*pod
	for _, s := range storyServices {
		if pods := w.tenant(s.tenant); s.tenant != "" {
			sources = append(sources, pods[0], pods[len(pods)-1])
		}
	}
	return fmt.Sprintf("%d pods, %d targets each", len(sources), len(want)), each(sources, func(from *pod) error {
		for range 3 {
			if _, err := w.reach(ctx, from, "", want); err != nil {
				return fmt.Errorf("%s on %s: %w", from.Name, from.Node, err)
			}
		}
		got, err := w.attempt(ctx, from, "", others...)
		if err != nil {
			return err
		}
		return reachedAny(from.Name, got)
	})
}

// clusterIPs returns the targets of a service.
func (w *World) clusterIPs(ctx context.Context, namespace, name string, servicePort uint16) ([]string, error) {
	s, err := w.Lab.Client().CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, ip := range s.Spec.ClusterIPs {
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return nil, fmt.Errorf("service %s/%s: %w", namespace, name, err)
		}
		at := netip.AddrPortFrom(a, servicePort)
		out = append(out, "tcp:"+at.String(), "udp:"+at.String())
	}
	if len(s.Spec.ClusterIPs) != len(w.Families) {
		return nil, fmt.Errorf("service %s/%s has the addresses %v, want %d", namespace, name, s.Spec.ClusterIPs, len(w.Families))
	}
	return out, nil
}

// servicesReached has each pod ask its network's service until all endpoints, and
// nobody else, have answered.
func servicesReached(ctx context.Context, w *World) (string, error) {
	type question struct {
		from            *pod
		namespace, name string
		want            []string
	}
	var questions []question
	for _, s := range storyServices {
		endpoints := w.webServers(s.tenant, s.namespace)
		for _, p := range w.tenant(s.tenant) {
			questions = append(questions, question{p, s.namespace, "web", endpoints})
			if p.Name == s.self {
				questions = append(questions, question{p, s.namespace, "self", []string{s.namespace + "/" + s.self}})
			}
		}
	}
	var answers atomic.Int32
	err := each(questions, func(q question) error {
		list, err := w.clusterIPs(ctx, q.namespace, q.name, 80)
		if err != nil {
			return err
		}
		n, err := w.allAnswer(ctx, q.from, list, q.want)
		if err != nil {
			return fmt.Errorf("%s to service %s/%s: %w", q.from.Name, q.namespace, q.name, err)
		}
		answers.Add(int32(n))
		return nil
	})
	return fmt.Sprintf("%d answers", answers.Load()), err
}

// allAnswer has a pod ask all targets until each of the wanted servers, and nobody else,
// has answered for each target.
func (w *World) allAnswer(ctx context.Context, from *pod, list, want []string) (answers int, err error) {
	return answered(w.fromPod(ctx, from), list, want, len(want))
}

// fromPod probes for answered from a pod.
func (w *World) fromPod(ctx context.Context, from *pod) func([]string) ([]probe, error) {
	return func(list []string) ([]probe, error) { return w.ask(ctx, from, "", list) }
}

// answered asks all targets, several times each, until as many of the servers as are enough
// have answered for each target. Nobody else may. It waits for patience after the last new
// answer, however long the probes wait for those of other checks.
func answered(ask func(targets []string) ([]probe, error), list, servers []string, enough int) (answers int, err error) {
	if len(list) == 0 || enough == 0 {
		return 0, errors.New("no targets to ask, or no servers to wait for")
	}
	have := map[string]map[string]struct{}{}
	for _, t := range list {
		have[t] = map[string]struct{}{}
	}
	for deadline := time.Now().Add(patience); ; {
		var targets []string
		for t, who := range have {
			if len(who) < enough {
				targets = append(targets, slices.Repeat([]string{t}, 2*enough)...)
			}
		}
		if len(targets) == 0 {
			return answers, nil
		}
		if time.Now().After(deadline) {
			return answers, fmt.Errorf("want answers of %d of %v for each target, have %v, and no more within %s", enough, servers, have, patience)
		}
		got, err := ask(targets)
		if err != nil {
			return answers, err
		}
		for _, g := range got {
			if g.OK && !slices.Contains(servers, g.Who) {
				return answers, fmt.Errorf("%q answers for %s", g.Who, g.Target)
			}
			if !g.OK {
				continue
			}
			answers++
			if _, again := have[g.Target][g.Who]; !again {
				have[g.Target][g.Who] = struct{}{}
				deadline = time.Now().Add(patience)
			}
		}
	}
}

// servicesConfined has each pod try the cluster IPs of other networks' services. That they
// answer their own pods is servicesReached's check.
func servicesConfined(ctx context.Context, w *World) (string, error) {
	services := map[string][]string{} // by tenant
	for _, s := range storyServices {
		for _, name := range []string{"web", "self"} {
			list, err := w.clusterIPs(ctx, s.namespace, name, 80)
			if err != nil {
				return "", err
			}
			services[s.tenant] = append(services[s.tenant], list...)
		}
	}
	tried := 0
	var sources []*pod
	for _, s := range storyServices {
		sources = append(sources, w.tenant(s.tenant)...)
	}
	lists := make([][]string, len(sources))
	for i, from := range sources {
		for tenant, list := range services {
			if tenant != from.Tenant {
				lists[i] = append(lists[i], list...)
			}
		}
		tried += len(lists[i])
	}
	return fmt.Sprintf("%d attempts", tried), each(sources, func(from *pod) error {
		got, err := w.attempt(ctx, from, "", lists[slices.Index(sources, from)]...)
		if err != nil {
			return err
		}
		for _, g := range got {
			if g.OK {
				return fmt.Errorf("%s reached %s (%q)", from.Name, g.Target, g.Who)
			}
		}
		return nil
	})
}

// apiServer is how the API server answers netprobe, which does not speak TLS.
const apiServer = "Client sent an HTTP request to an HTTPS server."

// apiServerAddress returns address and port of the service default/kubernetes.
func (w *World) apiServerAddress(ctx context.Context) (netip.AddrPort, error) {
	service, err := w.Lab.Client().CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return netip.AddrPort{}, err
	}
	at, err := netip.ParseAddr(service.Spec.ClusterIP)
	if err != nil || len(service.Spec.Ports) != 1 {
		return netip.AddrPort{}, fmt.Errorf("service default/kubernetes: address %q, ports %v: %w", service.Spec.ClusterIP, service.Spec.Ports, err)
	}
	return netip.AddrPortFrom(at, uint16(service.Spec.Ports[0].Port)), nil
}

// nameServers returns the targets of the service kube-system/kube-dns, and the pods behind it.
func (w *World) nameServers(ctx context.Context) (targets []string, servers []corev1.Pod, err error) {
	targets, err = w.clusterIPs(ctx, "kube-system", "kube-dns", 53)
	if err != nil {
		return nil, nil, err
	}
	for i := range targets {
		targets[i] = "dns-" + targets[i]
	}
	list, err := w.Lab.Client().CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
	if err != nil {
		return nil, nil, err
	}
	return targets, list.Items, nil
}

// webServers returns what the pods of a tenant in a namespace, the endpoints of its service web,
// answer.
func (w *World) webServers(tenant, namespace string) []string {
	var out []string
	for _, p := range w.tenant(tenant) {
		if p.Namespace == namespace {
			out = append(out, p.Namespace+"/"+p.Name)
		}
	}
	return out
}

// apiServerReached has pods of each network ask the API server by the service default/kubernetes,
// which is of the cluster default network and outside the nodes, and try its other ports.
func apiServerReached(ctx context.Context, w *World) (string, error) {
	service, err := w.apiServerAddress(ctx)
	if err != nil {
		return "", err
	}
	at, port := service.Addr(), service.Port()
	want := map[string]string{"tcp:" + service.String(): apiServer}
	others := []string{"udp:" + service.String(), "tcp:" + netip.AddrPortFrom(at, port+1).String(), "tcp:" + netip.AddrPortFrom(at, 6443).String(), "icmp:" + at.String()}
	var sources []*pod
	for _, s := range storyServices {
		sources = append(sources, w.tenant(s.tenant)...)
	}
	return fmt.Sprintf("%d pods, %d other ports each", len(sources), len(others)), each(sources, func(from *pod) error {
		if _, err := w.reach(ctx, from, "", want); err != nil {
			return fmt.Errorf("%s to the API server: %w", from.Name, err)
		}
		got, err := w.attempt(ctx, from, "", others...)
		if err != nil {
			return err
		}
		return reachedAny(from.Name, got)
	})
}

// dnsReached has pods of each network ask each name server by the service
// kube-system/kube-dns, resolve names as their programs do, and try the name servers' other
// ports and own addresses.
func dnsReached(ctx context.Context, w *World) (string, error) {
	list, servers, err := w.nameServers(ctx)
	if err != nil {
		return "", err
	}
	const nameServerReady = 8181 // serves HTTP for kubelet's probes
	var want, others []string
	nodes, own := map[string]bool{}, map[string]string{}
	for _, s := range servers {
		want, nodes[s.Spec.NodeName] = append(want, s.Name), true
		for _, ip := range s.Status.PodIPs {
			own["dns-tcp:"+net.JoinHostPort(ip.IP, "53")], own["dns-udp:"+net.JoinHostPort(ip.IP, "53")] = s.Name, s.Name
			own["tcp:"+net.JoinHostPort(ip.IP, strconv.Itoa(nameServerReady))] = "404 page not found"
		}
	}
	if len(nodes) != min(2, len(w.Lab.Nodes())) {
		return "", fmt.Errorf("the name servers %v are on the nodes %v", want, nodes)
	}
	if others, err = w.clusterIPs(ctx, "kube-system", "kube-dns", nameServerReady); err != nil {
		return "", err
	}
	apiServer, err := w.addressesOf(ctx, "default", "kubernetes")
	if err != nil {
		return "", err
	}
	type resolver struct {
		*pod
		web string // the addresses of the service web in its namespace
	}
	var sources []resolver
	for _, s := range storyServices {
		web, err := w.addressesOf(ctx, s.namespace, "web")
		if err != nil {
			return "", err
		}
		pods := slices.DeleteFunc(w.tenant(s.tenant), func(p *pod) bool { return p.Namespace != s.namespace })
		sources = append(sources, resolver{pods[0], web}, resolver{pods[len(pods)-1], web})
	}
	var answers atomic.Int32
	err = each(sources, func(from resolver) error {
		n, err := w.allAnswer(ctx, from.pod, list, want)
		answers.Add(int32(n))
		if err != nil {
			return fmt.Errorf("%s to the name servers: %w", from.Name, err)
		}
		reached := map[string]string{"name:web": from.web, "name:kubernetes.default.svc.cluster.local": apiServer}
		forbidden := slices.Clone(others)
		if from.Tenant == "" {
			maps.Copy(reached, own)
		} else {
			forbidden = slices.AppendSeq(forbidden, maps.Keys(own))
		}
		if _, err := w.reach(ctx, from.pod, "", reached); err != nil {
			return fmt.Errorf("%s resolves names: %w", from.Name, err)
		}
		got, err := w.attempt(ctx, from.pod, "", forbidden...)
		if err != nil {
			return err
		}
		return reachedAny(from.Name, got)
	})
	return fmt.Sprintf("%d answers of %d name servers to %d pods", answers.Load(), len(want), len(sources)), err
}

// addressesOf returns a service's cluster IPs as netprobe prints what a name resolves to.
func (w *World) addressesOf(ctx context.Context, namespace, name string) (string, error) {
	s, err := w.Lab.Client().CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return strings.Join(slices.Sorted(slices.Values(s.Spec.ClusterIPs)), ","), nil
}
