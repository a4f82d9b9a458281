// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
)

// The pods of TestNativeFaults. plain/a and plain/b are on the cluster default network
// alone. red, blue and green are tenants with the same subnets. All the others' ports on the cluster
// default network are locked, and red/b opens one port. red/x and green/x come and go. "node" is the
// node's own address.

// change is a change of the API, and the change back.
type change struct {
	name     string
	do, undo func()
	done     []string         // what the rows have only after do
	flows    map[arrival]bool // allowed only after do
	broken   map[arrival]bool // what arrives, besides that, only if breakIsolation follows
	// setup and teardown surround the change: flows are allowed between them.
	setup, teardown func()
	// take gives a row of another client the name of one of do's rows, so that the zone applies the
	// operations one by one. free takes it away.
	take, free func()
	cuts       bool // the connection is cut at each message
}

const (
	openAlways = "- {protocol: udp, port: 80}\n"
	openMore   = openAlways + "- {protocol: udp, port: 90}\n"
	webAddress = "10.96.7.7"
)

// build creates what exists all the time, and starts the zone and the senders.
func (w *faultWorld) build() {
	w.t.Helper()
	ctx := context.Background()
	for _, name := range []string{"plain", "red", "blue", "green"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if name != "plain" {
			ns.Labels = map[string]string{network.LabelPrimaryUDN: ""}
		}
		_, err := w.kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		w.ok(err)
	}
	w.createNode(1)
	w.createNode(2)
	w.createNAD("red", 1, "1")
	w.createNAD("blue", 2, "1")
	w.must("ovn-nbctl", "--no-leader-only", "sync") // northd runs
	w.addForeignRows()
	w.start()
	w.running()
	for _, pod := range []string{"plain/a", "plain/b", "red/a", "red/b", "blue/a"} {
		ns, name, _ := strings.Cut(pod, "/")
		var annotations map[string]string
		if pod == "red/b" {
			annotations = map[string]string{network.AnnotationOpenDefaultPorts: openAlways}
		}
		w.createPod(ns, name, annotations)
		w.plugPod(ns, name) // before the next one gets addresses
	}
	for _, tenant := range []string{"red", "green"} {
		w.settled("before " + tenant + "/x") // both get the lowest free addresses
		if tenant == "green" {
			w.createNAD(tenant, 3, "1")
		}
		w.createPod(tenant, "x", nil)
		w.plugPod(tenant, "x")
		w.deletePod(tenant, "x")
		if tenant == "green" {
			w.deleteNAD(tenant)
		}
		eventually(w.t, "rows of "+tenant+"/x are deleted", func() error {
			rows, err := w.rows()
			if err == nil && (strings.Contains(rows, tenant+"_x") || strings.Contains(rows, "green_net")) {
				err = fmt.Errorf("some remain")
			}
			return err
		})
	}
	cdn := network.Network{Name: network.DefaultName, ID: network.DefaultID}
	ns := namespace(w.t, "fnode")
	var mgmt []netip.Prefix
	for _, ip := range w.pods["plain/a"].nets[network.DefaultName].IPs {
		mgmt = append(mgmt, network.Management(ip.Masked()))
	}
	w.plug(cdn.ManagementLSP("node1"), "", ns, "mgmt", network.MACOf(mgmt), mgmt)
	w.pods["node"] = &faultPod{ns: ns}
	w.sendAll()
	w.probes.arrive("before the faults what is allowed arrives", w.always)
}

// sendAll starts the senders and says what is allowed.
func (w *faultWorld) sendAll() {
	const cdn, red, green = network.DefaultName, "red/net", "green/net"
	w.always, w.broken, w.withX, w.withGreen, w.withPort, w.withWeb = map[arrival]bool{}, map[arrival]bool{}, map[arrival]bool{}, map[arrival]bool{}, map[arrival]bool{}, map[arrival]bool{}
	w.brokenX, w.brokenGreen, w.brokenWeb = map[arrival]bool{}, map[arrival]bool{}, map[arrival]bool{}
	type receiver struct {
		pod string
		set map[arrival]bool
	}
	for _, s := range []struct {
		from, to, nad string
		port          uint16
		receivers     []receiver // nil: no receiver, whichever mechanism is removed
	}{
		{"plain/a", "red/b", cdn, 80, []receiver{{"red/b", w.always}}},
		{"plain/a", "red/b", cdn, 90, []receiver{{"red/b", w.withPort}, {"red/b", w.broken}}},
		{"plain/a", "red/b", cdn, 81, []receiver{{"red/b", w.broken}}},
		{"node", "red/b", cdn, 81, []receiver{{"red/b", w.always}}},
		{"plain/b", "plain/a", cdn, 80, []receiver{{"plain/a", w.always}}},
		{"red/b", "plain/a", cdn, 80, []receiver{{"plain/a", w.broken}}},
		{"blue/a", "red/b", cdn, 80, []receiver{{"red/b", w.broken}}},
		{"red/a", "red/b", red, 80, []receiver{{"red/b", w.always}}},
		{"blue/a", "red/b", red, 80, []receiver{{"red/b", w.broken}}},
		// red/x and green/x have one address on the cluster default network.
		{"plain/a", "red/x", cdn, 81, []receiver{{"red/x", w.brokenX}, {"green/x", w.brokenGreen}}},
		{"node", "red/x", cdn, 81, []receiver{{"red/x", w.withX}, {"green/x", w.withGreen}}},
		{"red/a", "red/x", red, 80, []receiver{{"red/x", w.withX}}},
		{"blue/a", "red/x", red, 80, []receiver{{"red/x", w.brokenX}}},
		{"green/x", "red/b", red, 80, []receiver{{"red/b", w.brokenGreen}}},
	} {
		to := w.addrs(s.to, s.nad)
		mac := w.pods[s.to].nets[s.nad].MAC
		for f, ip := range to {
			// The receiver's MAC address is known, as to an attacker.
			w.neighbour(s.from, s.nad, ip, mac)
			flow := fmt.Sprintf("%s to %s on %s, IPv%d port %d", s.from, s.to, s.nad, 4+2*f, s.port)
			w.probes.send(flow, w.pods[s.from].ns, netip.AddrPortFrom(ip, s.port), false)
			for _, r := range s.receivers {
				r.set[arrival{flow, r.pod}] = true
			}
		}
	}
	for from, set := range map[string]map[arrival]bool{"red/a": w.withWeb, "blue/a": w.brokenWeb} {
		flow := from + " to service red/web"
		w.probes.send(flow, w.pods[from].ns, netip.AddrPortFrom(netip.MustParseAddr(webAddress), 80), true)
		set[arrival{flow, "red/b"}] = true
	}
}

// neighbour tells a pod the MAC address of an address on the interface that it would send by.
func (w *faultWorld) neighbour(from, nad string, ip netip.Addr, mac string) {
	p, link := w.pods[from], "mgmt"
	if p.nets != nil {
		link = p.link(nad)
	}
	mustRun(w.t, "ip", "-n", p.ns, "neigh", "replace", ip.String(), "lladdr", mac, "dev", link, "nud", "permanent")
}

// changes are the changes that faults interrupt.
func (w *faultWorld) changes() []change {
	green := func(id int, owner string) func() {
		return func() { w.createNAD("green", id, owner); w.createPod("green", "x", nil) }
	}
	noGreen := func() { w.deletePod("green", "x"); w.deleteNAD("green") }
	open := func(ports string) func() {
		return func() {
			patch := must(json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{network.AnnotationOpenDefaultPorts: ports}}}))(w.t)
			_, err := w.kube.CoreV1().Pods("red").Patch(context.Background(), "b", types.MergePatchType, patch, metav1.PatchOptions{})
			w.ok(err)
		}
	}
	const routerPort = "rtos-green_net_node1"
	return []change{
		{name: "pod", cuts: true, done: []string{`"red.net_red_x"`}, flows: w.withX, broken: w.brokenX, do: func() { w.createPod("red", "x", nil) }, undo: func() { w.deletePod("red", "x") }},
		{name: "network", cuts: true, done: []string{`"green.net_green_x"`}, flows: w.withGreen, broken: w.brokenGreen, do: green(3, "1"), undo: noGreen},
		{name: "network, one operation after another", done: []string{`"green.net_green_x"`}, flows: w.withGreen, do: green(3, "1"), undo: noGreen,
			take: func() {
				w.must("ovn-nbctl", "--no-leader-only", "lr-add", "taken", "--", "lrp-add", "taken", routerPort, "0a:00:00:00:00:01", "192.0.2.9/24")
			}, free: func() { w.must("ovn-nbctl", "--no-leader-only", "lr-del", "taken") }},
		{name: "network of the same name", done: []string{`"k8s.ovn.org/network-id","4"`}, flows: w.withGreen, setup: green(3, "1"), teardown: noGreen,
			do: func() { noGreen(); green(4, "2")() }, undo: func() { noGreen(); green(3, "1")() }},
		{name: "open port", done: []string{"{80, 90}"}, flows: w.withPort, do: open(openMore), undo: open(openAlways)},
		{name: "service", done: []string{"Service_red/web_UDP_switch"}, flows: w.withWeb, broken: w.brokenWeb, do: w.createWeb, undo: w.deleteWeb},
		// The chassis comes first, then each network in a transaction of its own.
		{name: "node", done: []string{`"red_net_tstor-node3"`, `"blue_net_tstor-node3"`, `"tstor-node3"`}, do: func() { w.createNode(3) }, undo: func() {
			w.ok(w.kube.CoreV1().Nodes().Delete(context.Background(), "node3", metav1.DeleteOptions{}))
		}},
	}
}

// ok fails the test on an error.
func (w *faultWorld) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *faultWorld) createNode(id int) {
	w.t.Helper()
	n := testNode(id, fmt.Sprintf("node%d", id), network.SharedGateway)
	annotations, err := n.AgentAnnotations()
	w.ok(err)
	annotations[network.AnnotationNodeID] = fmt.Sprint(id)
	_, err = w.kube.CoreV1().Nodes().Create(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Annotations: annotations}}, metav1.CreateOptions{})
	w.ok(err)
}

// createNAD creates the NAD of a namespace's primary network, with the subnets of all tenants,
// of a UserDefinedNetwork with that UID.
func (w *faultWorld) createNAD(ns string, id int, uid string) {
	w.t.Helper()
	conf := must(json.Marshal(network.NetConf{CNIVersion: network.CNIVersion, Name: ns + "_net", Type: network.CNIType, NetAttachDefName: ns + "/net",
		Topology: "layer3", Role: "primary", Subnets: "10.10.0.0/16/24,fd10::/48/64"}))(w.t)
	owners := ownedBy(ns + "_net")
	owners[0].UID += types.UID(uid)
	_, err := w.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(ns).Create(context.Background(), &nadv1.NetworkAttachmentDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "net", Namespace: ns, Annotations: map[string]string{network.AnnotationNetworkID: fmt.Sprint(id)}, OwnerReferences: owners},
		Spec:       nadv1.NetworkAttachmentDefinitionSpec{Config: string(conf)},
	}, metav1.CreateOptions{})
	w.ok(err)
}

func (w *faultWorld) deleteNAD(ns string) {
	w.t.Helper()
	w.ok(w.nads.K8sCniCncfIoV1().NetworkAttachmentDefinitions(ns).Delete(context.Background(), "net", metav1.DeleteOptions{}))
}

// createWeb creates the service red/web with red/b behind it, and the slice that the
// endpoint mirror would write.
func (w *faultWorld) createWeb() {
	w.t.Helper()
	ctx := context.Background()
	_, err := w.kube.CoreV1().Services("red").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: webAddress, Ports: []corev1.ServicePort{{Name: "web", Protocol: corev1.ProtocolUDP, Port: 80}}},
	}, metav1.CreateOptions{})
	w.ok(err)
	_, err = w.kube.DiscoveryV1().EndpointSlices("red").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "web-red", Annotations: map[string]string{network.AnnotationMirrorOn: "red_net"},
			Labels: map[string]string{network.LabelMirrorService: "web", discoveryv1.LabelManagedBy: network.EndpointSliceManager}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("web"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolUDP)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{w.addrs("red/b", "red/net")[0].String()}, NodeName: ptr("node1")}},
	}, metav1.CreateOptions{})
	w.ok(err)
}

func (w *faultWorld) deleteWeb() {
	w.t.Helper()
	ctx := context.Background()
	w.ok(w.kube.CoreV1().Services("red").Delete(ctx, "web", metav1.DeleteOptions{}))
	w.ok(w.kube.DiscoveryV1().EndpointSlices("red").Delete(ctx, "web-red", metav1.DeleteOptions{}))
}

// addForeignRows adds another client's rows, with UUIDs of their own.
func (w *faultWorld) addForeignRows() {
	w.t.Helper()
	id := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }
	one := func(n int) []any { return []any{"set", []any{[]any{"uuid", id(n)}}} }
	insert := func(n int, table string, row map[string]any) map[string]any {
		return map[string]any{"op": "insert", "table": table, "uuid": id(n), "row": row}
	}
	rows := []any{"OVN_Northbound",
		insert(1, "Logical_Switch", map[string]any{"name": "theirs", "ports": one(2), "acls": one(3), "load_balancer": one(4)}),
		insert(2, "Logical_Switch_Port", map[string]any{"name": "their-port", "addresses": "unknown"}),
		insert(3, "ACL", map[string]any{"direction": "to-lport", "priority": 7, "match": "ip4", "action": "drop"}),
		insert(4, "Load_Balancer", map[string]any{"name": "theirs", "vips": []any{"map", []any{[]any{"192.0.2.1:80", "192.0.2.2:80"}}}}),
		insert(5, "Logical_Switch", map[string]any{"name": "red_net_node1"}), // switches may share a name
		insert(6, "Logical_Router", map[string]any{"name": "red_net_ovn_cluster_router", "static_routes": one(7)}),
		insert(7, "Logical_Router_Static_Route", map[string]any{"ip_prefix": "10.10.0.0/16", "nexthop": "discard"}),
		insert(8, "Address_Set", map[string]any{"name": "theirs", "addresses": "192.0.2.4"}),
		insert(9, "Port_Group", map[string]any{"name": "theirs", "ports": one(2)}),
	}
	out := w.must("ovsdb-client", "transact", w.Sock("nb"), string(must(json.Marshal(rows))(w.t)))
	if strings.Contains(out, "error") {
		w.t.Fatalf("add another client's rows: %s", out)
	}
}
