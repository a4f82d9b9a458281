// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/network"
)

// Pods of the named namespaces reach tenants' cluster IPs, as namespaces, networks, pods and services
// come and go in any order. A tenant's namespace is no ingress namespace, whatever the configuration says.
func TestIngress(t *testing.T) {
	c, cfg := NewCache(), testConfig(t)
	expect := func(when, pods, clusterIPs string) {
		t.Helper()
		in := c.Ingress([]string{"edge", "red"})
		var got []string
		for _, x := range in.ClusterIPs {
			got = append(got, fmt.Sprintf("%s %d", x.Addr, x.Network.ID))
		}
		if fmt.Sprint(in.Pods) != pods || fmt.Sprint(got) != clusterIPs {
			t.Errorf("%s: pods %v, cluster IPs %v; want %s, %s", when, in.Pods, got, pods, clusterIPs)
		}
	}
	on := func(namespace, name string, role network.Role, ips ...string) Pod {
		p := Pod{UID: name, Namespace: namespace, Name: name, Networks: network.PodNetworks{network.DefaultName: {Role: role}}}
		n := p.Networks[network.DefaultName]
		for _, ip := range ips {
			n.IPs = append(n.IPs, netip.MustParsePrefix(ip))
		}
		p.Networks[network.DefaultName] = n
		return p
	}
	web := func(namespace string, ips ...string) service {
		return parsed(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: corev1.ServiceSpec{ClusterIPs: ips, Ports: []corev1.ServicePort{{Port: 80}, {Port: 443}}}})
	}
	if c.Ingress(nil) != nil {
		t.Error("without ingress namespaces there is something of them")
	}
	c.SetService("red/web", web("red", "10.96.0.7", "fd10:96::7"))
	c.SetService("plain/web", web("plain", "10.96.0.8"))
	expect("before the tenant's namespace", "[]", "[]")
	c.SetNamespace("red", Namespace{Labelled: true})
	expect("before its network", "[]", "[]")
	c.SetPod(Pod{UID: "proxy", Namespace: "edge", Name: "proxy", HostNetwork: true})
	expect("before its network", "[]", "[]")
	c.SetNAD(nad(cfg, "red", "net", 1))
	expect("with the network", "[]", "[10.96.0.7 1 fd10:96::7 1]")
	c.SetPod(on("edge", "router", network.RolePrimary, "10.244.1.5/24", "fd10:244::5/64"))
	c.SetPod(on("plain", "other", network.RolePrimary, "10.244.1.6/24"))
	c.SetPod(on("red", "tenant", network.RoleInfrastructureLocked, "10.244.1.7/24"))
	c.SetPod(on("red", "older", network.RolePrimary, "10.244.1.8/24"))
	expect("with pods", "[10.244.1.5 fd10:244::5]", "[10.96.0.7 1 fd10:96::7 1]")
	c.SetNamespace("edge", Namespace{Labelled: true})
	expect("a tenant's namespace", "[]", "[]")
	c.SetNamespace("edge", Namespace{})
	c.DeletePod("edge/router")
	expect("without the pod", "[]", "[10.96.0.7 1 fd10:96::7 1]")
	c.SetService("red/web", service{})
	expect("without the service", "[]", "[]")
}

// nft and eBPF follow ingress pods' addresses, and tenants' services.
func TestIngressEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t, func(p *Parts) { p.Config.IngressNamespaces = []string{"edge"} })
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil })
		nft := func(set, want string) func() bool {
			return func() bool {
				st, err := f.agent.hosts.firewall.Target.Read(t.Context())
				return err == nil && strings.Join(st.Sets[set], ", ") == want
			}
		}
		f.events().changeNamespace("edge", Namespace{})
		router := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "edge", Name: "router", UID: "a", Annotations: map[string]string{}}}
		f.events().setPod(router)
		f.events().setPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "edge", Name: "proxy", UID: "b"}, Spec: corev1.PodSpec{HostNetwork: true}})
		router = router.DeepCopy()
		router.Annotations[network.AnnotationPodNetworks] = `{"default":{"ip_addresses":["10.244.2.7/24"],"mac_address":"0a:58:0a:f4:02:07","role":"primary"}}`
		f.events().setPod(router)
		eventually(t, "the pod's address", nft(firewall.SetIngressPods4, "10.244.2.7"))
		f.events().changeNamespace("red", Namespace{Labelled: true})
		f.setNAD(nad(testConfig(t), "red", "net", 1))
		f.events().setService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.7"}, Ports: []corev1.ServicePort{{Port: 80}}}})
		eventually(t, "the cluster IP", nft(firewall.SetIngressTo4, "ovn-k8s-mp1 . 10.96.0.7"))
		eventually(t, "eBPF", func() bool {
			in := f.hosts()
			return len(in.Pods) == 1 && in.Pods[0].Ingress && len(in.ClusterIPs) == 1 && in.ClusterIPs[0].NetworkID == 1
		})
		f.events().deleteService("red/web")
		eventually(t, "no cluster IP", nft(firewall.SetIngressTo4, ""))
		f.events().deletePod("edge/router")
		eventually(t, "no pod", nft(firewall.SetIngressPods4, ""))
		// The runtime connects the pod before its event: that finds nothing changed.
		start := time.Now()
		m := podPortManager{hosts: f.agent.hosts, log: f.agent.log, pod: func(string, string) (*corev1.Pod, bool) { return router, true }}
		m.storePod("edge", "router")
		f.events().setPod(router)
		eventually(t, "the pod's address again", nft(firewall.SetIngressPods4, "10.244.2.7"))
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("the address of a pod that is connected before its event is in nft after %s", took)
		}
	})
}
