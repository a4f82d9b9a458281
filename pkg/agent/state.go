// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"bulkhead/pkg/config"
	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
	"bulkhead/pkg/vrf"
)

// State is what /debug/state serves and bulkheadctl shows: desired and actual
// state as of the last reconcile of each part.
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

// NodeState is the state of the node.
type NodeState struct {
	Name        string              `json:"name"`
	ID          int                 `json:"id"`
	Chassis     string              `json:"chassis"`
	EncapIPs    []netip.Addr        `json:"encapIPs"`
	Addresses   []netip.Prefix      `json:"addresses"`
	NextHops    []netip.Addr        `json:"nextHops"`
	Bridge      string              `json:"bridge"`
	BridgeMAC   string              `json:"bridgeMAC"`
	MTU         int                 `json:"mtu"` // of the bridge
	GatewayMode network.GatewayMode `json:"gatewayMode"`
}

// States of a network on this node. StateNoSubnet is that of a network whose subnets have none for
// this node: its author chose them, and its status reports that.
const (
	StateReady    = "Ready"
	StateWaiting  = "Waiting"
	StateError    = "Error"
	StateNoSubnet = "NoSubnet"
)

// NetworkState is the state of a network on this node.
type NetworkState struct {
	ID                int              `json:"id"`
	Name              string           `json:"name"`
	Topology          network.Topology `json:"topology"`
	Role              network.Role     `json:"role"`
	Transport         string           `json:"transport,omitempty"`
	AdvertisedVRFs    string           `json:"advertisedVRFs,omitempty"`
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
	HostPods          []string         `json:"hostPods"` // host-network pods
	State             string           `json:"state"`
	Waiting           []string         `json:"waiting,omitempty"` // links that do not exist yet
	Error             string           `json:"error,omitempty"`
	Want              string           `json:"want,omitempty"`    // desired kernel state, one object per line
	Have              string           `json:"have,omitempty"`    // actual kernel state, read for the request
	Pending           []string         `json:"pending,omitempty"` // operations from have to want
	LastRun           time.Time        `json:"lastRun,omitzero"`
}

// KubeletState is how the node recognises kubelet.
type KubeletState struct {
	By      string   `json:"by"` // eBPF, cgroup or nothing
	Mark    string   `json:"mark,omitempty"`
	Cgroups []string `json:"cgroups,omitempty"`
	PIDs    []int    `json:"pids,omitempty"`
	Message string   `json:"message,omitempty"`
}

// LockedState is an address that only kubelet may reach.
type LockedState struct {
	Address   netip.Addr `json:"address"`
	NetworkID int        `json:"networkID"`
	Open      []string   `json:"open,omitempty"` // ports that the cluster default network reaches, such as tcp/80
}

// HostPodState is a tenant's host-network pod. NetworkID is
// hostnet.NetworkUnknown while the network is unknown.
type HostPodState struct {
	Pod       string `json:"pod"`
	UID       string `json:"uid"`
	NetworkID int    `json:"networkID"`
	OptOut    bool   `json:"optOut,omitempty"`
	// EarlySockets are sockets older than the pod's binding to its network.
	EarlySockets int `json:"earlySockets,omitempty"`
}

// stateReader reads the agent's state.
type stateReader struct {
	config        config.Config
	cache         *Cache
	kernel        Kernel
	hostNet       HostNet // nil: no eBPF
	node          *nodeReconciler
	networks      *networkReconciler
	reporter      *reporter
	counters      *counters
	firstSync     *firstSync
	kubeletMark   uint32
	kubeletCgroup func() firewall.Cgroup
}

// read reads the state. deep also reads the kernel for each network; otherwise
// the networks' states are those of their last reconcile.
func (r *stateReader) read(ctx context.Context, deep bool) State {
	node := r.node.Node()
	pods, hostPods := r.cache.PodsByNetwork()
	st := State{
		Node: NodeState{Name: r.config.Kubernetes.NodeName, ID: node.ID, Chassis: node.Chassis, EncapIPs: node.EncapIPs, Addresses: node.Addresses,
			NextHops: node.NextHops, Bridge: node.Bridge, BridgeMAC: node.BridgeMAC, MTU: node.MTU, GatewayMode: node.Mode},
		Networks: r.networkStates(pods, hostPods), Features: r.reporter.features(), Counters: map[string]uint64{}, NFT: r.counters.nftCounters(),
		Problems: r.reporter.problems(),
	}
	st.Conditions = []Condition{condition(st.Problems)}
	for _, c := range r.counters.ebpfCounters() {
		st.Counters[c.Reason.String()] = c.Count
	}
	for _, l := range r.cache.Locked() {
		x := LockedState{Address: l.Addr, NetworkID: l.NetworkID}
		for _, p := range l.Open {
			x.Open = append(x.Open, p.String())
		}
		st.Locked = append(st.Locked, x)
	}
	var host hostnet.Status
	if r.hostNet != nil {
		host = r.hostNet.Status()
	}
	for _, p := range r.cache.HostPods() {
		if p.NetworkID == network.DefaultID {
			continue // not a tenant's
		}
		st.HostPods = append(st.HostPods, HostPodState{Pod: p.Namespace + "/" + p.Name, UID: p.UID, NetworkID: p.NetworkID, OptOut: p.Unbound, EarlySockets: host.EarlySockets[p.UID]})
	}
	st.Kubelet = r.kubeletState(host.Kubelet)
	if err := r.firstSync.Ready(); err != nil {
		st.NotReady = err.Error()
	} else {
		st.Ready = true
	}
	if deep {
		for i := range st.Networks {
			r.readKernel(ctx, &st.Networks[i], node)
		}
	}
	return st
}

func (r *stateReader) kubeletState(k hostnet.Kubelet) KubeletState {
	out := KubeletState{By: "nothing", Message: k.Message}
	for _, p := range k.Procs {
		out.PIDs = append(out.PIDs, p.PID)
		if p.Cgroup != "" {
			out.Cgroups = append(out.Cgroups, p.Cgroup)
		}
	}
	switch {
	case r.kubeletMark != 0:
		out.By, out.Mark = "eBPF", fmt.Sprintf("%#x", r.kubeletMark)
	case r.kubeletCgroup != nil:
		if g := r.kubeletCgroup(); g.Path != "" {
			out.By, out.Cgroups = "cgroup", []string{g.Path}
		}
	}
	return out
}

func (r *stateReader) networkStates(pods, hostPods map[int][]string) []NetworkState {
	node := r.node.Node()
	plan := r.config.Plan
	nets := append([]network.Network{r.config.DefaultNetwork}, r.cache.Networks()...)
	last := r.networks.results()
	out := make([]NetworkState, 0, len(nets))
	for _, n := range nets {
		s := NetworkState{ID: n.ID, Name: n.Name, Topology: n.Topology, Role: n.Role, Transport: n.Transport, AdvertisedVRFs: n.AdvertisedVRFs, MTU: n.MTU, ManagementPort: n.ManagementPort(),
			Table: vrf.MainTable, Namespaces: r.cache.Namespaces(n.Name), Pods: pods[n.ID], HostPods: hostPods[n.ID], State: StateWaiting}
		for _, x := range n.Subnets {
			s.Subnets = append(s.Subnets, x.String())
		}
		var noSubnet error
		s.HostSubnets, noSubnet = n.HostSubnets(node.ID)
		if !n.IsDefault() {
			s.Table, s.Mark = plan.VRFTable(n), fmt.Sprintf("%#x", n.PacketMark())
			s.VRFIfindex = r.kernel.DeviceIndex(s.Table)
			s.VRF = n.VRF()
			s.Masquerade = ofFamilies(n, plan.MasqueradeManagement(n))
			s.MasqueradeGateway = ofFamilies(n, plan.MasqueradeGateway(n))
		}
		if result, ok := last[n.ID]; ok {
			s.LastRun, s.Waiting, s.ManagementAddrs = result.at, result.kernel.Waiting, result.kernel.Want.Port.Addrs
			if len(result.kernel.Want.Devices) > 0 {
				s.VRF = result.kernel.Want.Devices[0].Name // the fallback name if the other is taken
			}
			switch {
			case result.err != nil:
				s.State, s.Error = StateError, result.err.Error()
			case len(s.Waiting) == 0:
				s.State = StateReady
			}
		} else if node.ID == 0 {
			s.Waiting = []string{"the node's id"}
		} else if !r.node.known() {
			s.Waiting = []string{"the node's facts"}
		} else if noSubnet != nil {
			s.State, s.Error = StateNoSubnet, noSubnet.Error()
		}
		out = append(out, s)
	}
	return out
}

// readKernel compares a network's desired state with the kernel.
func (r *stateReader) readKernel(ctx context.Context, s *NetworkState, node network.Node) {
	result, ok := r.networks.results()[s.ID]
	if !ok {
		return
	}
	have, err := r.kernel.Read(ctx, vrf.OwnerOf(result.network, node, r.config.Plan))
	if err != nil {
		s.Have = "cannot be read: " + err.Error()
		return
	}
	want := result.kernel.Want
	s.Want, s.Have = want.String(), have.String()
	for _, op := range vrf.Diff(want, have) {
		s.Pending = append(s.Pending, op.String())
	}
}

// ofFamilies are the addresses whose IP family the network has.
func ofFamilies(n network.Network, ps []netip.Prefix) []netip.Addr {
	v4, v6 := n.Families()
	var out []netip.Addr
	for _, p := range network.FilterFamilies(ps, v4, v6) {
		out = append(out, p.Addr())
	}
	return slices.Clip(out)
}
