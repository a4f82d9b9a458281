// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"strings"
)

func inspectChecks() []Check {
	return []Check{
		{Chapter: 7, Title: "bpftool lists the bh_ programs, links and maps on every node, pinned", Phase: phaseObjects, Run: bpftoolLists},
		{Chapter: 7, Title: "bulkheadctl networks shows both tenants with VRF, table, port and pods", Phase: phaseObjects, Needs: needs(fixtureTenants), Run: ctlNetworks},
	}
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
			if net.Name == "cluster_udn_red" || net.Name == "blue_net" {
				seen[net.Name] = true
				if net.VRF == "" || net.Table == 0 || net.ManagementPort == "" || len(net.Masquerade) == 0 || len(net.Pods) == 0 {
					return "", fmt.Errorf("node %s: incomplete: %+v", n.Name, net)
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
