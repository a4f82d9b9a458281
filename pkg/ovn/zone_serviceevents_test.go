// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/network"
)

// Events of services, namespaces and NADs arrive in any order, because each kind has an
// informer of its own. Whenever services are built in between, after the last event each is
// as it would be rebuilt.
func TestZoneServiceEventsInAnyOrder(t *testing.T) {
	seeds := uint64(1000)
	if testing.Short() {
		seeds = 300
	}
	for seed := range seeds {
		w := newEventWorld(t, seed)
		for range 40 {
			w.step()
		}
		w.check()
		if t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, strings.Join(w.done, "\n"))
		}
	}
}

// eventWorld is a zone that the test sends events, and whose services it builds.
type eventWorld struct {
	*Zone
	*rand.Rand
	t     *testing.T
	nads  map[string]*nadv1.NetworkAttachmentDefinition // by namespace, of sharedNet
	built map[string]string                             // by network and service
	done  []string                                      // for the report of a failure
}

var (
	eventNamespaces = []string{"a", "b", "c"}
	eventNetworks   = []string{network.DefaultName, sharedNet}
)

func newEventWorld(t *testing.T, seed uint64) *eventWorld {
	env := newZoneEnv(t)
	w := &eventWorld{Zone: env.newZone(), Rand: rand.New(rand.NewPCG(seed, 2)), t: t, nads: map[string]*nadv1.NetworkAttachmentDefinition{}, built: map[string]string{}}
	for _, namespace := range eventNamespaces {
		env.sharedNAD(namespace)
		nad, err := env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace).Get(context.Background(), "net", metav1.GetOptions{})
		env.must(err)
		w.nads[namespace] = nad
	}
	w.slices = cache.NewIndexer(cache.MetaNamespaceKeyFunc, sliceIndexers)
	none := func(any) ([]string, error) { return nil, nil }
	w.podStore = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: none, indexSelected: none})
	w.remotePods = cache.NewIndexer(cache.MetaNamespaceKeyFunc, remotePodIndexers)
	w.synced = true
	return w
}

func (w *eventWorld) report(format string, args ...any) {
	w.done = append(w.done, fmt.Sprintf(format, args...))
}

// step sends the zone an event, or builds what it has enqueued.
func (w *eventWorld) step() {
	namespace := eventNamespaces[w.IntN(len(eventNamespaces))]
	switch w.IntN(8) {
	case 0, 1:
		w.build()
	case 2:
		labelled, exists := w.namespaces[namespace]
		if ns := namespaceObject(namespace, w.IntN(2) == 0); !exists {
			w.report("namespace %s, labelled: %t", namespace, len(ns.Labels) > 0)
			w.namespaceChanged(nil, ns)
		} else {
			w.report("no namespace %s", namespace)
			w.namespaceDeleted(namespaceObject(namespace, labelled))
		}
	case 3:
		_, exists := w.nadIndex.NAD(network.NADKey(namespace, "net"))
		nad := w.nads[namespace].DeepCopy()
		if broken := w.IntN(3) == 0; exists && !broken {
			w.report("no NAD of %s", namespace)
			w.nadDeleted(nad)
		} else {
			if broken {
				nad.Spec.Config = "{"
			}
			w.report("NAD of %s, broken: %t", namespace, broken)
			w.nadChanged(nil, nad)
		}
	default:
		w.changeService(namespace, string("xy"[w.IntN(2)]))
	}
}

func namespaceObject(name string, labelled bool) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if labelled {
		ns.Labels = map[string]string{network.LabelPrimaryUDN: ""}
	}
	return ns
}

func (w *eventWorld) changeService(namespace, name string) {
	obj, exists, _ := w.services.GetByKey(namespace + "/" + name)
	if exists && w.IntN(2) == 0 {
		w.report("no service %s/%s", namespace, name)
		w.serviceDeleted(obj)
		return
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.Unix(int64(w.IntN(3)), 0)},
		Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.9"}, Ports: []corev1.ServicePort{{Port: 80}}}}
	if exists {
		s.CreationTimestamp = obj.(*corev1.Service).CreationTimestamp
	}
	if w.IntN(3) > 0 {
		s.Spec.ExternalIPs = []string{"203.0.113.1"}
	}
	w.report("service %s/%s of %d, external %v", namespace, name, s.CreationTimestamp.Unix(), s.Spec.ExternalIPs)
	w.serviceChanged(obj, s)
}

// build builds the services that are enqueued.
func (w *eventWorld) build() {
	for _, net := range eventNetworks {
		units, _, enqueued := w.queue.take(net)
		if !enqueued {
			continue
		}
		if n, known := w.desiredNetwork(net); known {
			w.state(net).net = n // as nextJob has it
		} else {
			delete(w.nets, net)
		}
		w.report("    built on %s: %v", net, units)
		if units == nil {
			units = allServices()
		}
		for _, u := range units {
			w.built[net+" "+u.Name] = w.text(net, u.Name)
		}
	}
}

func allServices() (units []Unit) {
	for _, namespace := range eventNamespaces {
		units = append(units, serviceUnit(namespace+"/x"), serviceUnit(namespace+"/y"))
	}
	return units
}

// text returns what a service is built as now.
func (w *eventWorld) text(net, key string) string {
	var out []string
	for _, s := range w.serviceOn(network.Network{Name: net}, key) {
		out = append(out, fmt.Sprint(s.ClusterIPs, s.ExternalIPs))
	}
	return strings.Join(out, " ")
}

// check builds what is enqueued, and fails if a service would be rebuilt as something else.
func (w *eventWorld) check() {
	w.build()
	for _, net := range eventNetworks {
		for _, u := range allServices() {
			if built, now := w.built[net+" "+u.Name], w.text(net, u.Name); built != now {
				w.t.Errorf("on %s, %s is %q and would be built as %q", net, u.Name, built, now)
			}
		}
	}
	if n := len(w.Zone.served); n > len(w.services.ListKeys()) {
		w.t.Errorf("the zone remembers the networks of %d services, and there are %d", n, len(w.services.ListKeys()))
	}
}
