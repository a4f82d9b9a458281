// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// Conflicts are other programs' firewall rules that affect packets of networks, each with a remedy.
type Conflicts struct {
	KubeProxy []string // kube-proxy's services, which OVN should serve
	Drops     []string // what may refuse packets; its rules may also accept them
}

// chain is a chain of another program.
type chain struct {
	family, table, name string
	hook                string // "": no base chain
	drops               bool   // drops what no rule accepts
}

func (c chain) String() string {
	return fmt.Sprintf("chain %s of table %s %s", c.name, c.family, c.table)
}

// ipvsDevice has the addresses of all services while kube-proxy uses IPVS.
const ipvsDevice = "kube-ipvs0"

// ReadConflicts lists the kernel's nftables chains, which those of iptables-nft are too. Of
// iptables-legacy it says that there are tables: only its own program reads their rules. bridge is
// the external bridge's name, for messages.
func ReadConflicts(bridge string) (Conflicts, error) {
	conn, err := nftables.New()
	if err != nil {
		return Conflicts{}, fmt.Errorf("open a netlink socket for nftables: %w", err)
	}
	list, err := conn.ListChains()
	if err != nil {
		return Conflicts{}, fmt.Errorf("list the chains of nftables: %w", err)
	}
	var chains []chain
	for _, c := range list {
		family, ok := ipFamilies[c.Table.Family]
		if !ok || family == "inet" && c.Table.Name == Table {
			continue
		}
		out := chain{family: family, table: c.Table.Name, name: c.Name}
		if c.Hooknum != nil {
			out.hook = hooks[*c.Hooknum]
			out.drops = c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
		}
		chains = append(chains, out)
	}
	found := conflicts(chains, bridge)
	legacy, err := legacyTables(procNet)
	if err != nil {
		return found, err
	}
	found.Drops = append(found.Drops, legacy...)
	switch _, err := netlink.LinkByName(ipvsDevice); {
	case err == nil:
		found.KubeProxy = append(found.KubeProxy, "kube-proxy's interface "+ipvsDevice+kubeProxyRemedy)
	case !errors.As(err, new(netlink.LinkNotFoundError)):
		return found, fmt.Errorf("read link %s: %w", ipvsDevice, err)
	}
	return found, nil
}

const procNet = "/proc/thread-self/net"

// legacyTables returns a message for each IP family with tables of iptables-legacy.
func legacyTables(procNet string) (messages []string, err error) {
	for _, of := range []struct{ file, program string }{{"ip_tables_names", "iptables-legacy"}, {"ip6_tables_names", "ip6tables-legacy"}} {
		names, err := os.ReadFile(filepath.Join(procNet, of.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel has no iptables-legacy, or nothing has used it
		}
		if err != nil {
			return nil, fmt.Errorf("list the tables of %s: %w", of.program, err)
		}
		if tables := strings.Fields(string(names)); len(tables) > 0 {
			slices.Sort(tables)
			messages = append(messages, fmt.Sprintf("%s has the tables %s, whose rules Bulkhead does not read: %s-save shows them. Remove what kube-proxy left, and let the others accept packets from and to ovn-k8s-mp*",
				of.program, strings.Join(tables, ", "), of.program))
		}
	}
	return messages, nil
}

// ipFamilies are the table families whose chains see IP packets.
var ipFamilies = map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet"}

var hooks = map[nftables.ChainHook]string{
	*nftables.ChainHookPrerouting: "prerouting", *nftables.ChainHookInput: "input", *nftables.ChainHookForward: "forward",
	*nftables.ChainHookOutput: "output", *nftables.ChainHookPostrouting: "postrouting",
}

const kubeProxyRemedy = " is still there: the node's processes reach services by it, also endpoints that are gone: stop kube-proxy and run kube-proxy --cleanup, or restart the node"

// conflicts returns what chains do to networks' packets, sorted.
func conflicts(chains []chain, bridge string) Conflicts {
	var out Conflicts
	firewalld := false
	for _, c := range chains {
		switch {
		case c.table == "kube-proxy" && c.name == "services", c.table == "nat" && c.name == "KUBE-SERVICES":
			out.KubeProxy = append(out.KubeProxy, "kube-proxy's "+c.String()+kubeProxyRemedy)
		case c.table == "firewalld":
			firewalld = true
		case c.drops:
			out.Drops = append(out.Drops, fmt.Sprintf("%s (hook %s) drops what none of its rules accepts: let it accept packets from and to ovn-k8s-mp*, including those forwarded through %s", c, c.hook, bridge))
		}
	}
	if firewalld {
		out.Drops = append(out.Drops, fmt.Sprintf("firewalld refuses what its zones and policies do not accept: let them accept packets from and to ovn-k8s-mp*, including those forwarded through %s", bridge))
	}
	for _, list := range []*[]string{&out.KubeProxy, &out.Drops} {
		slices.SortFunc(*list, strings.Compare)
	}
	return out
}
