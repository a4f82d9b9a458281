// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// claimsCaptureNothing has a user of the tenant red write services with the addresses of the
// external machine and the nodes as external IPs, one for each external traffic policy. Red's own pods
// reach them at the external machine's addresses, which shows that they work. Other networks' pods and the
// nodes' processes reach the machines, also through a service of the cluster default network whose
// endpoint is the external machine: the gateway router sends to it.
func claimsCaptureNothing(ctx context.Context, w *World) (string, error) {
	const clusterPort, localPort = 8071, 8074
	external := w.Lab.External()
	want := map[string]string{}
	var claimed, own, manifests []string
	for _, listenPort := range []uint16{clusterPort, localPort} {
		stop, err := w.serveOnMachines(ctx, listenPort)
		if err != nil {
			return "", err
		}
		defer stop()
		for _, m := range w.machines() {
			for _, a := range addrs(m) {
				at := netip.AddrPortFrom(a, listenPort).String()
				claimed, want["tcp:"+at], want["udp:"+at] = append(claimed, fmt.Sprintf("%q", a)), m.Name, m.Name
				if m == external {
					own = append(own, "tcp:"+at, "udp:"+at)
				}
			}
		}
	}
	slices.Sort(claimed)
	for name, spec := range map[string]string{
		"claim":       fmt.Sprintf("type: ClusterIP, ports: %s", claimPorts(clusterPort)),
		"claim-local": fmt.Sprintf("type: NodePort, externalTrafficPolicy: Local, ports: %s", claimPorts(localPort)),
	} {
		manifests = append(manifests, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: red-a}
spec: {ipFamilyPolicy: PreferDualStack, selector: {role: server}, externalIPs: [%s], %s}
`, name, strings.Join(slices.Compact(claimed), ", "), spec))
	}
	manifests = append(manifests, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: beyond, namespace: plain}
spec: {ipFamilyPolicy: PreferDualStack, ports: %s}
`, claimPorts(localPort)))
	for _, a := range addrs(external) {
		manifests = append(manifests, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: beyond-%s, namespace: plain, labels: {kubernetes.io/service-name: beyond}}
addressType: %s
endpoints: [{addresses: [%q]}]
ports: [{name: tcp, port: %[4]d, protocol: TCP}, {name: udp, port: %[4]d, protocol: UDP}]
`, strings.ToLower(string(addressType(a))), addressType(a), a, localPort))
	}
	all := strings.Join(manifests, "---")
	if err := w.Lab.Apply(ctx, all); err != nil {
		return "", err
	}
	defer func() { _ = w.Lab.Delete(context.WithoutCancel(ctx), all) }()
	beyond, err := w.clusterIPs(ctx, "plain", "beyond", localPort)
	if err != nil {
		return "", err
	}
	toBeyond := map[string]string{}
	for _, target := range beyond {
		toBeyond[target] = external.Name
	}
	pods, err := w.perNode()
	if err != nil {
		return "", err
	}
	var servers []string
	for _, p := range w.endpoints("red-a", "red") {
		servers = append(servers, p.Namespace+"/"+p.Name)
	}
	type client struct {
		name string
		ask  func([]string) ([]probe, error)
		want map[string]string
	}
	everything := maps.Clone(want)
	maps.Copy(everything, toBeyond)
	var clients []client
	for _, n := range w.Lab.Nodes() {
		clients = append(clients, client{n.Name, w.fromNode(ctx, n), everything})
	}
	for _, p := range pods {
		if p.Tenant != "red" {
			c := client{p.Name + " on " + p.Node, w.fromPod(ctx, p), want}
			if p.Tenant == "" {
				c.want = everything
			}
			clients = append(clients, c)
			continue
		}
		ask := func(list []string) ([]probe, error) {
			got, err := w.ask(ctx, p, "", list)
			return slices.DeleteFunc(got, func(g probe) bool { return g.Who == w.Lab.External().Name }), err // not redirected yet
		}
		if _, err := answered(ask, own, servers, 1); err != nil {
			return "", fmt.Errorf("%s on %s, whose own network's service it is: %w", p.Name, p.Node, err)
		}
	}
	return fmt.Sprintf("%d clients, %d targets each, and %d by the gateway router", len(clients), len(want), len(toBeyond)), each(clients, func(c client) error {
		if _, err := reach(c.ask, c.want); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		return nil
	})
}

func claimPorts(number int) string {
	return fmt.Sprintf("[{name: tcp, port: %d, targetPort: %[2]s, protocol: TCP}, {name: udp, port: %[1]d, targetPort: %[2]s, protocol: UDP}]", number, port)
}
