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

	"bulkhead/pkg/agent"
)

func inspectChecks() []Check {
	return []Check{
		{Chapter: 7, Title: "bpftool lists the bh_ programs, links and maps on every node, pinned", Phase: phaseObjects, Run: bpftoolLists},
		{Chapter: 7, Title: "bulkheadctl networks shows both tenants with VRF, table, port and pods", Phase: phaseObjects, Needs: needs(fixtureTenants), Run: ctlNetworks},
		{Chapter: 7, Title: "bulkheadctl trace says where a tenant's packets end, and what stops them", Phase: phaseObjects, Needs: needs(fixtureTenants), Run: ctlTrace, Group: groupDiagnosis},
		{Chapter: 7, Title: "policy rules and firewall chains of other programs are reported until they are removed", Phase: phaseObjects, Run: conflictsReported, Group: groupDiagnosis},
	}
}

// conflictsReported adds a policy rule and a chain that affect no packet.
func conflictsReported(ctx context.Context, w *World) (_ string, err error) {
	node := w.Lab.Nodes()[0]
	remove := func(ctx context.Context) error {
		return node.Script(ctx, "ip rule del priority 150; nft delete table ip kube-proxy")
	}
	if err := node.Script(ctx, "ip rule add priority 150 lookup 77 && nft 'add table ip kube-proxy; add chain ip kube-proxy services'"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove(context.WithoutCancel(ctx)))
		}
	}()
	waitUntil := func(what string, done func(message string) bool) error {
		return w.Lab.Wait(ctx, fmt.Sprintf("the condition BulkheadDegraded of %s %s", node.Name, what), func(ctx context.Context) (bool, string, error) {
			n, err := w.Lab.Client().CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
			if err != nil {
				return false, "", err
			}
			for _, c := range n.Status.Conditions {
				if c.Type == agent.ConditionDegraded {
					return done(c.Message), c.Reason + ": " + c.Message, nil
				}
			}
			return false, "there is none", nil
		})
	}
	const rule, chain = "ip rule 150 from all lookup 77", "chain services of table ip kube-proxy"
	if err := waitUntil("to name a rule and a chain", func(m string) bool { return strings.Contains(m, rule) && strings.Contains(m, chain) }); err != nil {
		return "", err
	}
	if err := remove(ctx); err != nil {
		return "", err
	}
	return "a policy rule, a chain of kube-proxy", waitUntil("to name neither", func(m string) bool { return !strings.Contains(m, rule) && !strings.Contains(m, chain) })
}

func bpftoolLists(ctx context.Context, w *World) (string, error) {
	var figures []string
	for _, n := range w.Lab.Nodes() {
		progs, err := bpfPrograms(ctx, n)
		if err != nil {
			return "", err
		}
		var maps []struct{ Name string }
		if err := nodeJSON(ctx, n, "bpftool -j map show", &maps); err != nil {
			return "", err
		}
		var links []struct {
			ID     int
			ProgID int `json:"prog_id"`
		}
		if err := nodeJSON(ctx, n, "bpftool -j link show", &links); err != nil {
			return "", err
		}
		nMaps, nLinks := 0, 0
		for _, m := range maps {
			if strings.HasPrefix(m.Name, "bh_") {
				nMaps++
			}
		}
		attached := map[int]bool{}
		for _, l := range links {
			attached[l.ProgID] = true
		}
		for _, id := range progs {
			if attached[id] {
				nLinks++
			}
		}
		res, err := n.Run(ctx, "find /sys/fs/bpf/bulkhead/links -type f | wc -l; find /sys/fs/bpf/bulkhead/maps -type f | wc -l")
		if err != nil {
			return "", err
		}
		var pinnedLinks, pinnedMaps int
		if _, err := fmt.Sscan(res.Stdout, &pinnedLinks, &pinnedMaps); err != nil {
			return "", fmt.Errorf("node %s: count pins in %q: %w", n.Name, res.Stdout+res.Stderr, err)
		}
		for _, must := range []string{"connect4", "connect6", "sendmsg4", "sendmsg6"} {
			found := false
			for name := range progs {
				found = found || strings.Contains(name, must) || strings.Contains(name, strings.NewReplacer("connect", "conn", "sendmsg", "send").Replace(must))
			}
			if !found {
				return "", fmt.Errorf("node %s: no bh_ program for %s among %v", n.Name, must, progs)
			}
		}
		if nLinks == 0 || nMaps == 0 || pinnedLinks == 0 || pinnedMaps == 0 {
			return "", fmt.Errorf("node %s: %d programs, %d attached, %d maps; %d links and %d maps pinned", n.Name, len(progs), nLinks, nMaps, pinnedLinks, pinnedMaps)
		}
		figures = append(figures, fmt.Sprintf("%s: %d programs, %d maps, %d pinned links", n.Name, len(progs), nMaps, pinnedLinks))
	}
	return strings.Join(figures, "; "), nil
}

func ctlNetworks(ctx context.Context, w *World) (string, error) {
	for _, n := range w.Lab.Nodes() {
		res, err := n.Run(ctx, "ip -o link show type vrf | awk -F': ' '{print $2}'")
		if err != nil {
			return "", err
		}
		if !strings.Contains(res.Stdout, "red") {
			return "", fmt.Errorf("node %s has no VRF red: %s", n.Name, res.Stdout)
		}
		var networks []struct {
			Name           string
			ID             int
			VRF            string
			Table          int
			ManagementPort string
			Masquerade     []string
			Pods           []string
		}
		if err := nodeJSON(ctx, n, toolsDir+"/bulkheadctl networks -o json", &networks); err != nil {
			return "", err
		}
		seen := map[string]bool{}
		for _, net := range networks {
			tenant, ok := map[string]string{"cluster_udn_red": "red", "blue_net": "blue"}[net.Name]
			if !ok {
				continue
			}
			seen[net.Name] = true
			if net.VRF == "" || net.Table == 0 || net.ManagementPort == "" || len(net.Masquerade) == 0 {
				return "", fmt.Errorf("node %s: incomplete: %+v", n.Name, net)
			}
			for _, p := range w.tenant(tenant) {
				if has := slices.Contains(net.Pods, p.Namespace+"/"+p.Name); has != (p.Node == n.Name) {
					return "", fmt.Errorf("node %s: network %s has pods %v, and pod %s/%s runs on node %s", n.Name, net.Name, net.Pods, p.Namespace, p.Name, p.Node)
				}
			}
		}
		if len(seen) != 2 {
			return "", fmt.Errorf("node %s: bulkheadctl shows only %v", n.Name, networks)
		}
	}
	table, err := w.Lab.Nodes()[0].Run(ctx, toolsDir+"/bulkheadctl networks")
	if err != nil {
		return "", err
	}
	fmt.Fprintf(w.Out, "     %s\n", strings.ReplaceAll(strings.TrimSpace(table.Stdout), "\n", "\n     "))
	return "", nil
}

// ctlTrace traces from a pod of red on its node.
func ctlTrace(ctx context.Context, w *World) (string, error) {
	pods := w.tenant("red")
	from := pods[0]
	count := 0
	trace := func(to string, wants ...string) error {
		count++
		command := fmt.Sprintf("%s/bulkheadctl trace %s/%s %s", toolsDir, from.Namespace, from.Name, to)
		res, err := w.Lab.Node(from.Node).Run(ctx, command)
		if err != nil {
			return err
		}
		for _, want := range wants {
			if res.ExitCode != 0 || !strings.Contains(res.Stdout, want) {
				return fmt.Errorf("%s on %s: exit %d, no %q in %s%s", command, from.Node, res.ExitCode, want, res.Stdout, res.Stderr)
			}
		}
		return nil
	}
	for _, to := range pods[1:] {
		for _, a := range to.Primary {
			wants := []string{"=> pod " + to.Namespace + "/" + to.Name, "=> sent by "}
			if to.Node != from.Node {
				wants = []string{"=> node " + to.Node + ", through the tunnel", "=> sent by tunnel"}
			}
			if err := trace(a.String(), wants...); err != nil {
				return "", err
			}
		}
	}
	// In the service CIDR, but no service's.
	for _, a := range []string{"10.96.255.1", "fd10:96::ff01"} {
		to := netip.AddrPortFrom(netip.MustParseAddr(a), 443)
		if !w.has(to.Addr()) {
			continue
		}
		if err := trace(to.String(), "=> dropped: lr_in_policy, priority "); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d traces", count), nil
}
