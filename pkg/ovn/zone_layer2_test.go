// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// layer2Entry returns an entry of the annotation as the cluster controller writes it.
func layer2Entry(ip, mac string, key int) string {
	return fmt.Sprintf(`{"ip_addresses":["%s/16"],"mac_address":"%s","ip_address":"%s/16","tunnel_id":%d,"role":"secondary"}`, ip, mac, ip, key)
}

// remotePod creates a labelled pod on another node.
func (env *zoneEnv) remotePod(node, namespace, name, entries string) {
	_, err := env.kube.CoreV1().Pods(namespace).Create(context.Background(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Now(),
			Labels: map[string]string{network.LabelLayer2Pod: ""}, Annotations: map[string]string{network.AnnotationPodNetworks: entries}},
		Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}, metav1.CreateOptions{})
	env.must(err)
}

// setNetworks changes entries of a pod's annotation, as the cluster controller does.
func (env *zoneEnv) setNetworks(namespace, name string, edit func(network.PodNetworks)) {
	ctx, api := context.Background(), env.kube.CoreV1().Pods(namespace)
	pod, err := api.Get(ctx, name, metav1.GetOptions{})
	env.must(err)
	nets, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
	env.must(err)
	edit(nets)
	value, err := nets.Render()
	env.must(err)
	pod.Annotations[network.AnnotationPodNetworks] = value
	_, err = api.Update(ctx, pod, metav1.UpdateOptions{})
	env.must(err)
}

// port waits for a logical port and returns its settings.
func (env *zoneEnv) port(id string) *nbdb.LogicalSwitchPort {
	env.t.Helper()
	p, ok := env.waitForRow(id).Model.(*nbdb.LogicalSwitchPort)
	if !ok {
		env.t.Fatalf("%s is not a port", id)
	}
	return p
}

func entry(t *testing.T, text string) network.PodNetwork {
	t.Helper()
	nets, err := network.ParsePodNetworks(`{"x":` + text + `}`)
	if err != nil {
		t.Fatal(err)
	}
	return nets["x"]
}

// This node's pods get ports with what the cluster controller writes for them, and only
// while that makes sense.
func TestZoneClusterPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nadOf("plain", "l2", 5, network.NetConf{Name: "plain_l2", Topology: "layer2", Role: "secondary", Subnets: "10.50.0.0/16"})
		env.nadOf("plain", "phys", 6, network.NetConf{Name: "cluster_udn_phys", Topology: "localnet", Role: "secondary", PhysicalNetworkName: "tenantblue", VLANID: 7})
		env.run()
		env.pod("plain", "p", requests("l2, phys"))
		env.waitUntil("default network", func() bool { return len(env.networks("plain", "p")) == 1 })
		env.waitForRow("plain_l2_ovn_layer2_switch")
		env.settle()
		if env.has("plain.l2_plain_p") || env.has("plain.phys_plain_p") {
			t.Error("the pod has ports before the cluster controller has written its addresses")
		}
		env.setNetworks("plain", "p", func(n network.PodNetworks) {
			n["plain/l2"] = entry(t, layer2Entry("10.50.0.3", "0a:58:0a:32:00:03", 11))
			n["plain/phys"] = network.PodNetwork{MAC: "02:00:00:00:00:06", Role: network.RoleSecondary}
		})
		if p := env.port("plain.l2_plain_p"); strings.Join(p.PortSecurity, ",") != "0a:58:0a:32:00:03 10.50.0.3" || p.Options["requested-tnl-key"] != "11" {
			t.Errorf("Layer 2 port: port security %q, options %v", p.PortSecurity, p.Options)
		}
		if p := env.port("plain.phys_plain_p"); strings.Join(p.PortSecurity, ",") != "02:00:00:00:00:06" || p.Options["requested-tnl-key"] != "" {
			t.Errorf("Localnet port: port security %q, options %v", p.PortSecurity, p.Options)
		}
		env.settle()
		rows, annotation := env.nb.Rows().Dump(), env.annotation("plain", "p")
		env.run()
		env.settle()
		if env.nb.Rows().Dump() != rows || env.annotation("plain", "p") != annotation {
			t.Errorf("after a restart: rows were\n%s\nare\n%s\nannotation was %s, is %s", rows, env.nb.Rows().Dump(), annotation, env.annotation("plain", "p"))
		}
		for _, wrong := range []string{
			layer2Entry("10.51.0.3", "0a:58:0a:32:00:03", 11), layer2Entry("10.50.0.3", "01:00:5e:00:00:01", 11), layer2Entry("10.50.0.3", "0a:58:0a:32:00:03", 0),
			`{"mac_address":"0a:58:0a:32:00:03","tunnel_id":11}`,
		} {
			env.setNetworks("plain", "p", func(n network.PodNetworks) { n["plain/l2"] = entry(t, wrong) })
			env.settle()
			if got := env.nb.Rows().Dump(); got != rows {
				t.Errorf("with %s, rows were\n%s\nare\n%s", wrong, rows, got)
			}
		}
		env.setNetworks("plain", "p", func(n network.PodNetworks) {
			n["plain/l2"] = entry(t, layer2Entry("10.50.0.9", "0a:58:0a:32:00:09", 11))
		})
		env.waitUntil("changed port", func() bool { return env.port("plain.l2_plain_p").PortSecurity[0] == "0a:58:0a:32:00:09 10.50.0.9" })
		env.deletePod("plain", "p")
		env.waitUntil("ports gone", func() bool {
			return !env.has("plain.l2_plain_p") && !env.has("plain.phys_plain_p") && !env.has("plain_p")
		})
	})
}

// A pod of a namespace with a Layer 2 primary network is locked on the cluster default
// network at once, and gets its port on its own network from the cluster controller. Entries
// of other namespaces' networks are ignored.
func TestZoneLayer2Primary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.namespace("blue", true)
		env.nadOf("red", "net", 1, network.NetConf{Name: redNet, Topology: "layer2", Role: "primary", Subnets: "10.50.0.0/16"})
		env.nadOf("blue", "net", 2, network.NetConf{Name: "blue_net", Topology: "layer2", Role: "primary", Subnets: "10.50.0.0/16"})
		env.run()
		env.pod("red", "a", nil)
		if !env.waitForRow("red_a").locked() {
			t.Error("the port on the cluster default network is not locked")
		}
		env.waitUntil("default network", func() bool { return len(env.networks("red", "a")) == 1 })
		env.setNetworks("red", "a", func(n network.PodNetworks) {
			n["red/net"] = entry(t, layer2Entry("10.50.0.3", "0a:58:0a:32:00:03", 11))
			n["blue/net"] = entry(t, layer2Entry("10.50.0.4", "0a:58:0a:32:00:04", 12))
		})
		if p := env.port("red.net_red_a"); strings.Join(p.PortSecurity, ",") != "0a:58:0a:32:00:03 10.50.0.3" {
			t.Errorf("port security %q", p.PortSecurity)
		}
		env.settle()
		if env.has("blue.net_red_a") {
			t.Error("the pod has a port on another namespace's network")
		}
		if role := env.networks("red", "a")[network.DefaultName].Role; role != network.RoleInfrastructureLocked {
			t.Errorf("role on the cluster default network: %s", role)
		}
		for _, id := range []string{"GR_red_net_node1", "red_net_transit_router", "k8s-red_net_node1"} {
			if !env.has(id) {
				t.Errorf("no row %s", id)
			}
		}
	})
}

// Other nodes' pods on a Layer 2 network have remote ports, which follow the pods,
// their nodes and the network.
func TestZoneRemotePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const port = "plain.l2_plain_far"
		env := newZoneEnv(t)
		env.node(1, true)
		env.node(2, true)
		env.run()
		env.remotePod("node2", "plain", "far", `{"default":{},"plain/l2":`+layer2Entry("10.50.0.4", "0a:58:0a:32:00:04", 12)+`}`)
		env.remotePod("node2", "plain", "none", `{}`)
		// A node may write any network into the annotation of its pods.
		env.remotePod("node2", "foreign", "claimant", `{"default":{},"plain/l2":`+layer2Entry("10.50.0.7", "0a:58:0a:32:00:07", 15)+`}`)
		env.remotePod("node2", "plain", "other", `{"plain/phys":{"mac_address":"02:00:00:00:00:06"},"plain/l2":`+layer2Entry("10.99.0.4", "0a:58:0a:32:00:05", 13)+`}`)
		env.settle()
		env.nadOf("plain", "l2", 5, network.NetConf{Name: "plain_l2", Topology: "layer2", Role: "secondary", Subnets: "10.50.0.0/16"})
		env.nadOf("plain", "phys", 6, network.NetConf{Name: "cluster_udn_phys", Topology: "localnet", Role: "secondary", PhysicalNetworkName: "tenantblue"})
		p := env.port(port)
		if p.Type != "remote" || strings.Join(p.Addresses, ",") != "0a:58:0a:32:00:04 10.50.0.4" || p.Options["requested-tnl-key"] != "12" || p.Options["requested-chassis"] != "chassis-2" {
			t.Errorf("type %s, addresses %q, options %v", p.Type, p.Addresses, p.Options)
		}
		env.settle()
		for _, none := range []string{"plain.l2_plain_none", "plain.l2_plain_other", "plain.phys_plain_other", "plain.l2_foreign_thief"} {
			if env.has(none) {
				t.Errorf("port %s exists", none)
			}
		}
		rows := env.nb.Rows().Dump()
		env.run()
		env.settle()
		if got := env.nb.Rows().Dump(); got != rows {
			t.Errorf("after a restart, rows were\n%s\nare\n%s", rows, got)
		}
		// An unusable or deleted NAD does not cut off running pods.
		env.pod("plain", "near", requests("l2"))
		env.waitUntil("default network", func() bool { return len(env.networks("plain", "near")) == 1 })
		env.setNetworks("plain", "near", func(n network.PodNetworks) {
			n["plain/l2"] = entry(t, layer2Entry("10.50.0.3", "0a:58:0a:32:00:03", 11))
		})
		env.waitForRow("plain.l2_plain_near")
		env.setRunning("plain", "near")
		env.editNAD("plain", "l2", func(n *nadv1.NetworkAttachmentDefinition) { n.Spec.Config = "{" })
		env.settle()
		for _, deleted := range []bool{false, true} {
			if deleted {
				env.must(env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("plain").Delete(context.Background(), "l2", metav1.DeleteOptions{}))
			}
			env.settle()
			if !env.has(port) || !env.has("plain.l2_plain_near") {
				t.Errorf("NAD deleted %t: port of the other node's pod %t, of this node's %t", deleted, env.has(port), env.has("plain.l2_plain_near"))
			}
		}
		env.deletePod("plain", "near")
		env.waitUntil("network gone", func() bool { return !env.has(port) && !env.has("plain_l2_ovn_layer2_switch") })
		env.nadOf("plain", "l2", 5, network.NetConf{Name: "plain_l2", Topology: "layer2", Role: "secondary", Subnets: "10.50.0.0/16"})
		env.waitForRow(port)
		env.settle()
		// A node whose annotations are gone while the zone starts keeps its ports.
		env.stop()
		env.annotateNode("node2", map[string]string{network.AnnotationChassisID: "", network.AnnotationEncapIPs: ""})
		env.run()
		env.settle()
		if got := env.nb.Rows().Dump(); got != rows {
			t.Errorf("without node2's annotations, rows were\n%s\nare\n%s", rows, got)
		}
		n2 := testNode(2, "node2", network.SharedGateway)
		n2.Chassis = "chassis-2b"
		a, err := n2.AgentAnnotations()
		env.must(err)
		env.annotateNode("node2", a)
		env.waitUntil("port on the new chassis", func() bool { return env.port(port).Options["requested-chassis"] == "chassis-2b" })
		ctx, pods := context.Background(), env.kube.CoreV1().Pods("plain")
		far, err := pods.Get(ctx, "far", metav1.GetOptions{})
		env.must(err)
		far.Status.Phase = corev1.PodSucceeded
		_, err = pods.UpdateStatus(ctx, far, metav1.UpdateOptions{})
		env.must(err)
		env.waitUntil("port of the completed pod gone", func() bool { return !env.has(port) })
		env.deletePod("plain", "far")
		env.remotePod("node2", "plain", "far", `{"plain/l2":`+layer2Entry("10.50.0.4", "0a:58:0a:32:00:04", 14)+`}`)
		env.waitUntil("port of the new pod", func() bool { return env.has(port) && env.port(port).Options["requested-tnl-key"] == "14" })
		env.deletePod("plain", "far")
		env.waitUntil("port gone", func() bool { return !env.has(port) })
	})
}

// While pods keep a network whose NAD was deleted, other nodes' pods there lose their ports when they end, and not only at
// the next audit: a zone that has seen the NAD, and one that has not.
func TestZoneRemotePodsOfDeletedNAD(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.node(2, true)
		env.run()
		env.nadOf("plain", "l2", 5, network.NetConf{Name: "plain_l2", Topology: "layer2", Role: "secondary", Subnets: "10.50.0.0/16"})
		for i, name := range []string{"first", "second", "third"} {
			env.remotePod("node2", "plain", name, fmt.Sprintf(`{"plain/l2":%s}`, layer2Entry(fmt.Sprintf("10.50.0.%d", i+4), fmt.Sprintf("0a:58:0a:32:00:0%d", i+4), i+12)))
			env.waitForRow("plain.l2_plain_" + name)
		}
		env.pod("plain", "near", requests("l2"))
		env.waitUntil("default network", func() bool { return len(env.networks("plain", "near")) == 1 })
		env.setNetworks("plain", "near", func(n network.PodNetworks) {
			n["plain/l2"] = entry(t, layer2Entry("10.50.0.3", "0a:58:0a:32:00:03", 11))
		})
		env.waitForRow("plain.l2_plain_near")
		env.setRunning("plain", "near")
		env.must(env.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions("plain").Delete(context.Background(), "l2", metav1.DeleteOptions{}))
		env.settle()
		expect := func(when string, first, second, third bool) {
			t.Helper()
			for name, want := range map[string]bool{"first": first, "second": second, "third": third, "near": true} {
				if got := env.has("plain.l2_plain_" + name); got != want {
					t.Errorf("%s: port of %s: %t, want %t", when, name, got, want)
				}
			}
		}
		gone := func(name string) {
			t.Helper()
			env.waitUntil("port of "+name+" gone", func() bool { return !env.has("plain.l2_plain_" + name) })
		}
		expect("without a NAD", true, true, true)
		env.deletePod("plain", "first")
		gone("first") // if an audit removed it, the end of the test fails
		expect("the first pod is deleted", false, true, true)
		env.run()
		env.settle()
		expect("after a restart", false, true, true)
		env.deletePod("plain", "second")
		gone("second")
		expect("the second pod is deleted", false, false, true)
		env.deletePod("plain", "near")
		env.waitUntil("network gone", func() bool { return !env.has("plain.l2_plain_third") && !env.has("plain_l2_ovn_layer2_switch") })
		env.zone.mu.Lock()
		defer env.zone.mu.Unlock()
		if len(env.zone.withoutNAD) > 0 {
			t.Errorf("the zone remembers NADs of a network that is gone: %v", env.zone.withoutNAD)
		}
	})
}
