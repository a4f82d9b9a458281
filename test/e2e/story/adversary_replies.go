// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
)

// Ports of the connections whose answers are forged.
const (
	askingPort = 7995 // of green-1; the next one with the second IP family: a socket of IPv6 has a port in both
	askedPort  = 7997 // of a server outside the cluster, which does not answer
)

// forgedReplies is the part in which host-network pods forge answers to what green-1 sends out of
// the cluster, to its gateway router. Root outside all pods can. stop ends green-1's sending.
// In local gateway mode there is none: pods' packets leave by the host, not by that router.
func (a *attackSetup) forgedReplies(ctx context.Context) (out part, stop func(), err error) {
	stop = func() {}
	if local, err := a.w.localGateway(ctx); err != nil || local {
		return out, stop, err
	}
	masquerade, err := a.w.masquerade(ctx)
	if err != nil {
		return out, stop, err
	}
	plan := network.Plan{Masquerade: masquerade}
	bridge := adversary.Interface{Name: "br-ex", MAC: a.nodes[a.near.Name].mac["br-ex"]}
	servers := map[netip.Addr]netip.Addr{} // by the router's address
	command := []string{"/tools/netprobe", "check", "--timeout", "1h"}
	for i, router := range plan.MasqueradeGateway(network.Network{ID: a.greenID}) {
		server, ok := network.FirstOfFamily(addrs(a.w.Lab.External()), router.Addr())
		if !ok {
			return out, stop, fmt.Errorf("the external machine has no address of the family of %s", router)
		}
		servers[router.Addr()] = server
		command = append(command, fmt.Sprintf("udp@%d:%s", askingPort+i, netip.AddrPortFrom(server, askedPort)))
	}
	asking, err := a.w.start(ctx, a.pods["green-1"], "netprobe", command...)
	if err != nil {
		return out, stop, err
	}
	var ways []attack.Attempt
	for router, server := range servers {
		from, outside, err := a.portOutside(ctx, router, server, askedPort)
		if err != nil {
			asking.kill()
			return out, stop, err
		}
		ways = append(ways, adversary.ForgedReplies(router, server, from, askedPort, outside, bridge)...)
	}
	return part{what: "forged answers to what green sends out of the cluster", attacks: trials(a.attackers(), ways), controls: trials([]actor{a.admin()}, ways), victims: []string{"green-1"}}, asking.kill, nil
}

// portOutside waits until green-1's datagrams to the server leave the node, and returns the port that they have when
// they leave its gateway router or, in local gateway mode, its management port, and the address and port that they have outside. An attacker who does not know these tries all.
func (a *attackSetup) portOutside(ctx context.Context, router, server netip.Addr, asked uint16) (port uint16, outside netip.AddrPort, err error) {
	from, to := regexp.QuoteMeta(router.String()), regexp.QuoteMeta(server.String())
	entry := regexp.MustCompile(fmt.Sprintf(`orig=\(src=%s,dst=%s,sport=(\d+),dport=%d\),reply=\(src=%[2]s,dst=([^,]+),sport=%[3]d,dport=(\d+)\)`, from, to, asked))
	err = a.w.Lab.Wait(ctx, fmt.Sprintf("datagrams of %s to %s to leave %s", router, server, a.near.Name), func(ctx context.Context) (bool, string, error) {
		res, err := a.near.Run(ctx, "ovs-appctl dpctl/dump-conntrack")
		if err != nil {
			return false, "", err
		}
		for _, match := range entry.FindAllStringSubmatch(res.Stdout, -1) {
			addr, addrErr := netip.ParseAddr(match[2])
			n, portErr := strconv.ParseUint(match[1], 10, 16)
			m, outsideErr := strconv.ParseUint(match[3], 10, 16)
			if err := errors.Join(addrErr, portErr, outsideErr); err != nil || addr != router {
				port, outside = uint16(n), netip.AddrPortFrom(addr, uint16(m))
				return true, "", err
			}
		}
		return false, res.Stderr, nil
	})
	return port, outside, err
}

// masquerade returns the masquerade subnets of the product's configuration in the lab's IP families.
func (w *World) masquerade(ctx context.Context) ([]netip.Prefix, error) {
	c, err := w.Lab.Client().CoreV1().ConfigMaps(productNamespace).Get(ctx, productConfig, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for file, text := range c.Data {
		parsed, err := config.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("file %s of ConfigMap %s: %w", file, productConfig, err)
		}
		return network.FilterFamilies(parsed.Plan.Masquerade, w.has(netip.IPv4Unspecified()), w.has(netip.IPv6Unspecified())), nil
	}
	return nil, fmt.Errorf("ConfigMap %s has no file", productConfig)
}
