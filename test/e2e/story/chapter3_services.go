// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func serviceChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "services: each network's pods reach its own, on every node and back to themselves", Phase: phaseReach, Needs: needs(fixtureServices), Run: servicesReached},
		{Chapter: 3, Title: "the API server's service answers pods of every network, on that port alone", Phase: phaseReach, Needs: needs(fixtureServices), Run: apiServerReached},
		{Chapter: 3, Title: "the service kube-system/kube-dns answers pods of every network, on every node (TCP, UDP)", Phase: phaseReach, Needs: needs(fixtureServices), Run: dnsReached},
		{Chapter: 4, Title: "services: no network's pods reach another's", Phase: phaseIsolation, Needs: needs(fixtureServices), Run: servicesConfined},
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
	return w.Lab.Apply(ctx, strings.Join(append(manifests, w.dnsManifests()...), "---\n"))
}

// dnsManifests are the service that clusters have for DNS, with the pods of the cluster
// default network as its endpoints.
func (w *World) dnsManifests() []string {
	out := []string{`
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  ipFamilyPolicy: PreferDualStack
  ports: [{name: dns-tcp, port: 53, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]
`}
	for _, family := range w.Families {
		var endpoints []string
		for _, p := range w.tenant("") {
			for _, a := range p.Default {
				if a.Is4() == (family == "ipv4") {
					endpoints = append(endpoints, fmt.Sprintf("{addresses: [%q], nodeName: %s}", a, p.Node))
				}
			}
		}
		out = append(out, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-%[1]s, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: %[2]s
endpoints: [%[3]s]
ports: [{name: dns-tcp, port: %[4]s, protocol: TCP}, {name: dns, port: %[4]s, protocol: UDP}]
`, family, strings.Replace(family, "ip", "IP", 1), strings.Join(endpoints, ", "), port))
	}
	return out
}

func undoServices(ctx context.Context, w *World) error {
	client := w.Lab.Client()
	err := client.CoreV1().Services("kube-system").Delete(ctx, "kube-dns", metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return errors.Join(err, client.DiscoveryV1().EndpointSlices("kube-system").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kube-dns"}))
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
		var endpoints []string
		for _, p := range w.tenant(s.tenant) {
			if p.Namespace == s.namespace {
				endpoints = append(endpoints, p.Namespace+"/"+p.Name)
			}
		}
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

// allAnswer asks all targets, several times each, until each of the wanted servers has
// answered for each target.
func (w *World) allAnswer(ctx context.Context, from *pod, list, want []string) (answers int, err error) {
	missing := map[string]map[string]struct{}{}
	for _, t := range list {
		missing[t] = map[string]struct{}{}
		for _, server := range want {
			missing[t][server] = struct{}{}
		}
	}
	for deadline := time.Now().Add(patience); len(missing) > 0; {
		var targets []string
		for t := range missing {
			targets = append(targets, slices.Repeat([]string{t}, 2*len(want))...)
		}
		got, err := w.ask(ctx, from, "", targets)
		if err != nil {
			return answers, err
		}
		for _, g := range got {
			if g.OK && !slices.Contains(want, g.Who) {
				return answers, fmt.Errorf("%q answers for %s", g.Who, g.Target)
			}
			if g.OK {
				answers++
				delete(missing[g.Target], g.Who)
			}
			if len(missing[g.Target]) == 0 {
				delete(missing, g.Target)
			}
		}
		if len(missing) > 0 && time.Now().After(deadline) {
			return answers, fmt.Errorf("no answers within %s: %v", patience, missing)
		}
	}
	return answers, nil
}

// servicesConfined has each pod try the other networks' services. That they answer
// their own pods is servicesReached's check.
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
		got, err := w.check(ctx, from, "", 3*time.Second, lists[slices.Index(sources, from)]...)
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

// apiServerReached has pods of each network ask the API server by the service default/kubernetes,
// which is of the cluster default network and outside the nodes, and try its other ports.
func apiServerReached(ctx context.Context, w *World) (string, error) {
	service, err := w.Lab.Client().CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	at, err := netip.ParseAddr(service.Spec.ClusterIP)
	if err != nil || len(service.Spec.Ports) != 1 {
		return "", fmt.Errorf("service default/kubernetes: address %q, ports %v: %w", service.Spec.ClusterIP, service.Spec.Ports, err)
	}
	port := uint16(service.Spec.Ports[0].Port)
	want := map[string]string{"tcp:" + netip.AddrPortFrom(at, port).String(): apiServer}
	others := []string{"udp:" + netip.AddrPortFrom(at, port).String(), "tcp:" + netip.AddrPortFrom(at, port+1).String(), "tcp:" + netip.AddrPortFrom(at, 6443).String(), "icmp:" + at.String()}
	var sources []*pod
	for _, s := range storyServices {
		sources = append(sources, w.tenant(s.tenant)...)
	}
	return fmt.Sprintf("%d pods, %d other ports each", len(sources), len(others)), each(sources, func(from *pod) error {
		if _, err := w.reach(ctx, from, "", want); err != nil {
			return fmt.Errorf("%s to the API server: %w", from.Name, err)
		}
		got, err := w.check(ctx, from, "", 3*time.Second, others...)
		if err != nil {
			return err
		}
		return reachedAny(from.Name, got)
	})
}

// dnsReached has pods of each network ask the service kube-system/kube-dns, and try
// another of its pods' ports there.
func dnsReached(ctx context.Context, w *World) (string, error) {
	list, err := w.clusterIPs(ctx, "kube-system", "kube-dns", 53)
	if err != nil {
		return "", err
	}
	others, err := w.clusterIPs(ctx, "kube-system", "kube-dns", 8080)
	if err != nil {
		return "", err
	}
	var want []string
	for _, p := range w.tenant("") {
		want = append(want, p.Namespace+"/"+p.Name)
	}
	var sources []*pod
	for _, s := range storyServices {
		pods := w.tenant(s.tenant)
		sources = append(sources, pods[0], pods[len(pods)-1])
	}
	var answers atomic.Int32
	err = each(sources, func(from *pod) error {
		n, err := w.allAnswer(ctx, from, list, want)
		answers.Add(int32(n))
		if err != nil {
			return fmt.Errorf("%s to the service kube-dns: %w", from.Name, err)
		}
		got, err := w.check(ctx, from, "", 3*time.Second, others...)
		if err != nil {
			return err
		}
		return reachedAny(from.Name, got)
	})
	return fmt.Sprintf("%d answers to %d pods", answers.Load(), len(sources)), err
}
