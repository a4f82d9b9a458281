// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/metadata/metadatainformer"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/network"
)

var nodes = corev1.SchemeGroupVersion.WithResource("nodes")

// fakeNodes returns a fake API with these Nodes' metadata, an informer of it, and how often all Nodes were listed.
func fakeNodes(t *testing.T, objects ...runtime.Object) (*metadatafake.FakeMetadataClient, cache.SharedIndexInformer, *int) {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client, lists := metadatafake.NewSimpleMetadataClient(scheme, objects...), new(int)
	client.PrependReactor("list", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) { *lists++; return false, nil, nil })
	return client, metadatainformer.NewSharedInformerFactory(client, 0).ForResource(nodes).Informer(), lists
}

// TestLocalnets: the external bridge's flows follow Localnet networks that come and go, as
// soon as the agent knows the others, and the other nodes, in whose name these must not send.
func TestLocalnets(t *testing.T) {
	localnet := network.NAD{Namespace: "shop", Name: "quay", Network: network.Network{ID: 5, Name: "quay_net", Topology: network.Localnet, Role: network.RoleSecondary, PhysicalNetworkName: "harbor"}}
	node := func(name, mac string) *metav1.PartialObjectMetadata {
		config := fmt.Sprintf(`{"default":{"mode":"shared","mac-address":%q,"ip-addresses":["192.0.2.8/24"]}}`, mac)
		return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{network.AnnotationGatewayConfig: config}}}
	}
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("early %t", early), func(t *testing.T) {
			t.Setenv("KUBE_FEATURE_WatchListClient", "false") // the fakes do not support it
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				client, informer, lists := fakeNodes(t, node("n1", "52:54:00:00:00:01"), node("n2", "52-54-00-00-00-0A"))
				flows := &fakeFlows{}
				f := newFakeNode(t, func(p *Parts) { p.Flows, p.Config.Kubernetes.NodeName = flows, "n1" })
				if early { // the networks were there before the agent
					f.setNAD(localnet)
				}
				if err := f.agent.node.watchPeers(ctx, informer); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if !flows.has() {
					t.Error("the flows are set before the cache is synced")
				}
				f.agent.start()
				f.setNodeID(3)
				if !early {
					time.Sleep(time.Minute)
					if *lists > 0 {
						t.Error("the agent lists all nodes, although there is no Localnet network")
					}
					f.setNAD(localnet)
				}
				eventually(t, "the first network", func() bool { return flows.has("quay_net") && flows.hasPeers("n2 52:54:00:00:00:0a") })
				if _, err := client.Resource(nodes).(metadatafake.MetadataClient).UpdateFake(node("n2", "52:54:00:00:00:0b"), metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				eventually(t, "another MAC address", func() bool { return flows.hasPeers("n2 52:54:00:00:00:0b") })
				if _, err := client.Resource(nodes).(metadatafake.MetadataClient).UpdateFake(node("n2", "none"), metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if !flows.hasPeers("n2 52:54:00:00:00:0b") {
					t.Error("a node with a malformed annotation loses its MAC address")
				}
				if err := client.Resource(nodes).Delete(ctx, "n2", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				eventually(t, "no other node", func() bool { return flows.has("quay_net") && flows.hasPeers() })
				f.events().enqueueNAD(f.agent.cache.DeleteNAD("shop/quay"))
				eventually(t, "no network", func() bool { return flows.has() })
				f.setNAD(localnet)
				eventually(t, "the network again", func() bool { return flows.has("quay_net") })
			})
		})
	}
}

// TestLocalnetsWait: no Localnet network is connected as long as the other nodes are not known.
func TestLocalnetsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flows := &fakeFlows{}
		f := newFakeNode(t, func(p *Parts) { p.Flows = flows })
		f.agent.start()
		f.setNodeID(3)
		f.setNAD(network.NAD{Namespace: "shop", Name: "quay", Network: network.Network{ID: 5, Name: "quay_net", Topology: network.Localnet, Role: network.RoleSecondary, PhysicalNetworkName: "harbor"}})
		time.Sleep(5 * time.Minute)
		if !flows.has() {
			t.Error("a network is connected before the other nodes are known")
		}
	})
}

// TestPeersAddress: a Service to which a load balancer has given another node's address is not served there, as the zone does
// not serve it: other nodes would lose that port. The agent reads the nodes only for such a Service.
func TestPeersAddress(t *testing.T) {
	t.Setenv("KUBE_FEATURE_WatchListClient", "false") // the fakes do not support it
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		peer := func(address string) *metav1.PartialObjectMetadata {
			config := fmt.Sprintf(`{"default":{"mode":"shared","mac-address":"52:54:00:00:00:0a","ip-addresses":["%s/24"]}}`, address)
			return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n2", Annotations: map[string]string{network.AnnotationGatewayConfig: config}}}
		}
		client, informer, lists := fakeNodes(t, peer("203.0.113.7"))
		fake := &fakeFlows{}
		f := newFakeNode(t, func(p *Parts) { p.Flows, p.Config.Kubernetes.NodeName = fake, "n1" })
		if err := f.agent.node.watchPeers(ctx, informer); err != nil {
			t.Fatal(err)
		}
		f.agent.start()
		f.setNodeID(3)
		f.setNAD(nad(f.agent.config, "shop", "net", 4))
		f.events().changeNamespace("shop", Namespace{Labelled: true})
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
			ClusterIPs: []string{"10.96.0.9"}, ExternalIPs: []string{"203.0.113.7"}, Ports: []corev1.ServicePort{{Port: 80}}}}
		f.events().setService(service)
		eventually(t, "the claimed address", func() bool { return len(fake.ports(4)) == 1 && fake.ports(4)[0].Claimed })
		if *lists > 0 {
			t.Error("the agent lists all nodes for an address that a Service's author chose")
		}
		service = service.DeepCopy()
		service.Spec.ExternalIPs = nil
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.7"}, {IP: "203.0.113.8"}}
		f.events().setService(service)
		served := func(addresses ...string) func() bool {
			return func() bool {
				var got []string
				for _, p := range fake.ports(4) {
					got = append(got, p.Addr.String())
				}
				return slices.Equal(got, addresses)
			}
		}
		eventually(t, "another node's address is refused", served("203.0.113.8"))
		change := func(address string) {
			t.Helper()
			if _, err := client.Resource(nodes).(metadatafake.MetadataClient).UpdateFake(peer(address), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		change("203.0.113.8")
		eventually(t, "the node has another address", served("203.0.113.7"))
		if err := client.Resource(nodes).Delete(ctx, "n2", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the node is gone", served("203.0.113.7", "203.0.113.8"))
	})
}
