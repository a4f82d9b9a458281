// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"

	"bulkhead/pkg/config"
	"bulkhead/test/native"
)

// Real BGP daemons with the managed fabric's objects: clients of route reflectors, which have no
// sessions with one another, learn each other's host subnets, and keep them while a node's bgpd is away.
func TestNativeReflectors(t *testing.T) {
	tree, err := native.FindTree()
	if err != nil {
		t.Skip(err)
	}
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	f, fabric := managedFake(4), Fabric{Topology: config.RouteReflectors, ASN: 64512, Namespace: frrNamespace, Default: true}
	converge(t, f, fabric)
	ns, err := native.Namespace("bgp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := native.DeleteNamespace(ns); err != nil {
			t.Error(err)
		}
	})
	for _, n := range f.Nodes {
		for _, a := range n.InternalIPs {
			argv := []string{"ip", "-n", ns, "address", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "lo"}
			if a.Is6() {
				argv = append(argv, "nodad")
			}
			if _, err := native.Run(nil, argv...); err != nil {
				t.Fatal(err)
			}
		}
	}
	hosts := map[string]*native.Host{}
	for _, n := range f.Nodes {
		h, err := native.NewHost(tree, n.Name, ns)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Stop() })
		hosts[n.Name] = h
		if err := os.WriteFile(h.Path("bgpd.conf"), []byte(asFRRK8s(f, n)), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"-Z", "-S", "-f", h.Path("bgpd.conf"), "-i", h.Path("bgpd.pid"), "--vty_socket", h.Dir, "-u", "root", "-g", "root", "-p", "179"}
		for _, a := range n.InternalIPs {
			args = append(args, "-l", a.String())
		}
		if _, err := h.Daemon("bgpd", args...); err != nil {
			t.Fatal(err)
		}
	}
	// knows returns an error unless the node has routes to the other's host subnets.
	knows := func(n, other Node) error {
		for _, network := range f.Networks {
			if network.Transport == "" {
				continue
			}
			prefixes, err := network.HostSubnets(other.ID)
			if err != nil {
				return err
			}
			for _, p := range prefixes {
				if err := learned(hosts[n.Name], p, other.InternalIPs); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, n := range f.Nodes {
		err := native.Eventually("routes of "+n.Name, func() error {
			for _, other := range f.Nodes {
				if other.Name == n.Name {
					continue
				}
				if err := knows(n, other); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, hosts[n.Name].Output())
		}
	}

	// Without one node's bgpd the others keep the routes to its pods.
	reflector, killed := f.Nodes[0], f.Nodes[len(f.Nodes)-1]
	if _, err := native.Run(nil, "sh", "-c", "kill -KILL $(cat "+hosts[killed.Name].Path("bgpd.pid")+")"); err != nil {
		t.Fatal(err)
	}
	err = native.Eventually("the sessions with "+killed.Name+" to end", func() error {
		for _, a := range killed.InternalIPs {
			text, err := ask(hosts[reflector.Name].Path("bgpd.vty"), fmt.Sprintf("show bgp neighbors %s json", a))
			if err != nil {
				return err
			}
			if !strings.Contains(text, `"bgpState"`) || strings.Contains(text, `"bgpState":"Established"`) {
				return fmt.Errorf("session with %s: %.300s", a, text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range f.Nodes[:len(f.Nodes)-1] {
		if err := knows(n, killed); err != nil {
			t.Errorf("bgpd of %s is away: %v", killed.Name, err)
		}
	}
}

// asFRRK8s returns FRR's configuration of a node as frr-k8s makes it of its objects: what leaves to
// a neighbor is limited to the router's own prefixes, and what enters to toReceive. Daemons share a
// machine here, so each calls from its own addresses.
func asFRRK8s(f *Fake, node Node) string {
	var prefixes, raw []string
	neighbors := map[string][]frrv1.PrefixSelector{} // what is received, by address
	graceful := map[string]bool{}
	for i := range f.Configurations {
		c := &f.Configurations[i]
		if source, ok := SourceOf(c); !ok || source.Node != node.Name {
			continue
		}
		for _, r := range c.Spec.BGP.Routers {
			prefixes = append(prefixes, r.Prefixes...)
			for _, n := range r.Neighbors {
				neighbors[n.Address] = append(neighbors[n.Address], n.ToReceive.Allowed.Prefixes...)
				graceful[n.Address] = n.EnableGracefulRestart
			}
		}
		raw = append(raw, c.Spec.Raw.Config)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "router bgp 64512\n bgp router-id %s\n no bgp default ipv4-unicast\n no bgp network import-check\n bgp graceful-restart preserve-fw-state\n", node.InternalIPs[0])
	families := []string{"ip", "ipv6"}
	family := func(address string) int {
		if strings.Contains(address, ":") {
			return 1
		}
		return 0
	}
	for a := range neighbors {
		fmt.Fprintf(&b, " neighbor %s remote-as 64512\n neighbor %[1]s update-source %s\n neighbor %[1]s timers connect 1\n", a, node.InternalIPs[family(a)])
		if graceful[a] {
			fmt.Fprintf(&b, " neighbor %s graceful-restart\n", a)
		}
		fmt.Fprintf(&b, " address-family %s unicast\n  neighbor %s activate\n  neighbor %[2]s route-map %[2]s-in in\n  neighbor %[2]s route-map %[2]s-out out\n exit-address-family\n", []string{"ipv4", "ipv6"}[family(a)], a)
	}
	for _, p := range prefixes {
		fmt.Fprintf(&b, " address-family %s unicast\n  network %s\n exit-address-family\n", []string{"ipv4", "ipv6"}[family(p)], p)
	}
	b.WriteString("exit\n")
	for a, receive := range neighbors {
		name := families[family(a)]
		for i, p := range prefixes {
			if family(p) == family(a) {
				fmt.Fprintf(&b, "%s prefix-list %s-allowed seq %d permit %s\n", name, a, i+1, p)
			}
		}
		for i, s := range receive {
			fmt.Fprintf(&b, "%s prefix-list %s-inpl seq %d permit %s ge %d le %d\n", name, a, i+1, s.Prefix, s.GE, s.LE)
		}
		for direction, list := range map[string]string{"in": "inpl", "out": "allowed"} {
			fmt.Fprintf(&b, "route-map %s-%s permit 1\n match %s address prefix-list %[1]s-%[4]s\nexit\n", a, direction, name, list)
		}
	}
	return b.String() + strings.Join(raw, "")
}

// learned returns an error unless the daemon has a valid path to the prefix by one of the next hops.
func learned(h *native.Host, p netip.Prefix, nextHops []netip.Addr) error {
	family := "ipv4"
	if p.Addr().Is6() {
		family = "ipv6"
	}
	text, err := ask(h.Path("bgpd.vty"), fmt.Sprintf("show bgp %s unicast %s json", family, p))
	if err != nil {
		return err
	}
	var route struct {
		Paths []struct {
			Valid    bool
			Nexthops []struct{ IP netip.Addr }
		}
	}
	if err := json.Unmarshal([]byte(text), &route); err != nil {
		return fmt.Errorf("read %q: %w", text, err)
	}
	for _, path := range route.Paths {
		for _, n := range path.Nexthops {
			if path.Valid && slices.Contains(nextHops, n.IP) {
				return nil
			}
		}
	}
	return fmt.Errorf("%s has no path to %s by %v: %s", h.Name, p, nextHops, text)
}

// ask sends a command to a daemon of FRR by its VTY socket. An answer ends with three zeros
// and a status.
func ask(socket, command string) (string, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	var answer []byte
	for _, c := range []string{"enable", command} {
		if _, err := conn.Write(append([]byte(c), 0)); err != nil {
			return "", err
		}
		answer = nil
		for buf := make([]byte, 4096); len(answer) < 4 || string(answer[len(answer)-4:len(answer)-1]) != "\x00\x00\x00"; {
			n, err := conn.Read(buf)
			if err != nil {
				return "", fmt.Errorf("%s: %w", c, err)
			}
			answer = append(answer, buf[:n]...)
		}
	}
	return string(answer[:len(answer)-4]), nil
}
