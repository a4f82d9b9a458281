// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// state is what bulkheadctl shows of agent.State. Fields that the agent lacks
// are empty, so that bulkheadctl works with older and newer agents.
type state struct {
	Node struct {
		Name, Chassis, Bridge, BridgeMAC, GatewayMode string
		ID, MTU                                       int
		EncapIPs, Addresses, NextHops                 []string
	}
	Ready    bool
	NotReady string
	Networks []struct {
		ID                                         int
		Name, Topology, Role, VRF, ManagementPort  string
		Transport, AdvertisedVRFs                  string
		HostSubnets                                []string
		Table                                      int
		Subnets, ManagementAddresses, Masquerade   []string
		MasqueradeGateway, Pods, HostPods, Waiting []string
		State, Error                               string
	}
	Features []struct {
		Name, Reason, Costs string
		OK                  bool
	}
	Kubelet struct {
		By, Mark, Message string
		Cgroups           []string
		PIDs              []int
	}
	Locked     []struct{ Address string }
	HostPods   []hostPod
	Counters   map[string]uint64
	NFT        map[string]uint64
	Conditions []struct{ Type, Status, Reason, Message string }
	Problems   []struct{ Reason, Message string }
}

// hostPod is a tenant's host-network pod.
type hostPod struct {
	Pod       string
	NetworkID int
	OptOut    bool
}

// hostPodKinds says how many pods are not in their network, and why.
func hostPodKinds(list []hostPod) string {
	var unknown, out int
	for _, p := range list {
		switch {
		case p.OptOut:
			out++
		case p.NetworkID < 0: // hostnet.NetworkUnknown
			unknown++
		}
	}
	if unknown+out == 0 {
		return ""
	}
	return fmt.Sprintf(": %d in their networks, %d whose network is not known, %d that opted out of VRF binding", len(list)-unknown-out, unknown, out)
}

// list joins items; "-" if there are none.
func list(items []string) string { return cmp.Or(strings.Join(items, ","), "-") }

func writeNetworks(out io.Writer, st state) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tNETWORK\tTOPOLOGY\tROLE\tSUBNETS\tVRF\tTABLE\tPORT\tADDRESSES\tMASQUERADE\tPODS\tSTATE")
	for _, n := range st.Networks {
		condition := n.State
		switch {
		case n.Error != "":
			condition += ": " + n.Error
		case len(n.Waiting) > 0:
			condition += " for " + strings.Join(n.Waiting, ", ")
		}
		pods := fmt.Sprint(len(n.Pods))
		if len(n.HostPods) > 0 {
			pods += fmt.Sprintf("+%d host", len(n.HostPods))
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", n.ID, n.Name, n.Topology, n.Role, list(n.Subnets), cmp.Or(n.VRF, "-"), n.Table,
			n.ManagementPort, list(n.ManagementAddresses), list(append(slices.Clone(n.MasqueradeGateway), n.Masquerade...)), pods, condition)
	}
	return w.Flush()
}

func writeStatus(out io.Writer, st state) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	ready := "ready"
	if !st.Ready {
		ready = "not ready: " + st.NotReady
	}
	fmt.Fprintf(w, "Node\t%s, id %d, %s\n", st.Node.Name, st.Node.ID, ready)
	fmt.Fprintf(w, "Chassis\t%s, tunnels at %s\n", cmp.Or(st.Node.Chassis, "-"), list(st.Node.EncapIPs))
	fmt.Fprintf(w, "Gateway\t%s, %s %s, MTU %d, %s, next hops %s\n", st.Node.GatewayMode, st.Node.Bridge, st.Node.BridgeMAC, st.Node.MTU, list(st.Node.Addresses), list(st.Node.NextHops))
	states := map[string]int{}
	for _, n := range st.Networks {
		states[n.State]++
	}
	fmt.Fprintf(w, "Networks\t%d: %s\n", len(st.Networks), tally(states))
	kubelet := st.Kubelet.Message
	if kubelet == "" {
		kubelet = fmt.Sprintf("known by %s, pids %v, cgroups %s", st.Kubelet.By, st.Kubelet.PIDs, list(st.Kubelet.Cgroups))
	}
	fmt.Fprintf(w, "Kubelet\t%s\n", kubelet)
	fmt.Fprintf(w, "Probes only\t%d addresses\n", len(st.Locked))
	fmt.Fprintf(w, "Host pods\t%d of tenants%s\n", len(st.HostPods), hostPodKinds(st.HostPods))
	for _, f := range st.Features {
		verdict := "yes"
		if !f.OK {
			verdict = "NO: " + f.Reason
			if f.Costs != "" {
				verdict += " (" + f.Costs + ")"
			}
		}
		fmt.Fprintf(w, "Feature\t%s: %s\n", f.Name, verdict)
	}
	writeCounters(w, "eBPF", st.Counters)
	writeCounters(w, "nftables", st.NFT)
	for _, c := range st.Conditions {
		fmt.Fprintf(w, "Condition\t%s %s %s %s\n", c.Type, c.Status, c.Reason, c.Message)
	}
	for _, p := range st.Problems {
		fmt.Fprintf(w, "Problem\t%s: %s\n", p.Reason, p.Message)
	}
	return w.Flush()
}

// writeCounters writes the counters that are not zero.
func writeCounters(w io.Writer, source string, counters map[string]uint64) {
	names := make([]string, 0, len(counters))
	for name, n := range counters {
		if n > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(w, "Counter\t%s %s: %d\n", source, name, counters[name])
	}
}

// tally renders counts by name.
func tally(counts map[string]int) string {
	var parts []string
	for name, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, name))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
