// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
	"bulkhead/test/native"
)

// zoneUnderTest is a host with its node and database clients.
type zoneUnderTest struct {
	*host
	node network.Node
	nb   *NB
	sb   *SB
}

// TestNative connects two zones of real OVN with the rows that Build returns and
// pings between pods in network namespaces.
func TestNative(t *testing.T) {
	t.Parallel()
	r := debianTree(t)
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	for _, dual := range []bool{false, true} {
		t.Run(map[bool]string{false: "ipv4", true: "dual"}[dual], func(t *testing.T) {
			t.Parallel()
			testNative(t, r, dual)
		})
	}
}

// zonesStarted is how many zones this process has started.
var zonesStarted atomic.Int64

// startZones starts two zones whose underlay is connected and whose chassis know
// each other.
func startZones(t *testing.T, r native.Tree) (a, b *zoneUnderTest) {
	t.Helper()
	ctx := context.Background()
	var zones []*zoneUnderTest
	for i := 1; i <= 2; i++ {
		// Namespaces are named after the host: tests run beside others.
		name, host := fmt.Sprintf("node%d", i), fmt.Sprintf("z%d", zonesStarted.Add(1))
		zones = append(zones, &zoneUnderTest{
			host: newHost(t, r, host, namespace(t, host)), node: testNode(i, name, network.SharedGateway),
		})
	}
	a, b = zones[0], zones[1]
	joinZones(t, r, a, b, "under")
	for i, z := range zones {
		z.startCentral()
		z.startOVS(z.node, "under", z.node.EncapIPs[0].String()+"/24")
		z.nb, z.sb = z.databases()
		for {
			have, err := z.sb.ReadChassis(ctx)
			if err != nil {
				t.Fatal(err)
			}
			ops := DiffChassis(BuildChassis(z.node, []network.Node{zones[1-i].node}), have)
			if len(ops) == 0 {
				break
			}
			if err := z.sb.ApplyChassis(ctx, ops); err != nil {
				t.Fatal(err)
			}
		}
	}
	return a, b
}

// joinZones connects the zones' namespaces with a link of that name.
func joinZones(t *testing.T, r native.Tree, a, b *zoneUnderTest, link string) {
	t.Helper()
	mustRun(t, "ip", "link", "add", link, "netns", a.NS, "type", "veth", "peer", "name", link, "netns", b.NS)
	for _, z := range []*zoneUnderTest{a, b} {
		mustRun(t, append([]string{"ip", "netns", "exec", z.NS}, r.Argv("ethtool", "-K", link, "tx", "off")...)...)
		mustRun(t, "ip", "-n", z.NS, "link", "set", link, "up")
	}
}

// waitRemotePorts waits until all remote ports have a chassis.
func (z *zoneUnderTest) waitRemotePorts() {
	z.t.Helper()
	eventually(z.t, "remote ports of "+z.Name+" have a chassis", func() error {
		out, err := z.Run("ovn-sbctl", "--no-leader-only", "--bare", "--columns=logical_port", "find", "Port_Binding", "type=remote", "chassis=[]")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("ports without: %s", strings.Fields(out))
		}
		return err
	})
}

// podNamespace returns the network namespace of a pod.
func (z *zoneUnderTest) podNamespace(namespace, pod string) string {
	return fmt.Sprintf("bho%d-%s%s%s", os.Getpid(), z.Name, namespace, pod)
}

// portUp returns an error if the zone controller would not find the pod connected.
func (z *zoneUnderTest) portUp(namespace, name, uid string) error {
	up, err := (&Zone{nb: z.nb}).portUp(context.Background(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}})
	if err == nil && !up {
		err = errors.New("it is down")
	}
	return err
}

func testNative(t *testing.T, r native.Tree, dual bool) {
	a, b := startZones(t, r)
	zones := []*zoneUnderTest{a, b}
	nets := []network.Network{testDefault(dual), testTenant(1, "red_net", dual), testTenant(2, "blue_net", dual)}
	nets[1].Subnets = unequalSubnets(dual)
	for i, z := range zones {
		for _, n := range nets {
			in := Inputs{Plan: testPlan(dual), PhysicalNetwork: "physnet", Peers: []network.Node{zones[1-i].node}}
			if n.IsDefault() {
				in.Pods = append(in.Pods,
					testPod(n, z.node, "default", "plain", "p", 3, false),
					testPod(n, z.node, "default", "red", "p", 4, true),
					testPod(n, z.node, "default", "blue", "p", 5, true))
				in.Pods[len(in.Pods)-1].Open = []network.OpenPort{{Protocol: "icmp"}, {Protocol: "tcp", Port: 80}}
			} else {
				ns := strings.TrimSuffix(n.Name, "_net")
				in.Pods = append(in.Pods, testPod(n, z.node, ns+"/net", ns, "p", 3, false))
				if n.ID == 1 && i == 1 { // an address that no blue pod has
					in.Pods = append(in.Pods, testPod(n, z.node, ns+"/net", ns, "only", 4, false))
				}
			}
			converge(t, z.nb, n, z.node, in)
			if n.IsDefault() {
				if err := z.portUp("plain", "p", in.Pods[0].UID); err == nil {
					t.Error("the port is up without an interface")
				}
			}
			for _, p := range in.Pods {
				z.plugPod(n, p)
			}
			if n.IsDefault() {
				eventually(t, "the port of the pod is up", func() error { return z.portUp("plain", "p", in.Pods[0].UID) })
			}
		}
		// The management port on the cluster default network.
		hosts, err := nets[0].HostSubnets(z.node.ID)
		if err != nil {
			t.Fatal(err)
		}
		mgmt := mapPrefixes(hosts, network.Management)
		var routes []string
		for _, r := range network.NewPodNetwork(nets[0], testPlan(dual), mgmt, true).Routes {
			routes = append(routes, fmt.Sprintf("%s via %s", r.Dest, r.NextHop))
		}
		z.plug(nets[0].ManagementLSP(z.node.Name), "", namespace(t, z.Name+"m"), "mgmt", network.MACOf(mgmt), mgmt, routes...)
	}
	t.Logf("%s", a.must("ovn-nbctl", "--no-leader-only", "show"))
	for _, z := range zones {
		z.waitRemotePorts()
	}

	address := func(n network.Network, z *zoneUnderTest, i, family int) string {
		return testPod(n, z.node, "", "", "", i, false).IPs[family].Addr().String()
	}
	nsOf := func(z *zoneUnderTest, desc string) string {
		return fmt.Sprintf("bho%d-%s%s", os.Getpid(), z.Name, desc)
	}
	families := 1
	if dual {
		families = 2
	}
	for f := range families {
		cdn, red, blue := nets[0], nets[1], nets[2]
		reach := []struct{ desc, from, to string }{
			{"plain pods across zones", nsOf(a, "plainp"), address(cdn, b, 3, f)},
			{"red pods across zones", nsOf(a, "redp"), address(red, b, 3, f)},
			{"red's only pod", nsOf(a, "redp"), address(red, b, 4, f)},
			{"blue pods across zones, same addresses", nsOf(a, "bluep"), address(blue, b, 3, f)},
			{"the node to its red pod's locked port", nsOf(a, "m"), address(cdn, a, 4, f)},
			{"the node to its plain pod", nsOf(b, "m"), address(cdn, b, 3, f)},
			{"a plain pod to an open port on its node", nsOf(a, "plainp"), address(cdn, a, 5, f)},
			{"a plain pod to an open port across zones", nsOf(a, "plainp"), address(cdn, b, 5, f)},
			{"the node to an open port on another node", nsOf(a, "m"), address(cdn, b, 5, f)},
		}
		for _, c := range reach {
			eventually(t, c.desc, func() error { return r.Ping(c.from, c.to, 1) })
		}
		for _, c := range []struct{ desc, from, to string }{
			{"blue reaches red's only pod", nsOf(a, "bluep"), address(red, b, 4, f)},
			{"a plain pod reaches a locked port on its node", nsOf(a, "plainp"), address(cdn, a, 4, f)},
			{"a plain pod reaches a locked port across zones", nsOf(a, "plainp"), address(cdn, b, 4, f)},
			{"a locked port reaches a plain pod", nsOf(a, "redp"), address(cdn, a, 3, f)},
			{"a locked port reaches a locked port", nsOf(a, "bluep"), address(cdn, a, 4, f)},
			{"a locked port reaches an open port", nsOf(a, "redp"), address(cdn, a, 5, f)},
			{"a pod with an open port reaches a plain pod", nsOf(a, "bluep"), address(cdn, a, 3, f)},
			{"the node reaches a locked port on another node", nsOf(a, "m"), address(cdn, b, 4, f)},
		} {
			if r.Ping(c.from, c.to, 2) == nil {
				t.Errorf("%s (%s)", c.desc, c.to)
			}
		}
	}
	for _, z := range zones {
		for _, w := range z.warnings() {
			t.Errorf("%s: %s", z.Name, w)
		}
	}
}

// plugPod adds an interface to a pod's namespace, which it creates if needed.
func (z *zoneUnderTest) plugPod(n network.Network, p PodPort) {
	z.t.Helper()
	label := z.Name + p.Namespace + p.Pod
	if strings.Count(p.NADKey, "/") == 2 {
		label += "again" // a second interface in a namespace of its own, for its routes
	}
	ns := fmt.Sprintf("bho%d-%s", os.Getpid(), label)
	if _, err := os.Stat("/run/netns/" + ns); err != nil {
		namespace(z.t, label)
	}
	link := fmt.Sprintf("%s%d", strings.TrimPrefix(label, z.Name), n.ID)
	pn := network.NewPodNetwork(n, testPlan(len(p.IPs) == 2), p.IPs, p.Namespace != "plain")
	var routes []string
	for _, r := range pn.Routes {
		routes = append(routes, fmt.Sprintf("%s via %s", r.Dest, r.NextHop))
	}
	for _, gw := range pn.Gateways {
		routes = append(routes, fmt.Sprintf("%s via %s", defaultRoute(gw), gw))
	}
	z.plug(network.PodLSP(p.NADKey, p.Namespace, p.Pod), p.UID, ns, link, cmp.Or(p.MAC, pn.MAC), p.IPs, routes...)
}

// applyOnce builds a network's desired rows and writes the difference.
func applyOnce(nb Target, n network.Network, node network.Node, in Inputs) (want State, err error) {
	want, err = Build(n, node, in)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	have, err := nb.Read(ctx, Selection{Network: n.Name, Node: node.Name})
	if err != nil {
		return nil, err
	}
	unmarked, err := nb.Lookup(ctx, missing(want, have))
	if err != nil {
		return nil, err
	}
	return want, nb.Apply(ctx, Diff(want, append(have, unmarked...)))
}

// converge applies a network's desired rows and checks that a second run is a no-op.
func converge(t testing.TB, nb Target, n network.Network, node network.Node, in Inputs) {
	t.Helper()
	want, err := applyOnce(nb, n, node, in)
	if err != nil {
		t.Fatal(err)
	}
	have, err := nb.Read(context.Background(), Selection{Network: n.Name, Node: node.Name})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range Diff(want, have) {
		t.Errorf("second run: %s", op)
	}
	if got, want := have.Dump(), want.Dump(); got != want {
		t.Errorf("rows of %s are\n%s\nwant\n%s", n.Name, got, want)
	}
}
