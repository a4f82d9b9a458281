// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
	"bulkhead/test/lab"
)

// attackSetup is the adversary's fixture: the tenant green, which is attacked, the tenant
// amber, which attacks, and pods of the default network (grey).
type attackSetup struct {
	w           *World
	near, far   *lab.Node // the attackers' node, and another
	green       adversary.Network
	greenID     int
	plain       adversary.Network   // the cluster default network
	amber       adversary.Interface // amber's management port
	pods        map[string]*pod
	interfaces  map[string]map[string]adversary.Interface // pod → interface in the pod → its host end
	annotations map[string]network.PodNetworks
	nodes       map[string]nodeLinks
	nodeIDs     map[string]int
	encap       map[string][]netip.Addr // the nodes' tunnel addresses
	front       []netip.Addr            // cluster IPs of green's service front
	routers     []netip.Addr            // the near node's next hops
	routerMAC   string                  // of one of them
}

// nodeLinks describes a node's interfaces, by name.
type nodeLinks struct {
	mac    map[string]string
	master map[string]string
	addrs  map[string][]netip.Addr
}

const (
	serverPort   = 7001 // green's host-network server on all addresses
	loopbackPort = 7002 // its server on loopback
	grpcPort     = 7003
	earlyPort    = 7004 // the server of amber's host-network pod that the agent does not know
)

// greyManifest is a namespace with a Localnet network on the nodes' own network, with addresses
// that no other network of the story has.
func (w *World) greyManifest() string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: grey}
---
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: berth}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: grey}}
  network:
    topology: Localnet
    localnet: {role: Secondary, physicalNetworkName: harbor, subnets: %s, excludeSubnets: %s}
`, w.cidrs("172.30.0.0/24", "fd00:172:30::/64"), w.cidrs("172.30.0.0/25", "172.30.0.128/26", "fd00:172:30::/111"))
}

// frontService leads to green-1 alone.
var frontService = fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: front, namespace: green}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {pod: green-1}
  ports: [{name: tcp, port: %[1]d}, {name: udp, port: %[1]d, protocol: UDP}]
`, attack.Port)

// ordinaryServer is an ordinary server with every kind of probe.
var ordinaryServer = fmt.Sprintf(`
  - name: server
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}]
    command: [/tools/netprobe, serve, --name, green-host, --listen, ":%[1]d", --grpc, ":%[2]d"]
    startupProbe: {grpc: {port: %[2]d}, periodSeconds: 1, failureThreshold: 120, timeoutSeconds: 20}
    readinessProbe: {httpGet: {path: /, port: %[1]d}, periodSeconds: 2, timeoutSeconds: 5}
    livenessProbe: {tcpSocket: {port: %[1]d, host: 127.0.0.1}, periodSeconds: 5, timeoutSeconds: 5, failureThreshold: 60}
`, serverPort, grpcPort)

// setUpAdversary creates the tenants and their pods.
func setUpAdversary(ctx context.Context, w *World) (err error) {
	w.adversary, err = newAttackSetup(ctx, w)
	return err
}

// undoAdversary resets the sysctl and the mapping that newAttackSetup sets.
func undoAdversary(ctx context.Context, w *World) error {
	w.adversary = nil
	return errors.Join(w.mapPhysical(ctx, harbor, false), allowPings(ctx, w.Lab.Nodes()[0], "1 0"))
}

func newAttackSetup(ctx context.Context, w *World) (*attackSetup, error) {
	nodes := w.Lab.Nodes()
	a := &attackSetup{w: w, near: nodes[0], far: nodes[len(nodes)-1], pods: map[string]*pod{}, interfaces: map[string]map[string]adversary.Interface{},
		annotations: map[string]network.PodNetworks{}, nodes: map[string]nodeLinks{}, nodeIDs: map[string]int{}, encap: map[string][]netip.Addr{}}
	// The address plans do not overlap, so that a packet that arrives cannot have been
	// sent to another pod with the same address.
	if err := w.Lab.Apply(ctx, strings.Join([]string{w.greyManifest(), hulkManifest, moleManifest, ingressNamespace, w.tenantManifest("green", 30), w.tenantManifest("amber", 31), frontService}, "---")); err != nil {
		return a, err
	}
	if err := w.mapPhysical(ctx, harbor, true); err != nil {
		return a, err
	}
	near, far := a.near.Name, a.far.Name
	pods := []*pod{
		{Namespace: "green", Name: "green-1", Node: near, Tenant: "green"}, {Namespace: "green", Name: "green-2", Node: far, Tenant: "green"},
		{Namespace: "green", Name: "green-3", Node: near, Tenant: "green"}, {Namespace: "amber", Name: "amber-1", Node: near, Tenant: "amber"},
		{Namespace: "grey", Name: "grey-1", Node: near}, {Namespace: "grey", Name: "grey-2", Node: near, Networks: "berth@berth0"},
		{Namespace: "grey", Name: tagged, Node: near, Networks: "mole@mole0"},
	}
	hulk, err := a.hulkPods(ctx)
	if err != nil {
		return a, err
	}
	pods = append(pods, hulk...)
	var manifests []string
	for _, p := range pods {
		manifests = append(manifests, p.spec())
	}
	for _, h := range []struct{ ns, name, tenant, server string }{{"green", "green-host", "green", ordinaryServer}, {"amber", "amber-host", "amber", ""}, {"grey", "grey-host", "", ""}, {lab.IngressNamespace, "edge-host", lab.IngressNamespace, ""}} {
		p, manifest := hostNetworkPod(h.ns, h.name, near, h.tenant, h.server)
		pods, manifests = append(pods, p), append(manifests, manifest)
	}
	if err := w.Lab.Apply(ctx, strings.Join(manifests, "---\n")); err != nil {
		return a, err
	}
	for _, p := range pods {
		a.pods[p.Name] = p
		if err := w.ready(ctx, p); err != nil {
			return a, err
		}
	}
	if err := allowPings(ctx, a.near, "0 2147483647"); err != nil {
		return a, err
	}
	return a, a.learn(ctx)
}

// allowPings sets the groups that may open ping sockets on the node.
func allowPings(ctx context.Context, node *lab.Node, groups string) error {
	res, err := node.Run(ctx, "echo '"+groups+"' > /proc/sys/net/ipv4/ping_group_range")
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("set ping_group_range on %s: %s", node.Name, res.Stderr)
	}
	return err
}

// learn reads all names, addresses and ids, which attackers are assumed to know.
func (a *attackSetup) learn(ctx context.Context) error {
	for _, n := range []*lab.Node{a.near, a.far} {
		links, err := readLinks(ctx, n)
		if err != nil {
			return err
		}
		a.nodes[n.Name] = links
		obj, err := a.w.Lab.Client().CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		known, err := network.ParseNode(n.Name, obj.Annotations)
		if err != nil {
			return err
		}
		a.nodeIDs[n.Name], a.encap[n.Name] = known.ID, known.EncapIPs
		if err := a.readPorts(ctx, n); err != nil {
			return err
		}
	}
	for name, p := range a.pods {
		obj, err := a.w.Lab.Client().CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if a.annotations[name], err = network.ParsePodNetworks(obj.Annotations[network.AnnotationPodNetworks]); err != nil {
			return fmt.Errorf("pod %s: %w", name, err)
		}
	}
	amberID := 0
	for ns, id := range map[string]*int{"green": &a.greenID, "amber": &amberID} {
		nad, err := a.w.dynamic.Resource(nads).Namespace(ns).Get(ctx, "net", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, err := fmt.Sscan(nad.GetAnnotations()[network.AnnotationNetworkID], id); err != nil {
			return fmt.Errorf("network id of %s: %w", ns, err)
		}
	}
	near := a.nodes[a.near.Name]
	a.amber.Name = network.Network{ID: amberID}.ManagementPort()
	a.amber.MAC = near.mac[a.amber.Name]
	dev := network.Network{ID: a.greenID}.ManagementPort()
	a.green = adversary.Network{Mark: network.PacketMark(a.greenID), Port: adversary.Interface{Name: dev, MAC: near.mac[dev]}, VRF: near.master[dev], Nodes: near.addrs[dev]}
	dev = network.Network{}.ManagementPort()
	a.plain = adversary.Network{Port: adversary.Interface{Name: dev, MAC: near.mac[dev]}, VRF: dev, Nodes: near.addrs[dev]}
	if a.green.Port.MAC == "" || a.green.VRF == "" || a.plain.Port.MAC == "" || len(a.green.Nodes) == 0 {
		return fmt.Errorf("interfaces of %s: green %+v, default %+v", a.near.Name, a.green, a.plain)
	}
	targets, err := a.w.clusterIPs(ctx, "green", "front", attack.Port)
	if err != nil {
		return err
	}
	for _, t := range targets {
		if at, isTCP := strings.CutPrefix(t, "tcp:"); isTCP {
			a.front = append(a.front, netip.MustParseAddrPort(at).Addr())
		}
	}
	return nil
}

func readLinks(ctx context.Context, n *lab.Node) (nodeLinks, error) {
	out := nodeLinks{mac: map[string]string{}, master: map[string]string{}, addrs: map[string][]netip.Addr{}}
	var list []struct {
		IfName, Address, Master string
		AddrInfo                []struct{ Local, Scope string } `json:"addr_info"`
	}
	if err := nodeJSON(ctx, n, "ip -j addr show", &list); err != nil {
		return out, err
	}
	for _, l := range list {
		out.mac[l.IfName], out.master[l.IfName] = l.Address, l.Master
		for _, a := range l.AddrInfo {
			if ip, err := netip.ParseAddr(a.Local); err == nil && a.Scope == "global" {
				out.addrs[l.IfName] = append(out.addrs[l.IfName], ip)
			}
		}
	}
	return out, nil
}

// readPorts reads the host ends of pods' interfaces.
func (a *attackSetup) readPorts(ctx context.Context, n *lab.Node) error {
	var table struct{ Data [][]any }
	if err := nodeJSON(ctx, n, "ovs-vsctl --format=json --columns=name,external_ids list Interface", &table); err != nil {
		return err
	}
	for _, row := range table.Data {
		name, _ := row[0].(string)
		ids := map[string]string{}
		if m, ok := row[1].([]any); ok && len(m) == 2 {
			pairs, _ := m[1].([]any)
			for _, p := range pairs {
				if kv, ok := p.([]any); ok && len(kv) == 2 {
					ids[fmt.Sprint(kv[0])] = fmt.Sprint(kv[1])
				}
			}
		}
		if _, pod, ok := strings.Cut(ids["k8s.ovn.org/pod"], "/"); ok {
			if a.interfaces[pod] == nil {
				a.interfaces[pod] = map[string]adversary.Interface{}
			}
			a.interfaces[pod][ids["k8s.ovn.org/ifname"]] = adversary.Interface{Name: name, MAC: a.nodes[n.Name].mac[name]}
		}
	}
	return nil
}

// victim describes a pod by its interface on its primary network or, if locked, on
// the cluster default network.
func (a *attackSetup) victim(name string, locked bool) adversary.Victim {
	v := adversary.Victim{Name: name}
	ifname := "ovn-udn1"
	for key, n := range a.annotations[name] {
		if (key == network.DefaultName) != (locked || a.pods[name].Tenant == "") {
			continue
		}
		v.MAC = n.MAC
		for _, ip := range n.IPs {
			v.Addrs = append(v.Addrs, ip.Addr())
		}
	}
	if locked || a.pods[name].Tenant == "" {
		ifname = "eth0"
	}
	slices.SortFunc(v.Addrs, netip.Addr.Compare)
	v.NextMAC = v.MAC
	if a.pods[name].Node == a.near.Name {
		v.Link = a.interfaces[name][ifname]
	} else { // through the network's router on the attackers' node
		v.NextMAC = network.MACOf(gatewaysOf(a.green.Nodes))
	}
	return v
}

// gatewaysOf are the router's addresses in the subnets of the node's addresses.
func gatewaysOf(nodes []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, n := range nodes {
		bits := 24
		if n.Is6() {
			bits = 64
		}
		out = append(out, network.Gateway(netip.PrefixFrom(n, bits).Masked()))
	}
	return out
}
