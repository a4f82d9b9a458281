// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"bulkhead/pkg/loader"
)

// NewFeature is a feature that the agent has tried: err is why it is missing.
func NewFeature(name string, err error, costs string) Feature {
	if err == nil {
		return Feature{Name: name, OK: true}
	}
	return Feature{Name: name, Reason: err.Error(), Costs: costs}
}

// SysctlFeatures are sysctls that must have a value, or else sockets cross the
// boundary of a VRF or do not work in a VRF, or the node does not forward. They are the operator's, so the
// agent reports them and does not change them. ipv6: the cluster has IPv6.
func SysctlFeatures(root string, ipv6 bool) []Feature {
	var out []Feature
	type sysctl struct{ name, want, costs string }
	list := []sysctl{
		{"net/ipv4/tcp_l3mdev_accept", "0", "a wildcard TCP listener outside a VRF is reached from every network"},
		{"net/ipv4/udp_l3mdev_accept", "0", "a wildcard UDP socket outside a VRF is reached from every network"},
		{"net/ipv4/raw_l3mdev_accept", "1", "ping by tenants' host-network processes gets no answer"},
	}
	if ipv6 {
		list = append(list, sysctl{"net/ipv6/conf/all/forwarding", "1", "pods of tenants' networks do not reach the IPv6 Services that all networks reach, and in local gateway mode no IPv6 address outside their network"})
	}
	for _, s := range list {
		b, err := os.ReadFile(filepath.Join(root, s.name))
		if errors.Is(err, os.ErrNotExist) {
			continue // the kernel has no VRF devices, or no IPv6, which are features of their own
		}
		name := "sysctl " + strings.ReplaceAll(s.name, "/", ".") + "=" + s.want
		if err == nil && strings.TrimSpace(string(b)) != s.want {
			err = fmt.Errorf("it is %s", strings.TrimSpace(string(b)))
		}
		out = append(out, NewFeature(name, err, s.costs))
	}
	return out
}

// EBPFFeatures are the features of the loader. err is why nothing was loaded.
func EBPFFeatures(l *loader.Loader, err error) []Feature {
	if err != nil {
		return []Feature{NewFeature("eBPF", err, "tenants' host-network processes stay outside their network; kubelet is recognised by its cgroup")}
	}
	var out []Feature
	for _, f := range l.Features() {
		out = append(out, Feature{Name: f.Name, OK: f.OK, Reason: f.Reason, Costs: programCosts(f.Name, f.OK)})
	}
	return out
}

// programCosts says what does not work without a program.
func programCosts(feature string, ok bool) string {
	if ok {
		return ""
	}
	for prefix, costs := range map[string]string{
		"program bh_vrf_":       "tenants' host-network processes are not all kept in their network",
		"program bh_prb_":       "locked addresses and devices are refused late, by nftables",
		"program bh_grd_port":   "only nftables stops packets of host-network pods into other tenants' networks; nothing stops frames of their packet sockets",
		"program bh_grd_pod":    "host-network pods can send frames on pods' interfaces; locked interfaces receive other pods' neighbour discovery",
		"program bh_grd_from":   "pods can send router advertisements and DHCP replies to each other",
		"program bh_grd_own":    "host-network pods can forge frames to the overlay's port, and on loopback",
		"program bh_grd_send":   "pods' datagrams reach the overlay's port",
		"program bh_grd_recv":   "raw sockets of host-network pods receive packets of every network",
		"pins":                  "after a restart the agent must search for its attached programs",
		"program bh_lsm_create": "packet sockets of host-network pods receive packets of every network: drop NET_RAW from such pods",
		"program bh_lsm_setopt": "host-network pods can set socket options by 32-bit system calls that are refused otherwise: drop NET_RAW from such pods",
		"program bh_lsm_bind":   "packet sockets of host-network pods receive packets of every network: drop NET_RAW from such pods",
		"program bh_lsm_u":      "host-network pods of different tenants reach each other by abstract unix sockets",
	} {
		if strings.HasPrefix(feature, prefix) {
			return costs
		}
	}
	return ""
}

// MarksKubelet reports whether the program that marks kubelet's sockets works.
func MarksKubelet(features []Feature) bool {
	for _, f := range features {
		if f.Name == "program bh_prb_create" {
			return f.OK
		}
	}
	return false
}

// LogFeatures logs each feature.
func LogFeatures(log *slog.Logger, features []Feature) {
	for _, f := range features {
		if f.OK {
			log.Info("feature", "name", f.Name, "ok", true)
		} else {
			log.Warn("feature", "name", f.Name, "ok", false, "reason", f.Reason, "costs", f.Costs)
		}
	}
}
