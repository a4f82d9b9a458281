// SPDX-License-Identifier: Apache-2.0

package config

import (
	"github.com/spf13/pflag"

	"bulkhead/pkg/network"
)

// raw is the unparsed configuration: the sections and keys of the INI file. Every
// key is also a flag of the same name, which takes precedence over the file.
type raw struct {
	Default struct {
		ClusterSubnets    string `gcfg:"cluster-subnets"`
		ServiceCIDRs      string `gcfg:"service-cidrs"`
		JoinSubnets       string `gcfg:"join-subnets"`
		UDNJoinSubnets    string `gcfg:"udn-join-subnets"`
		TransitSubnets    string `gcfg:"transit-subnets"`
		MasqueradeSubnets string `gcfg:"masquerade-subnets"`
		UnderlayMTU       int    `gcfg:"underlay-mtu"`
		MTU               int    `gcfg:"mtu"`
		VRFTableBase      int    `gcfg:"vrf-table-base"`
		MaxNetworks       int    `gcfg:"max-networks"`
		MaxNetworksPerNS  int    `gcfg:"max-networks-per-namespace"`
		Workers           int    `gcfg:"workers"`
		IDAge             string `gcfg:"id-age"`
		AllowedServices   string `gcfg:"udn-allowed-default-services"`
		IngressNamespaces string `gcfg:"ingress-namespaces"`
		Transport         string `gcfg:"transport"`
		IsolationMode     string `gcfg:"advertised-udn-isolation-mode"`
	}
	NoOverlay struct {
		OutboundSNAT string `gcfg:"outbound-snat"`
		Routing      string `gcfg:"routing"`
	} `gcfg:"no-overlay"`
	BGPManaged struct {
		Topology     string `gcfg:"topology"`
		ASNumber     int    `gcfg:"as-number"`
		FRRNamespace string `gcfg:"frr-namespace"`
	} `gcfg:"bgp-managed"`
	Kubernetes struct {
		Kubeconfig         string  `gcfg:"kubeconfig"`
		APIServer          string  `gcfg:"apiserver"`
		QPS                float64 `gcfg:"qps"`
		Burst              int     `gcfg:"burst"`
		NodeName           string  `gcfg:"node-name"`
		HealthzBindAddress string  `gcfg:"healthz-bind-address"`
		LeaseNamespace     string  `gcfg:"lease-namespace"`
		LeaseDuration      string  `gcfg:"lease-duration"`
		LeaseRenewDeadline string  `gcfg:"lease-renew-deadline"`
	}
	OVN struct {
		NB string `gcfg:"nb-address"`
		SB string `gcfg:"sb-address"`
	}
	OVS struct {
		DB             string `gcfg:"ovsdb-address"`
		EncapIPs       string `gcfg:"encap-ips"`
		ExternalBridge string `gcfg:"external-bridge"`
		Uplink         string `gcfg:"uplink"`
		PhysicalName   string `gcfg:"physical-network"`
		GatewayMode    string `gcfg:"gateway-mode"`
	}
	CNI struct {
		Socket  string `gcfg:"cni-socket"`
		ConfDir string `gcfg:"cni-conf-dir"`
		BinDir  string `gcfg:"cni-bin-dir"`
		Source  string `gcfg:"cni-plugin"`
	}
	BPF struct {
		PinPath    string `gcfg:"bpf-pin-path"`
		CgroupRoot string `gcfg:"cgroup-root"`
	}
	Observe struct {
		Listen   string `gcfg:"listen"`
		LogLevel string `gcfg:"log-level"`
	}
}

func defaults() *raw {
	r := &raw{}
	r.Default.ClusterSubnets = "10.244.0.0/16/24"
	r.Default.ServiceCIDRs = "10.96.0.0/16"
	r.Default.JoinSubnets = "100.64.0.0/16,fd98::/64"
	r.Default.UDNJoinSubnets = "100.65.0.0/16,fd99::/64"
	r.Default.TransitSubnets = "100.88.0.0/16,fd97::/64"
	r.Default.MasqueradeSubnets = "169.254.0.0/17,fd69::/112"
	r.Default.UnderlayMTU = 1500
	r.Default.AllowedServices = "default/kubernetes,kube-system/kube-dns"
	r.Default.VRFTableBase = 100000
	r.Default.MaxNetworks = 10000
	r.Default.MaxNetworksPerNS = 100
	r.Default.Workers = 8
	r.Default.IDAge = "10m"
	r.Default.Transport = network.TransportGeneve
	r.Default.IsolationMode = "strict"
	r.BGPManaged.ASNumber = 64512
	r.BGPManaged.FRRNamespace = "frr-k8s-system"
	r.Kubernetes.QPS = 1000
	r.Kubernetes.Burst = 2000
	r.Kubernetes.HealthzBindAddress = ":10256"
	r.Kubernetes.LeaseNamespace = "bulkhead-system"
	r.Kubernetes.LeaseDuration = "15s"
	r.Kubernetes.LeaseRenewDeadline = "10s"
	r.OVN.NB = "unix:/var/run/ovn/ovnnb_db.sock"
	r.OVN.SB = "unix:/var/run/ovn/ovnsb_db.sock"
	r.OVS.DB = "unix:/var/run/openvswitch/db.sock"
	r.OVS.ExternalBridge = "br-ex"
	r.OVS.PhysicalName = "physnet"
	r.OVS.GatewayMode = "shared"
	r.CNI.Socket = "/var/run/bulkhead/cni.sock"
	r.CNI.ConfDir = "/etc/cni/net.d"
	r.CNI.BinDir = "/opt/cni/bin"
	r.CNI.Source = "/usr/bin/ovn-k8s-cni-overlay"
	r.BPF.PinPath = "/sys/fs/bpf/bulkhead"
	r.BPF.CgroupRoot = "/sys/fs/cgroup"
	r.Observe.LogLevel = "info"
	return r
}

// flags adds a flag for every key, with the current value as its default.
func (r *raw) flags(fs *pflag.FlagSet) {
	str := func(p *string, name, usage string) { fs.StringVar(p, name, *p, usage) }
	num := func(p *int, name, usage string) { fs.IntVar(p, name, *p, usage) }
	str(&r.Default.ClusterSubnets, "cluster-subnets", "subnets of the cluster default network: CIDR/host subnet length, comma-separated, one per IP family")
	str(&r.Default.ServiceCIDRs, "service-cidrs", "service CIDRs of the cluster, as configured in the API server")
	str(&r.Default.JoinSubnets, "join-subnets", "addresses of gateway routers on the cluster default network")
	str(&r.Default.UDNJoinSubnets, "udn-join-subnets", "default addresses of gateway routers on primary networks")
	str(&r.Default.TransitSubnets, "transit-subnets", "addresses of routers between nodes, used inside OVN only")
	str(&r.Default.MasqueradeSubnets, "masquerade-subnets", "node-local addresses, two per network")
	num(&r.Default.UnderlayMTU, "underlay-mtu", "MTU of the network between nodes, and default MTU of Localnet networks and of networks without an overlay")
	num(&r.Default.MTU, "mtu", "default MTU of overlay networks; 0: underlay-mtu less 100 bytes for Geneve")
	num(&r.Default.VRFTableBase, "vrf-table-base", "a network's id plus this is the routing table of its VRF")
	num(&r.Default.MaxNetworks, "max-networks", "maximum number of networks in the cluster")
	num(&r.Default.MaxNetworksPerNS, "max-networks-per-namespace", "maximum number of networks in one namespace")
	num(&r.Default.Workers, "workers", "maximum number of concurrent reconciles per controller")
	str(&r.Default.IDAge, "id-age", "minimum age of a released network, node or port id before it is allocated again, unless no other id is free")
	str(&r.Default.AllowedServices, "udn-allowed-default-services", "services of the cluster default network that pods of all primary networks reach: namespace/name, comma-separated")
	str(&r.Default.IngressNamespaces, "ingress-namespaces", "namespaces of the cluster default network whose pods reach the cluster IPs of all networks, comma-separated")
	str(&r.Default.Transport, "transport", "how packets of the cluster default network go between nodes: geneve or no-overlay; fixed at installation")
	str(&r.Default.IsolationMode, "advertised-udn-isolation-mode", "between networks that BGP advertises: strict (nodes drop packets) or loose (routers outside the cluster decide)")
	str(&r.NoOverlay.OutboundSNAT, "outbound-snat", "enabled or disabled: whether pods of a cluster default network without an overlay have the node's address outside the cluster")
	str(&r.NoOverlay.Routing, "routing", "managed or unmanaged: who configures the BGP sessions of a cluster default network without an overlay")
	str(&r.BGPManaged.Topology, "topology", "BGP sessions between nodes: full-mesh or route-reflectors; empty: none are configured")
	num(&r.BGPManaged.ASNumber, "as-number", "autonomous system number of the nodes in the managed fabric")
	str(&r.BGPManaged.FRRNamespace, "frr-namespace", "namespace of frr-k8s and its FRRConfigurations")
	str(&r.Kubernetes.Kubeconfig, "kubeconfig", "kubeconfig file; empty: the pod's service account")
	str(&r.Kubernetes.APIServer, "apiserver", "URL of the API server; overrides the kubeconfig and the service account")
	fs.Float64Var(&r.Kubernetes.QPS, "qps", r.Kubernetes.QPS, "maximum requests per second to the API server")
	num(&r.Kubernetes.Burst, "burst", "maximum burst of requests to the API server")
	str(&r.Kubernetes.NodeName, "node-name", "name of this node in the API (agent and zone)")
	str(&r.Kubernetes.HealthzBindAddress, "healthz-bind-address", "where the zone controller tells load balancers whether the node serves Services, as kube-proxy does; empty: nowhere")
	str(&r.Kubernetes.LeaseNamespace, "lease-namespace", "namespace of the leader election leases")
	str(&r.Kubernetes.LeaseDuration, "lease-duration", "how long other replicas wait for a failed leader before they take over")
	str(&r.Kubernetes.LeaseRenewDeadline, "lease-renew-deadline", "how long a leader retries to renew its lease before it stops")
	str(&r.OVN.NB, "nb-address", "OVN northbound database of this node's zone")
	str(&r.OVN.SB, "sb-address", "OVN southbound database of this node's zone")
	str(&r.OVS.DB, "ovsdb-address", "Open vSwitch database of this node")
	str(&r.OVS.EncapIPs, "encap-ips", "subnets, comma-separated: a node's addresses in them are its Geneve tunnel addresses; empty: its IPv4 address on the external bridge, or else its IPv6 address")
	str(&r.OVS.ExternalBridge, "external-bridge", "OVS bridge with the node's uplink and addresses")
	str(&r.OVS.Uplink, "uplink", "interface that the agent moves into the external bridge, which it creates if there is none; auto: that of the default route; empty: the bridge has its uplink")
	str(&r.OVS.PhysicalName, "physical-network", "name in OVN of the physical network behind the external bridge")
	str(&r.OVS.GatewayMode, "gateway-mode", "how traffic leaves the node: shared (OVN's gateway routers) or local (the kernel)")
	str(&r.CNI.Socket, "cni-socket", "unix socket that the CNI plugin calls")
	str(&r.CNI.ConfDir, "cni-conf-dir", "directory in which the container runtime reads CNI configurations")
	str(&r.CNI.BinDir, "cni-bin-dir", "directory in which the container runtime finds CNI plugins")
	str(&r.CNI.Source, "cni-plugin", "CNI plugin to install into cni-bin-dir; empty: install none")
	str(&r.BPF.PinPath, "bpf-pin-path", "directory in a bpf file system for pins of programs, links and maps")
	str(&r.BPF.CgroupRoot, "cgroup-root", "mount point of the host's cgroup v2 hierarchy")
	str(&r.Observe.Listen, "listen", "listen address of /metrics, /healthz and /readyz, such as :9409; empty: none")
	str(&r.Observe.LogLevel, "log-level", "log level: debug, info, warn or error")
}
