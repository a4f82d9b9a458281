// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/loader"
)

// FindPodRoots are the cgroups that contain all pods, for nft. root is the
// cgroup2 mount.
func FindPodRoots(root string) ([]firewall.Cgroup, error) {
	layout, err := hostnet.ReadLayout(root)
	if err != nil {
		return nil, err
	}
	var out []firewall.Cgroup
	for _, r := range layout.Roots {
		if rel, err := filepath.Rel(root, r.Path); err == nil {
			out = append(out, firewall.Cgroup{Path: rel, ID: r.ID})
		}
	}
	return out, nil
}

// kubeletUnits are the paths of kubelet's cgroup on nodes with systemd and in
// the lab. The agent needs them only where eBPF cannot recognise kubelet.
var kubeletUnits = []string{"system.slice/kubelet.service", "runtime.slice/kubelet.service", "podruntime.slice/kubelet.service", "kubelet.service", "kubelet"}

// FindKubeletCgroup finds kubelet's cgroup below the cgroup2 mount. If there is
// none, nothing on the node reaches locked addresses, and the node condition
// says so.
func FindKubeletCgroup(root string) firewall.Cgroup {
	for _, unit := range kubeletUnits {
		dir := filepath.Join(root, unit)
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if id, err := loader.CgroupID(dir); err == nil {
			return firewall.Cgroup{Path: unit, ID: id}
		}
	}
	return firewall.Cgroup{}
}
