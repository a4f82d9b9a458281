// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"net/netip"
	"strconv"
	"strings"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

// A virtual machine on a primary network configures its interface with DHCP. OVN
// answers on the node that the virtual machine runs on, and answers the same on every
// node: a lease outlives a live migration.

// leaseTime is the duration of a DHCPv4 lease, in seconds. The addresses do not change
// while the virtual machine runs; its DNS servers may.
const leaseTime = 3500

// dhcp adds the rows of a virtual machine's DHCP options and returns their UUIDs by
// IP family, nil without addresses of the family. See DHCP_Options in ovn-nb(5).
func (b *builder) dhcp(port string, pod PodPort) (v4, v6 *string) {
	if pod.VirtualMachine == "" || b.net.Topology != network.Layer2 || !b.net.IsPrimary() {
		return nil, nil
	}
	for _, ip := range pod.IPs {
		subnet, gateway := ip.Masked(), b.net.GatewayIn(ip.Masked()).Addr()
		if !gateway.IsValid() {
			continue
		}
		id := port + " " + subnet.String()
		row := &nbdb.DHCPOptions{Cidr: subnet.String()}
		if uuid := ptr(b.uuid(nbdb.DHCPOptionsTable, id)); gateway.Is4() {
			v4, row.Options = uuid, b.dhcpv4(pod, gateway)
		} else {
			v6, row.Options = uuid, b.dhcpv6(gateway)
		}
		b.add(Neutral, nbdb.DHCPOptionsTable, id, row, nil, markNamespace, pod.Namespace, markPod, pod.Pod)
	}
	return v4, v6
}

func (b *builder) dhcpv4(pod PodPort, gateway netip.Addr) map[string]string {
	options := map[string]string{
		"server_id": gateway.String(), "server_mac": network.MACOf(b.gateways()), "lease_time": strconv.Itoa(leaseTime),
		"router": gateway.String(), "hostname": strconv.Quote(pod.VirtualMachine),
	}
	if b.net.MTU != 0 {
		options["mtu"] = strconv.Itoa(b.net.MTU)
	}
	if servers := b.dnsServers(true); servers != "" {
		options["dns_server"] = servers
	}
	return options
}

// dhcpv6 returns the options of DHCPv6. Routes and the MTU are the router
// advertisements'.
func (b *builder) dhcpv6(gateway netip.Addr) map[string]string {
	options := map[string]string{"server_id": network.MACOf(b.gateways())}
	if servers := b.dnsServers(gateway.Is4()); servers != "" {
		options["dns_server"] = servers
	}
	return options
}

// dnsServers returns the cluster IPs of the DNS service, as OVN's option has them: an
// address, or a set in braces.
func (b *builder) dnsServers(is4 bool) string {
	var out []string
	for _, s := range b.in.Exposed {
		for _, ip := range s.ClusterIPs {
			if s.DNS && ip.Is4() == is4 {
				out = append(out, ip.String())
			}
		}
	}
	if len(out) == 1 {
		return out[0]
	}
	if len(out) == 0 {
		return ""
	}
	return "{" + strings.Join(out, ", ") + "}"
}
