// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/bgp"
	"bulkhead/pkg/bgpstatus"
	"bulkhead/pkg/network"
	"bulkhead/test/lab"
)

func bgpChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "BGP: pods of a network without an overlay reach each other over the nodes' link; other networks' do not", Phase: phaseDeletion, Needs: needs(fixturePlain, fixtureTenants, fixtureBGP, fixtureBrief), Run: noOverlayReached, Timeout: 20 * time.Minute, Group: groupBGP},
		{Chapter: 3, Title: "BGP: networks with the same subnets, each advertised in a VRF of its own, reach their own pods and the router of their own", Phase: phaseDeletion, Needs: needs(fixturePlain, fixtureTenants, fixtureLite), Run: liteReached, Timeout: 15 * time.Minute, Group: groupVRFLite},
		{Chapter: 3, Title: "BGP: a network's pods reach each other by the routes of a router outside the cluster, also after its restart", Phase: phaseDeletion, Needs: needs(fixturePlain, fixtureTenants, fixtureMist), Run: routerReached, Timeout: 25 * time.Minute, Group: groupReflector},
	}
}

// noOverlayNetwork is the manifest of a network without an overlay, with labels of the
// ClusterUserDefinedNetwork and the n-th subnets, and of its namespace. It ends with a separator.
func (w *World) noOverlayNetwork(name, labels string, n int, outboundSNAT, routing string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s, labels: {k8s.ovn.org/primary-user-defined-network: "", tenant: %[1]s}}
---
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: %[1]s, labels: {%[2]s}}
spec:
  namespaceSelector: {matchLabels: {tenant: %[1]s}}
  network:
    topology: Layer3
    layer3: {role: Primary, subnets: %[3]s}
    transport: NoOverlay
    noOverlayOptions: {outboundSNAT: %[4]s, routing: %[5]s}
---`, name, labels, w.subnets(n), outboundSNAT, routing)
}

// setUpBGP creates sky, a network without an overlay, with a pod on each node and a service.
func setUpBGP(ctx context.Context, w *World) error {
	if err := w.Lab.Apply(ctx, w.noOverlayNetwork("sky", "", 90, "Enabled", "Managed")+`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: sky}
spec: {selector: {app: story}, ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}], ipFamilyPolicy: PreferDualStack}
`); err != nil {
		return err
	}
	if err := w.conditions(ctx, cudns, "", "sky", "True"); err != nil {
		return err
	}
	var pods []*pod
	for _, n := range w.Lab.Nodes() {
		pods = append(pods, &pod{Namespace: "sky", Name: "sky-" + n.Name, Node: n.Name, Tenant: "sky"})
	}
	return w.create(ctx, pods...)
}

// setUpFRR installs frr-k8s, and FRR on each node.
func setUpFRR(ctx context.Context, w *World) error {
	if w.Lab.HasBGP() {
		return nil
	}
	return w.Lab.InstallFRR(ctx)
}

// undoFRR removes both, unless they are the lab's.
func undoFRR(ctx context.Context, w *World) error {
	if err := w.deletePods(ctx, "sky"); err != nil || w.Lab.HasBGP() {
		return err
	}
	installed, err := w.Lab.RemoveFRR(ctx)
	if err != nil || !installed {
		return err
	}
	return w.deleteNamespaces(ctx, lab.FRRNamespace)
}

// noOverlayReached has sky's pods ask each other and their service, with no tunnel on the way,
// and the world outside, which sees the node. Pods of other networks and the nodes reach none.
func noOverlayReached(ctx context.Context, w *World) (string, error) {
	pods := w.tenant("sky")
	figures, err := w.mesh(ctx, pods)
	if err != nil {
		return "", err
	}
	service, err := w.Lab.Client().CoreV1().Services("sky").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	var servers, at []string
	for _, p := range pods {
		servers = append(servers, p.Namespace+"/"+p.Name)
	}
	for _, ip := range service.Spec.ClusterIPs {
		to := netip.AddrPortFrom(netip.MustParseAddr(ip), 80).String()
		at = append(at, "tcp:"+to, "udp:"+to)
	}
	var sky []netip.Addr
	for _, p := range pods {
		sky = append(sky, p.Primary...)
		if _, err := answered(w.fromPod(ctx, p), at, servers, len(servers)); err != nil {
			return "", fmt.Errorf("%s and the service: %w", p.Name, err)
		}
	}
	if err := w.defaultServices(ctx, pods, true); err != nil {
		return "", err
	}
	if err := w.noTunnel(ctx, pods); err != nil {
		return "", err
	}
	if err := w.hostWithoutOverlay(ctx, pods); err != nil {
		return "", fmt.Errorf("a process of sky in the host's network: %w", err)
	}
	if err := w.seesNode(ctx, pods[0]); err != nil {
		return "", err
	}
	if err := w.noDifferences(ctx, "sky", network.VRFDefault); err != nil {
		return "", err
	}
	denied, err := w.deniedTo(ctx, sky)
	if err != nil {
		return "", err
	}
	if err := w.networksComeAndGo(ctx); err != nil {
		return "", err
	}
	healed, err := w.healsFRR(ctx, pods)
	if err != nil {
		return "", err
	}
	figures += healed
	if err := w.sessionsReported(ctx); err != nil {
		return "", err
	}
	if w.Full && len(pods) > 1 {
		killed, err := w.killedWithoutOverlay(ctx, pods)
		if err != nil {
			return "", err
		}
		figures += "; " + killed
		alone, err := w.frrAlone(ctx, pods)
		if err != nil {
			return "", err
		}
		figures += "; " + alone
	}
	if w.Full && len(w.Lab.Nodes()) > 2 {
		if err := w.reflected(ctx, pods); err != nil {
			return "", fmt.Errorf("with route reflectors: %w", err)
		}
		figures += "; route reflectors"
	}
	return fmt.Sprintf("%s; %d denied attempts", figures, denied), nil
}

// sessionsReported waits for the condition of Nodes that says whether their sessions are up, and if everything is
// run, shuts one session down and up again.
func (w *World) sessionsReported(ctx context.Context) error {
	nodes := w.Lab.Nodes()
	nodes = nodes[:min(2, len(nodes))]
	wait := func(status corev1.ConditionStatus, text string) error {
		return each(nodes, func(n *lab.Node) error {
			return w.Lab.Wait(ctx, fmt.Sprintf("condition %s of %s to be %s", bgp.ConditionBGP, n.Name, status), func(ctx context.Context) (bool, string, error) {
				obj, err := w.Lab.Client().CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
				if err != nil {
					return false, "", err
				}
				for _, c := range obj.Status.Conditions {
					if c.Type == bgp.ConditionBGP {
						return c.Status == status && strings.Contains(c.Message, text), fmt.Sprint(c.Status, " ", c.Message), nil
					}
				}
				return false, "there is none", nil
			})
		})
	}
	if err := wait(corev1.ConditionFalse, ""); err != nil || !w.Full || len(nodes) < 2 {
		return err
	}
	peer := addrs(nodes[1])[0]
	shut := func(ctx context.Context, no string) error {
		return nodes[0].Script(ctx, fmt.Sprintf("vtysh -c 'configure terminal' -c 'router bgp 64512' -c '%s neighbor %s shutdown'", no, peer))
	}
	if err := shut(ctx, ""); err != nil {
		return err
	}
	err := wait(corev1.ConditionTrue, "BGP sessions with other nodes are down")
	if err := errors.Join(err, shut(context.WithoutCancel(ctx), "no")); err != nil {
		return err
	}
	return wait(corev1.ConditionFalse, "")
}

// defaultServices has pods ask the API server's service, and DNS for its name and, if they are
// sky's, their own service's.
func (w *World) defaultServices(ctx context.Context, pods []*pod, sky bool) error {
	want := map[string]string{}
	service, err := w.Lab.Client().CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	want["tcp:"+net.JoinHostPort(service.Spec.ClusterIP, "443")] = apiServer
	for name, of := range map[string][2]string{"name:web": {"sky", "web"}, "name:kubernetes.default.svc.cluster.local": {"default", "kubernetes"}} {
		if of[0] == "sky" && !sky {
			continue
		}
		if want[name], err = w.addressesOf(ctx, of[0], of[1]); err != nil {
			return err
		}
	}
	for _, p := range pods {
		if _, err := w.reach(ctx, p, "", want); err != nil {
			return fmt.Errorf("%s to the services of all networks: %w", p.Name, err)
		}
	}
	return nil
}

// noDifferences has bulkheadctl compare FRR, the kernel and OVN on the nodes with pods, and looks for the
// node's sessions in its VRF.
func (w *World) noDifferences(ctx context.Context, tenant, vrf string) error {
	for _, p := range w.tenant(tenant) {
		node := w.Lab.Node(p.Node)
		if err := w.Lab.Wait(ctx, "bulkheadctl bgp on "+node.Name+" to find no difference", func(ctx context.Context) (bool, string, error) {
			var st bgpstatus.Status
			if err := nodeJSON(ctx, node, toolsDir+"/bulkheadctl bgp -o json", &st); err != nil {
				return false, "", err
			}
			announced := slices.ContainsFunc(st.Networks, func(n bgpstatus.Network) bool {
				return n.Name == network.CUDNName(tenant) && slices.Contains(n.VRFs, vrf) && len(n.Prefixes) > 0
			})
			session := slices.ContainsFunc(st.Sessions, func(s bgpstatus.Session) bool { return s.VRF == vrf && s.Received > 0 && s.Sent > 0 })
			return announced && session && len(st.Differences) == 0, fmt.Sprintf("%+v", st), nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// noTunnel counts what a node sends through tunnels while its pod pings another node's: hardly
// anything, for whoever else uses them.
func (w *World) noTunnel(ctx context.Context, pods []*pod) error {
	const pings = 60
	from, to := pods[0], pods[len(pods)-1]
	if from == to {
		return nil
	}
	node := w.Lab.Node(from.Node)
	sent := func() (total int, err error) {
		res, err := node.Run(ctx, "ovs-vsctl --bare --columns=statistics find interface type=geneve | tr ' ' '\n' | sed -n 's/^tx_packets=//p'")
		if err != nil || res.ExitCode != 0 || strings.TrimSpace(res.Stdout) == "" {
			return 0, fmt.Errorf("read the tunnels' counters on %s: %q %s: %w", node.Name, res.Stdout, res.Stderr, err)
		}
		for _, f := range strings.Fields(res.Stdout) {
			n, err := strconv.Atoi(f)
			if err != nil {
				return 0, err
			}
			total += n
		}
		return total, nil
	}
	for _, a := range to.Primary {
		before, err := sent()
		if err != nil {
			return err
		}
		if _, err := w.exec(ctx, from, "", "sh", "-c", fmt.Sprintf("for i in $(seq %d); do ping -c 1 -W 5 %s >/dev/null || exit 1; done", pings, a)); err != nil {
			return fmt.Errorf("%s pings %s: %w", from.Name, a, err)
		}
		after, err := sent()
		if err != nil {
			return err
		}
		if after-before >= pings/2 {
			return fmt.Errorf("%s sent %d packets through tunnels during %d pings of %s", node.Name, after-before, pings, a)
		}
	}
	return nil
}

// seesNode checks the address that a server outside the cluster sees of a pod, and that the pod reaches all nodes.
func (w *World) seesNode(ctx context.Context, from *pod) error {
	const listenPort = 8071
	stop, err := w.serveOnMachines(ctx, listenPort)
	if err != nil {
		return err
	}
	defer stop()
	external, node := w.Lab.External(), w.Lab.Node(from.Node)
	want := map[string]string{}
	for _, a := range addrs(external) {
		own := addrs(node)[slices.IndexFunc(addrs(node), func(x netip.Addr) bool { return x.Is4() == a.Is4() })]
		want["client-tcp:"+netip.AddrPortFrom(a, listenPort).String()] = own.String()
	}
	for _, n := range w.Lab.Nodes() {
		for _, a := range addrs(n) {
			want["tcp:"+netip.AddrPortFrom(a, listenPort).String()] = n.Name
		}
	}
	if _, err := w.reach(ctx, from, "", want); err != nil {
		return fmt.Errorf("%s to the external machine and the nodes: %w", from.Name, err)
	}
	return nil
}

// deniedTo has pods of other networks and the nodes try to reach addresses of a network's pods.
func (w *World) deniedTo(ctx context.Context, addresses []netip.Addr) (int, error) {
	list := targets(addresses...)
	attempts := 0
	for _, tenant := range []string{"", "red", "blue"} {
		from := w.tenant(tenant)[0]
		got, err := w.attempt(ctx, from, "", list...)
		if err == nil {
			err = reachedAny(from.Namespace+"/"+from.Name, got)
		}
		if err != nil {
			return 0, err
		}
		attempts += len(got)
	}
	for _, n := range w.Lab.Nodes() {
		got, err := w.nodeAttempt(ctx, n, list...)
		if err == nil {
			err = reachedAny(n.Name, got)
		}
		if err != nil {
			return 0, err
		}
		attempts += len(got)
	}
	return attempts, nil
}

// bgpdAway is how long a node's bgpd is away: less than the time for which its neighbors keep its routes.
const bgpdAway = 20 * time.Second

// healsFRR kills bgpd on the last node under traffic between sky's pods. The routes stay, on the node and on its
// neighbors: no ping is lost. watchfrr, which is stopped meanwhile, then restarts bgpd: its sessions come up, and
// the pods reach each other.
func (w *World) healsFRR(ctx context.Context, pods []*pod) (figures string, err error) {
	nodes := w.Lab.Nodes()
	if len(nodes) == 1 {
		return "", nil
	}
	last := nodes[len(nodes)-1]
	sent, err := w.withoutLoss(ctx, pods[0], pods[len(pods)-1], func() error {
		if err := last.Script(ctx, "kill -STOP $(pidof watchfrr) && kill -KILL $(pidof bgpd)"); err != nil {
			return err
		}
		select {
		case <-time.After(bgpdAway):
		case <-ctx.Done():
		}
		return last.Script(ctx, "! pidof bgpd")
	})
	if err := errors.Join(err, last.Script(context.WithoutCancel(ctx), "kill -CONT $(pidof watchfrr)")); err != nil {
		return "", fmt.Errorf("bgpd away: %w", err)
	}
	if err := w.meshSessions(ctx); err != nil {
		return "", err
	}
	// zebra may remove one IP family's routes for a while: docs/bgp.md.
	if err := w.Lab.Wait(ctx, "sky's pods to reach each other, with bgpd back", func(ctx context.Context) (bool, string, error) {
		_, err := w.mesh(ctx, pods)
		return err == nil, fmt.Sprint(err), nil
	}); err != nil {
		return "", err
	}
	return fmt.Sprintf("; bgpd away: %d pings, none lost", sent), nil
}

// established returns how many of the peers have a session with the node, -1 if its FRR does not answer, and
// what it says.
func established(ctx context.Context, node *lab.Node, peers []netip.Addr) (up int, text string, err error) {
	res, err := node.Run(ctx, "vtysh -c 'show bgp summary established'")
	if err != nil || res.ExitCode != 0 {
		return -1, res.Stdout + res.Stderr, err
	}
	for _, f := range strings.Fields(res.Stdout) {
		if a, err := netip.ParseAddr(f); err == nil && slices.Contains(peers, a) {
			up++
		}
	}
	return up, res.Stdout, nil
}
