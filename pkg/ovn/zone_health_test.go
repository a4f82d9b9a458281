// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/healthcheck"
)

// fakeHealth holds what the zone serves: network and service → port and endpoints.
type fakeHealth struct {
	mu     sync.Mutex
	served map[string]string
}

func (f *fakeHealth) Replace(network string, services []healthcheck.Service, keep func(key string) bool) {
	f.mu.Lock()
	maps.DeleteFunc(f.served, func(k, _ string) bool {
		key, of := strings.CutPrefix(k, network+" ")
		return of && !keep(key)
	})
	f.mu.Unlock()
	for _, s := range services {
		if !keep(s.Key) {
			f.Set(network, s)
		}
	}
}

func (f *fakeHealth) Set(network string, s healthcheck.Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.served[network+" "+s.Key] = fmt.Sprintf("%d: %d", s.Port, s.Endpoints)
}

func (f *fakeHealth) Lower(network string, s healthcheck.Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var port uint16
	var endpoints int
	switch n, _ := fmt.Sscanf(f.served[network+" "+s.Key], "%d: %d", &port, &endpoints); {
	case n == 2 && port != s.Port:
		delete(f.served, network+" "+s.Key)
	case n == 2:
		f.served[network+" "+s.Key] = fmt.Sprintf("%d: %d", port, min(endpoints, s.Endpoints))
	}
}

func (f *fakeHealth) Remove(network, key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.served, network+" "+key)
}

func (f *fakeHealth) Run(context.Context) {}

// TestZoneHealth: health checks follow the rows of services, on whatever network, and wait for them.
func TestZoneHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.run()
		local := func(port int32) func(*corev1.ServiceSpec) {
			return func(s *corev1.ServiceSpec) {
				s.Type, s.ExternalTrafficPolicy, s.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, port
			}
		}
		want := func(desc string, want map[string]string) {
			t.Helper()
			env.settle()
			env.health.mu.Lock()
			defer env.health.mu.Unlock()
			if !maps.Equal(env.health.served, want) {
				t.Errorf("%s: %v, want %v", desc, env.health.served, want)
			}
		}
		env.service("plain", "web", 0, local(32000), "10.96.0.3")
		env.service("plain", "cluster", 0, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer }, "10.96.0.5")
		env.endpoints("plain", "web", "", "10.244.0.9", "10.244.0.10")
		env.service("red", "web", 0, local(32001), "10.96.0.4")
		env.endpoints("red", "web", redNet, "10.10.0.3")
		want("before red's network", map[string]string{"default plain/web": "32000: 2"})
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		want("with it", map[string]string{"default plain/web": "32000: 2", redNet + " red/web": "32001: 1"})

		// Rows that cannot be written change no health check of their service, and others follow theirs.
		env.failRows("web")
		env.endpoints("red", "web", redNet)
		want("with rows that fail", map[string]string{"default plain/web": "32000: 2", redNet + " red/web": "32001: 1"})
		env.service("red", "shop", 0, local(32002), "10.96.0.6")
		env.endpoints("red", "shop", redNet, "10.10.0.3")
		want("another service of the network", map[string]string{"default plain/web": "32000: 2", redNet + " red/web": "32001: 1", redNet + " red/shop": "32002: 1"})
		env.endpoints("red", "shop", redNet)
		want("its endpoints", map[string]string{"default plain/web": "32000: 2", redNet + " red/web": "32001: 1", redNet + " red/shop": "32002: 0"})
		env.must(env.kube.CoreV1().Services("red").Delete(context.Background(), "shop", metav1.DeleteOptions{}))
		want("without it", map[string]string{"default plain/web": "32000: 2", redNet + " red/web": "32001: 1"})
		env.failRows("")
		want("with rows that do not", map[string]string{"default plain/web": "32000: 2", redNet + " red/web": "32001: 0"})

		// While a row of the network's topology cannot be written, what is gone is taken away, and nothing is added.
		for _, whole := range []bool{false, true} {
			env.service("red", "shop", 0, local(32003), "10.96.0.6")
			env.endpoints("red", "shop", redNet, "10.10.0.3")
			want("red/shop again", map[string]string{"default plain/web": "32000: 2", redNet + " red/web": "32001: 0", redNet + " red/shop": "32003: 1"})
			const confine = "red_net_ovn_cluster_router confine ip4"
			row, ok := env.row(confine)
			if !ok {
				t.Fatal("no row " + confine)
			}
			env.must(env.nb.Fake.Apply(context.Background(), []Op{{Verb: Delete, Row: row}}))
			env.failRows(confine)
			env.zone.onRowChanged(redNet, topologyUnit, whole)
			env.endpoints("red", "web", redNet, "10.10.0.3")
			env.endpoints("red", "shop", redNet)
			want("without the row", map[string]string{"default plain/web": "32000: 2", redNet + " red/web": "32001: 0", redNet + " red/shop": "32003: 0"})
			env.must(env.kube.CoreV1().Services("red").Delete(context.Background(), "shop", metav1.DeleteOptions{}))
			want("and a service less", map[string]string{"default plain/web": "32000: 2", redNet + " red/web": "32001: 0"})
			env.failRows("")
			want("with the row", map[string]string{"default plain/web": "32000: 2", redNet + " red/web": "32001: 1"})
			env.endpoints("red", "web", redNet)
		}

		env.endpoints("plain", "web", "", "10.244.0.9")
		want("one endpoint less", map[string]string{"default plain/web": "32000: 1", redNet + " red/web": "32001: 0"})
		env.service("plain", "web", 0, nil, "10.96.0.3")
		want("no traffic policy Local", map[string]string{redNet + " red/web": "32001: 0"})
		env.run()
		want("after a restart", map[string]string{redNet + " red/web": "32001: 0"})
		env.must(env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("red").Delete(context.Background(), "net", metav1.DeleteOptions{}))
		want("without red's network", map[string]string{})

		env.zone.healthPortFailed(healthcheck.Service{Key: "red/web", Port: 32001}, errors.New("address already in use"))
		select {
		case e := <-env.events.Events:
			if !strings.Contains(e, reasonHealthPort) || !strings.Contains(e, "port 32001 (spec.healthCheckNodePort): address already in use") {
				t.Error(e)
			}
		default:
			t.Error("no event")
		}
	})
}

func TestEndpointsOn(t *testing.T) {
	e := func(a, node string, state EndpointState) Endpoint {
		return Endpoint{netip.MustParseAddrPort(a), node, state}
	}
	s := Service{Ports: []ServicePort{
		{Endpoints: []Endpoint{e("10.1.0.1:80", "a", EndpointReady), e("[fd01::1]:80", "a", EndpointReady), e("[fd01::2]:80", "a", EndpointReady), e("10.1.0.3:80", "b", EndpointReady)}},
		{Endpoints: []Endpoint{e("10.1.0.1:81", "a", EndpointReady), e("10.1.0.9:81", "a", EndpointTerminating), e("10.1.0.8:81", "a", EndpointNotServing)}},
	}}
	for node, want := range map[string]int{"a": 2, "b": 1, "c": 0} {
		if got := s.endpointsOn(node); got != want {
			t.Errorf("%s: %d, want %d", node, got, want)
		}
	}
}
