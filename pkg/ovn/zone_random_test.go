// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
	"bulkhead/test/sampling"
)

// Whatever users create, change and delete, in whatever order and at whatever pace, the events
// suffice: afterwards neither an audit nor a restart changes a row.
func TestZoneEventsSuffice(t *testing.T) {
	t.Parallel() // with TestNativeFaults, which mostly waits
	seeds := uint64(40)
	if sampling.Full() {
		seeds = 400
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { randomEvents(t, seed) })
		})
	}
}

// randomUser is users whose actions a seed chooses, of a few namespaces, networks,
// services and pods, so that they often meet.
type randomUser struct {
	*zoneEnv
	*rand.Rand
	done []string // for the report of a failure
}

func randomEvents(t *testing.T, seed uint64) {
	u := &randomUser{zoneEnv: newZoneEnv(t), Rand: rand.New(rand.NewPCG(seed, 1))}
	u.node(1, true)
	for range u.IntN(40) {
		u.act()
	}
	u.run()
	u.settle() // the fake API server loses what happens between an informer's list and its watch
	for range 60 {
		u.act()
		u.pause()
	}
	u.check()
	u.stop()
	if t.Failed() {
		t.Logf("what users did:\n%s", strings.Join(u.done, "\n"))
	}
}

// act creates, changes or deletes one object.
func (u *randomUser) act() {
	namespace := string("abecd"[u.IntN(5)])
	if _, err := u.kube.CoreV1().Namespaces().Get(context.Background(), namespace, metav1.GetOptions{}); err != nil {
		u.report("create namespace %s", namespace)
		u.namespace(namespace, isTenants(namespace))
		return
	}
	actions := []func(namespace string){
		u.deleteNamespace, u.changeNAD, u.changeNAD, u.changeNAD, u.changeService, u.changeService, u.changeService,
		u.changeEndpoints, u.changeEndpoints, u.changePod, u.changeNode,
	}
	actions[u.IntN(len(actions))](namespace)
}

// isTenants reports whether a namespace has a primary network: a and b have their own or share
// one, e has one of Layer 2.
func isTenants(namespace string) bool { return strings.Contains("abe", namespace) }

func (u *randomUser) report(format string, args ...any) {
	u.done = append(u.done, fmt.Sprintf(format, args...))
}

func (u *randomUser) changeNAD(namespace string) {
	if !isTenants(namespace) {
		return
	}
	own := network.UDNName(namespace, "net")
	_, err := u.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace).Get(context.Background(), "net", metav1.GetOptions{})
	switch {
	case err == nil && u.IntN(3) > 0:
		u.report("delete NAD %s", namespace)
		u.deleteNAD(namespace, "net")
	case err == nil:
		u.report("break NAD %s", namespace)
		u.editNAD(namespace, "net", withSubnets("nonsense"))
	case namespace == "e":
		u.report("create NAD of Layer 2 network %s", namespace)
		u.nadOf(namespace, "net", 4, network.NetConf{Name: own, Topology: "layer2", Role: "primary", Subnets: "10.40.0.0/16"})
	case u.IntN(2) == 0:
		u.report("create NAD of the shared network %s", namespace)
		u.sharedNAD(namespace)
	default:
		u.report("create NAD %s", namespace)
		u.nad(namespace, "net", own, map[string]int{"a": 2, "b": 3}[namespace], "10.20.0.0/16/24")
	}
}

func (u *randomUser) serviceName() string { return []string{"web", "self"}[u.IntN(2)] }

func (u *randomUser) changeService(namespace string) {
	ctx, name, api := context.Background(), u.serviceName(), u.kube.CoreV1().Services(namespace)
	if _, err := api.Get(ctx, name, metav1.GetOptions{}); err == nil && u.IntN(3) > 0 {
		u.report("delete service %s/%s", namespace, name)
		u.must(api.Delete(ctx, name, metav1.DeleteOptions{}))
		return
	}
	var external []string
	if u.IntN(2) == 0 {
		external = []string{fmt.Sprint("198.51.100.", 1+u.IntN(2))}
	}
	u.report("service %s/%s, external %v", namespace, name, external)
	age := (3*int(namespace[0]) + len(name)) % 7 // a service's never changes
	u.service(namespace, name, age, func(s *corev1.ServiceSpec) { s.ExternalIPs = external }, fmt.Sprintf("10.96.%d.%d", namespace[0], len(name)))
}

func (u *randomUser) changeEndpoints(namespace string) {
	name, on := u.serviceName(), ""
	if isTenants(namespace) {
		on = []string{"", sharedNet, network.UDNName(namespace, "net")}[u.IntN(3)]
	}
	var addresses []string
	for i := range u.IntN(3) {
		addresses = append(addresses, fmt.Sprint("10.20.0.", 4+i))
	}
	u.report("endpoints %s/%s on %q: %v", namespace, name, on, addresses)
	u.endpoints(namespace, name, on, addresses...)
}

func (u *randomUser) changePod(namespace string) {
	name := fmt.Sprint("p", u.IntN(2))
	switch pod, err := u.kube.CoreV1().Pods(namespace).Get(context.Background(), name, metav1.GetOptions{}); {
	case err != nil:
		u.report("create pod %s/%s", namespace, name)
		u.pod(namespace, name, nil)
	case pod.Status.Phase == corev1.PodPending && u.IntN(2) == 0 && pod.Annotations[network.AnnotationPodNetworks] != "":
		u.report("pod %s/%s runs", namespace, name)
		u.setRunning(namespace, name)
	default:
		u.report("delete pod %s/%s", namespace, name)
		u.deletePod(namespace, name)
	}
}

// changeNode changes another node than the zone's.
func (u *randomUser) changeNode(string) {
	ctx, id, api := context.Background(), 2+u.IntN(2), u.kube.CoreV1().Nodes()
	name := fmt.Sprint("node", id)
	if _, err := api.Get(ctx, name, metav1.GetOptions{}); err == nil && u.IntN(2) == 0 {
		u.report("delete %s", name)
		u.must(api.Delete(ctx, name, metav1.DeleteOptions{}))
		return
	}
	annotated := u.IntN(3) > 0
	u.report("%s, annotated: %t", name, annotated)
	u.node(id, annotated)
}

// deleteNamespace deletes a namespace with its objects. The zone sees the deletions of each
// kind in order, but it may see that of the namespace first.
func (u *randomUser) deleteNamespace(name string) {
	u.report("delete namespace %s", name)
	ctx := context.Background()
	pods, err := u.kube.CoreV1().Pods(name).List(ctx, metav1.ListOptions{})
	u.must(err)
	services, err := u.kube.CoreV1().Services(name).List(ctx, metav1.ListOptions{})
	u.must(err)
	endpoints, err := u.kube.DiscoveryV1().EndpointSlices(name).List(ctx, metav1.ListOptions{})
	u.must(err)
	nads, err := u.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(name).List(ctx, metav1.ListOptions{})
	u.must(err)
	deletions := []func(){func() { u.must(u.kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})) }}
	for _, o := range pods.Items {
		deletions = append(deletions, func() { u.deletePod(name, o.Name) })
	}
	for _, o := range services.Items {
		deletions = append(deletions, func() { u.must(u.kube.CoreV1().Services(name).Delete(ctx, o.Name, metav1.DeleteOptions{})) })
	}
	for _, o := range endpoints.Items {
		deletions = append(deletions, func() { u.must(u.kube.DiscoveryV1().EndpointSlices(name).Delete(ctx, o.Name, metav1.DeleteOptions{})) })
	}
	for _, o := range nads.Items {
		deletions = append(deletions, func() { u.deleteNAD(name, o.Name) })
	}
	u.Shuffle(len(deletions), func(i, j int) { deletions[i], deletions[j] = deletions[j], deletions[i] })
	for _, d := range deletions {
		d()
		if u.IntN(2) == 0 {
			time.Sleep(time.Duration(u.IntN(1000)) * time.Millisecond)
		}
	}
}

// pause lets some time pass, or none.
func (u *randomUser) pause() {
	switch u.IntN(8) {
	case 0:
		u.settle()
	case 1, 2, 3:
		time.Sleep(time.Duration(u.IntN(300)) * time.Millisecond)
	}
}

// check fails unless audits and a restart leave the rows as they are.
func (u *randomUser) check() {
	u.settle()
	before := u.dump()
	u.zone.mu.Lock()
	for _, name := range u.zone.networks() {
		u.zone.queue.AddAudit(name)
	}
	u.zone.mu.Unlock()
	u.zone.queue.Add(keyCleanup)
	u.settle()
	unchanged := func(after string) {
		if now := u.dump(); now != before {
			u.t.Errorf("%s has changed rows:\n%s", after, difference(now, before))
		}
	}
	unchanged("an audit")
	u.run()
	u.settle()
	unchanged("a restart")
}
