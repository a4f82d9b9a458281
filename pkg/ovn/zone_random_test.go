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
	seeds := uint64(40)
	if sampling.Full() {
		seeds = 1000
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
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
}

// act creates, changes or deletes one object.
func (u *randomUser) act() {
	ctx := context.Background()
	namespace := string("abecd"[u.IntN(5)])
	isLabelled := strings.Contains("abe", namespace)
	if _, err := u.kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); err != nil {
		u.namespace(namespace, isLabelled)
		u.done = append(u.done, "create namespace "+namespace)
		return
	}
	report := func(format string, args ...any) { u.done = append(u.done, fmt.Sprintf(format, args...)) }
	switch u.IntN(11) {
	case 0:
		report("delete namespace %s", namespace)
		u.deleteNamespace(namespace)
	case 2, 3, 4:
		if !isLabelled {
			return
		}
		_, err := u.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(namespace).Get(ctx, "net", metav1.GetOptions{})
		switch {
		case err == nil && u.IntN(3) > 0:
			u.deleteNAD(namespace, "net")
			report("delete NAD %s", namespace)
		case err == nil:
			u.editNAD(namespace, "net", withSubnets("nonsense"))
			report("break NAD %s", namespace)
		case namespace == "e":
			u.nadOf(namespace, "net", 4, network.NetConf{Name: network.UDNName("e", "net"), Topology: "layer2", Role: "primary", Subnets: "10.40.0.0/16"})
			report("create NAD of Layer 2 network %s", namespace)
		case u.IntN(2) == 0:
			u.sharedNAD(namespace)
			report("create NAD of the shared network %s", namespace)
		default:
			u.nad(namespace, "net", network.UDNName(namespace, "net"), map[string]int{"a": 2, "b": 3}[namespace], "10.20.0.0/16/24")
			report("create NAD %s", namespace)
		}
	case 5, 6, 7:
		name := []string{"web", "self"}[u.IntN(2)]
		api := u.kube.CoreV1().Services(namespace)
		if _, err := api.Get(ctx, name, metav1.GetOptions{}); err == nil && u.IntN(3) > 0 {
			u.must(api.Delete(ctx, name, metav1.DeleteOptions{}))
			report("delete service %s/%s", namespace, name)
			return
		}
		var external []string
		if u.IntN(2) == 0 {
			external = []string{fmt.Sprint("198.51.100.", 1+u.IntN(2))}
		}
		u.service(namespace, name, (3*int(namespace[0])+len(name))%7, func(s *corev1.ServiceSpec) { s.ExternalIPs = external }, fmt.Sprintf("10.96.%d.%d", namespace[0], len(name)))
		report("service %s/%s, external %v", namespace, name, external)
	case 8, 1:
		name := []string{"web", "self"}[u.IntN(2)]
		on := ""
		if isLabelled {
			on = []string{"", sharedNet, network.UDNName(namespace, "net")}[u.IntN(3)]
		}
		var addresses []string
		for i := range u.IntN(3) {
			addresses = append(addresses, fmt.Sprint("10.20.0.", 4+i))
		}
		u.endpoints(namespace, name, on, addresses...)
		report("endpoints %s/%s on %q: %v", namespace, name, on, addresses)
	case 9:
		name := fmt.Sprint("p", u.IntN(2))
		switch pod, err := u.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); {
		case err != nil:
			u.pod(namespace, name, nil)
			report("create pod %s/%s", namespace, name)
		case pod.Status.Phase == corev1.PodPending && u.IntN(2) == 0 && pod.Annotations[network.AnnotationPodNetworks] != "":
			u.setRunning(namespace, name)
			report("pod %s/%s runs", namespace, name)
		default:
			u.deletePod(namespace, name)
			report("delete pod %s/%s", namespace, name)
		}
	case 10:
		id := 2 + u.IntN(2)
		name := fmt.Sprint("node", id)
		if _, err := u.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err == nil && u.IntN(2) == 0 {
			u.must(u.kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
			report("delete %s", name)
			return
		}
		annotated := u.IntN(3) > 0
		u.node(id, annotated)
		report("%s, annotated: %t", name, annotated)
	}
}

// deleteNamespace deletes a namespace with its objects. The zone sees the deletions of each
// kind in order, but it may see that of the namespace first.
func (u *randomUser) deleteNamespace(name string) {
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
	names := u.zone.nadIndex.Networks()
	u.zone.mu.Unlock()
	for _, name := range append(names, network.DefaultName) {
		u.zone.queue.AddAudit(name)
	}
	u.zone.queue.Add(keyCleanup)
	u.settle()
	unchanged := func(after string) {
		if now := u.dump(); now != before || u.corrections() != 0 {
			u.zone.mu.Lock()
			defer u.zone.mu.Unlock()
			u.t.Errorf("%s has corrected %v rows:\n%s\nwhat users did:\n%s\nsuspects: %v", after, u.corrections(), difference(now, before), strings.Join(u.done, "\n"), u.zone.suspects)
		}
	}
	unchanged("an audit")
	u.run()
	u.settle()
	unchanged("a restart")
}
