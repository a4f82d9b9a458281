// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
	"bulkhead/pkg/vrf"
)

// State is what /debug/state serves and bulkheadctl shows: desired against
// actual, as of the last run of each part.
type State struct {
	Node       NodeState         `json:"node"`
	Networks   []NetworkState    `json:"networks"`
	Features   []Feature         `json:"features"`
	Kubelet    KubeletState      `json:"kubelet"`
	Locked     []LockedState     `json:"locked"`
	HostPods   []HostPodState    `json:"hostPods"`
	Counters   map[string]uint64 `json:"counters"` // eBPF: reason → count
	NFT        map[string]uint64 `json:"nft"`      // named counter → packets
	Conditions []Condition       `json:"conditions"`
	Problems   []Problem         `json:"problems"`
	Ready      bool              `json:"ready"`
	NotReady   string            `json:"notReady,omitempty"`
}

// NodeState is the node itself.
type NodeState struct {
	Name        string              `json:"name"`
	ID          int                 `json:"id"`
	Chassis     string              `json:"chassis"`
	EncapIPs    []netip.Addr        `json:"encapIPs"`
	Addresses   []netip.Prefix      `json:"addresses"`
	NextHops    []netip.Addr        `json:"nextHops"`
	Bridge      string              `json:"bridge"`
	BridgeMAC   string              `json:"bridgeMAC"`
	GatewayMode network.GatewayMode `json:"gatewayMode"`
}

// States of a network on this node.
const (
	StateReady   = "Ready"
	StateWaiting = "Waiting"
	StateError   = "Error"
)

// NetworkState is one network on this node.
type NetworkState struct {
	ID                int              `json:"id"`
	Name              string           `json:"name"`
	Topology          network.Topology `json:"topology"`
	Role              network.Role     `json:"role"`
	Transport         string           `json:"transport,omitempty"`
	MTU               int              `json:"mtu"`
	Subnets           []string         `json:"subnets"`
	HostSubnets       []netip.Prefix   `json:"hostSubnets"`
	VRF               string           `json:"vrf,omitempty"`
	Table             int              `json:"table"`
	VRFIfindex        int              `json:"vrfIfindex,omitempty"`
	Mark              string           `json:"mark,omitempty"`
	ManagementPort    string           `json:"managementPort"`
	ManagementAddrs   []netip.Prefix   `json:"managementAddresses"`
	Masquerade        []netip.Addr     `json:"masquerade"`        // of the management port
	MasqueradeGateway []netip.Addr     `json:"masqueradeGateway"` // of the gateway router
	Namespaces        []string         `json:"namespaces"`
	Pods              []string         `json:"pods"`     // namespace/name, on this node
	HostPods          []string         `json:"hostPods"` // in the host's network
	State             string           `json:"state"`
	Waiting           []string         `json:"waiting,omitempty"` // links that must appear
	Error             string           `json:"error,omitempty"`
	Want              string           `json:"want,omitempty"`    // the kernel's part, one thing a line
	Have              string           `json:"have,omitempty"`    // read when asked
	Pending           []string         `json:"pending,omitempty"` // operations that would turn have into want
	LastRun           time.Time        `json:"lastRun,omitzero"`
}

// KubeletState is how kubelet is told from others.
type KubeletState struct {
	By      string   `json:"by"` // eBPF, cgroup or nothing
	Mark    string   `json:"mark,omitempty"`
	Cgroups []string `json:"cgroups,omitempty"`
	PIDs    []int    `json:"pids,omitempty"`
	Message string   `json:"message,omitempty"`
}

// LockedState is one address that only kubelet may reach.
type LockedState struct {
	Address   netip.Addr `json:"address"`
	NetworkID int        `json:"networkID"`
}

// HostPodState is a tenant's host-network pod. Its network is
// hostnet.NetworkUnknown while it cannot be told.
type HostPodState struct {
	Pod       string `json:"pod"`
	UID       string `json:"uid"`
	NetworkID int    `json:"networkID"`
	OptOut    bool   `json:"optOut,omitempty"`
	// EarlySockets were there before the pod was bound to its network.
	EarlySockets int `json:"earlySockets,omitempty"`
}

// State gathers it. deep reads the kernel for each network; else the last
// run's view is given.
func (a *Agent) State(ctx context.Context, deep bool) State {
	node := a.Node()
	pods, hostPods := a.Store.PodsByNetwork()
	st := State{
		Node: NodeState{Name: a.Config.Kubernetes.NodeName, ID: node.ID, Chassis: node.Chassis, EncapIPs: node.EncapIPs, Addresses: node.Addresses,
			NextHops: node.NextHops, Bridge: node.Bridge, BridgeMAC: node.BridgeMAC, GatewayMode: node.Mode},
		Networks: a.networkStates(pods, hostPods), Features: a.Features, Counters: map[string]uint64{}, NFT: a.nftCounters(),
		Problems: a.Problems(),
	}
	st.Conditions = []Condition{conditionOf(st.Problems)}
	for _, c := range a.ebpfCounters() {
		st.Counters[c.Reason.String()] = c.Count
	}
	for _, l := range a.Store.Locked() {
		st.Locked = append(st.Locked, LockedState{l.Addr, l.NetworkID})
	}
	early := map[string]int{}
	var kubelet hostnet.Kubelet
	if a.HostNet != nil {
		s := a.HostNet.Status()
		early, kubelet = s.EarlySockets, s.Kubelet
	}
	for _, p := range a.Store.HostPods() {
		if p.NetworkID == network.DefaultID {
			continue // no tenant's
		}
		st.HostPods = append(st.HostPods, HostPodState{Pod: p.Namespace + "/" + p.Name, UID: p.UID, NetworkID: p.NetworkID, OptOut: p.Unbound, EarlySockets: early[p.UID]})
	}
	st.Kubelet = a.kubeletState(kubelet)
	if err := a.Ready(); err != nil {
		st.NotReady = err.Error()
	} else {
		st.Ready = true
	}
	if deep {
		for i := range st.Networks {
			a.deepen(ctx, &st.Networks[i], node)
		}
	}
	return st
}

func (a *Agent) kubeletState(k hostnet.Kubelet) KubeletState {
	out := KubeletState{By: "nothing", Message: k.Message}
	for _, p := range k.Procs {
		out.PIDs = append(out.PIDs, p.PID)
		if p.Cgroup != "" {
			out.Cgroups = append(out.Cgroups, p.Cgroup)
		}
	}
	switch {
	case a.KubeletMark != 0:
		out.By, out.Mark = "eBPF", fmt.Sprintf("%#x", a.KubeletMark)
	case a.KubeletCgroup != nil:
		if g := a.KubeletCgroup(); g.Path != "" {
			out.By, out.Cgroups = "cgroup", []string{g.Path}
		}
	}
	return out
}

func (a *Agent) networkStates(pods, hostPods map[int][]string) []NetworkState {
	node := a.Node()
	plan := a.Config.Plan
	nets := append([]network.Network{a.Config.DefaultNetwork}, a.Store.Networks()...)
	a.mu.Lock()
	runs := maps.Clone(a.nets)
	a.mu.Unlock()
	out := make([]NetworkState, 0, len(nets))
	for _, n := range nets {
		s := NetworkState{ID: n.ID, Name: n.Name, Topology: n.Topology, Role: n.Role, Transport: n.Transport, MTU: n.MTU, ManagementPort: n.ManagementPort(),
			Table: vrf.MainTable, Namespaces: a.Store.Namespaces(n.Name), Pods: pods[n.ID], HostPods: hostPods[n.ID], State: StateWaiting}
		for _, x := range n.Subnets {
			s.Subnets = append(s.Subnets, x.String())
		}
		s.HostSubnets, _ = n.HostSubnets(node.ID) // why not, the run's error says
		if !n.IsDefault() {
			s.Table, s.Mark = plan.VRFTable(n), fmt.Sprintf("%#x", n.PacketMark())
			s.VRFIfindex = a.Kernel.DeviceIndex(s.Table)
			s.VRF = n.VRF()
			s.Masquerade = ofFamilies(n, plan.MasqueradeManagement(n))
			s.MasqueradeGateway = ofFamilies(n, plan.MasqueradeGateway(n))
		}
		if run, ok := runs[n.ID]; ok {
			s.LastRun, s.Waiting, s.ManagementAddrs = run.at, run.result.Waiting, run.result.Want.Port.Addrs
			if len(run.result.Want.Devices) > 0 {
				s.VRF = run.result.Want.Devices[0].Name // the fallback, where the name was taken
			}
			switch {
			case run.err != nil:
				s.State, s.Error = StateError, run.err.Error()
			case len(s.Waiting) == 0:
				s.State = StateReady
			}
		} else if node.ID == 0 {
			s.Waiting = []string{"the node's id"}
		}
		out = append(out, s)
	}
	return out
}

// deepen compares one network with the kernel now.
func (a *Agent) deepen(ctx context.Context, s *NetworkState, node network.Node) {
	a.mu.Lock()
	run, ok := a.nets[s.ID]
	a.mu.Unlock()
	if !ok {
		return
	}
	have, err := a.Kernel.Read(ctx, vrf.OwnerOf(run.net, node, a.Config.Plan))
	if err != nil {
		s.Have = "cannot be read: " + err.Error()
		return
	}
	want := run.result.Want
	s.Want, s.Have = want.String(), have.String()
	for _, op := range vrf.Diff(want, have) {
		s.Pending = append(s.Pending, op.String())
	}
}

func ofFamilies(n network.Network, ps []netip.Prefix) []netip.Addr {
	v4, v6 := n.Families()
	var out []netip.Addr
	for _, p := range ps {
		if p.Addr().Is4() && v4 || p.Addr().Is6() && v6 {
			out = append(out, p.Addr())
		}
	}
	return slices.Clip(out)
}

// ebpfCounters are empty where there is no eBPF.
func (a *Agent) ebpfCounters() []loader.Counter {
	if a.Counters == nil {
		return nil
	}
	c, err := a.Counters()
	if err != nil {
		a.Log.Debug("eBPF counters", "error", err)
	}
	return c
}

// nftCounters costs a run of nft, so that what was read is given again for a while.
func (a *Agent) nftCounters() map[string]uint64 {
	if a.Firewall == nil || !a.nft.made.Load() {
		return map[string]uint64{}
	}
	a.nft.Lock()
	defer a.nft.Unlock()
	if a.Now().Sub(a.nft.at) < 10*time.Second && a.nft.counters != nil {
		return maps.Clone(a.nft.counters)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := a.Firewall.Counters(ctx)
	if err != nil {
		a.Log.Debug("nft counters", "error", err)
		return map[string]uint64{}
	}
	a.nft.counters, a.nft.at = c, a.Now()
	return maps.Clone(c)
}
