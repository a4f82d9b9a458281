// SPDX-License-Identifier: Apache-2.0

// Package config reads the configuration from an INI file and flags and checks
// it. There is no global configuration: main passes it to the other packages.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"gopkg.in/gcfg.v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"bulkhead/pkg/network"
)

// Config is the configuration of a process. Each process uses some of the fields;
// all of them are checked.
type Config struct {
	Plan             network.Plan
	MaxNetworks      int
	MaxNetworksPerNS int
	Workers          int
	IDAge            time.Duration
	AllowedServices  []string // of the default network, for all: namespace/name, sorted
	// IngressNamespaces are those of the default network whose pods reach all networks' services.
	IngressNamespaces []string
	Kubernetes        Kubernetes
	NBAddress         string
	SBAddress         string
	OVS               OVS
	CNI               CNI
	BPFPinPath        string
	CgroupRoot        string
	Listen            string
	LogLevel          slog.Level
	DefaultNetwork    network.Network // the cluster default network
	BGP               BGP
}

// BGP configures route advertisements.
type BGP struct {
	LooseIsolation bool // nodes leave packets between advertised networks to the fabric
	// ManagedDefault: the managed fabric carries the cluster default network.
	ManagedDefault bool
	// Topology of the managed fabric: FullMesh, RouteReflectors or "".
	Topology     string
	ASN          uint32
	FRRNamespace string
}

// Topologies of the managed fabric.
const (
	FullMesh        = "full-mesh"
	RouteReflectors = "route-reflectors"
)

// Kubernetes configures the API client, the node's name, and leader election.
type Kubernetes struct {
	Kubeconfig, APIServer string
	QPS                   float32
	Burst                 int
	NodeName              string
	HealthzBindAddress    string
	LeaseNamespace        string
	LeaseDuration         time.Duration
	LeaseRenewDeadline    time.Duration
}

// OVS configures the node's Open vSwitch.
type OVS struct {
	DBAddress       string
	Encap           []netip.Prefix // of the tunnel addresses; empty: see ovs.BuildNode
	ExternalBridge  string
	Uplink          string // an interface, or UplinkAuto; "": the bridge has its uplink
	PhysicalNetwork string
	GatewayMode     network.GatewayMode
}

// UplinkAuto is the value of OVS.Uplink for the interface of the default route.
const UplinkAuto = "auto"

// CNI configures the paths of the CNI plugin and its configuration.
type CNI struct {
	Socket, ConfDir, BinDir, Plugin string
}

// ErrHelp is returned after printing help for --help.
var ErrHelp = pflag.ErrHelp

// ErrChecked is returned for --check-config if the configuration is correct.
var ErrChecked = errors.New("the configuration is correct")

// Load reads the configuration from arguments (without the program's name) and
// from the file that --config names. extra adds the flags of one process. Errors
// name the section and key, or the flag, and the remedy.
func Load(program string, args []string, extra func(*pflag.FlagSet)) (Config, error) {
	r := defaults()
	file, err := configFile(args)
	if err != nil {
		return Config{}, err
	}
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return Config{}, fmt.Errorf("read configuration file: %w", err)
		}
		if err := r.readINI(string(b)); err != nil {
			return Config{}, fmt.Errorf("configuration file %s: %w", file, err)
		}
	}
	fs := pflag.NewFlagSet(program, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.String("config", file, "INI file; each of the flags below is also a key in it")
	check := fs.Bool("check-config", false, "check the configuration, and exit; not a key")
	if extra != nil {
		extra(fs)
	}
	r.flags(fs)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return Config{}, ErrHelp
		}
		return Config{}, fmt.Errorf("%w (see %s --help)", err, program)
	}
	if fs.NArg() > 0 {
		return Config{}, fmt.Errorf("unexpected argument %q (see %s --help)", fs.Arg(0), program)
	}
	c, err := r.build()
	if err == nil && *check {
		return Config{}, ErrChecked
	}
	return c, err
}

// configFile finds --config before the other flags are parsed, because their
// defaults come from the file.
func configFile(args []string) (string, error) {
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, "--config="); ok {
			return v, nil
		}
		if a == "--config" {
			if i+1 == len(args) {
				return "", errors.New("--config needs a file name")
			}
			return args[i+1], nil
		}
	}
	return "", nil
}

// readINI parses INI text. Unknown sections and keys are errors.
func (r *raw) readINI(text string) error { return gcfg.ReadStringInto(r, text) }

// Parse reads the configuration from INI text.
func Parse(text string) (Config, error) {
	r := defaults()
	if err := r.readINI(text); err != nil {
		return Config{}, err
	}
	return r.build()
}

func (r *raw) build() (Config, error) {
	c := Config{
		MaxNetworks: r.Default.MaxNetworks, MaxNetworksPerNS: r.Default.MaxNetworksPerNS, Workers: r.Default.Workers,
		Kubernetes: Kubernetes{
			Kubeconfig: r.Kubernetes.Kubeconfig, APIServer: r.Kubernetes.APIServer,
			QPS: float32(r.Kubernetes.QPS), Burst: r.Kubernetes.Burst,
			NodeName: r.Kubernetes.NodeName, HealthzBindAddress: r.Kubernetes.HealthzBindAddress, LeaseNamespace: r.Kubernetes.LeaseNamespace,
		},
		NBAddress: r.OVN.NB, SBAddress: r.OVN.SB,
		OVS: OVS{DBAddress: r.OVS.DB, ExternalBridge: r.OVS.ExternalBridge, Uplink: r.OVS.Uplink, PhysicalNetwork: r.OVS.PhysicalName,
			GatewayMode: network.GatewayMode(r.OVS.GatewayMode)},
		CNI:        CNI{Socket: r.CNI.Socket, ConfDir: r.CNI.ConfDir, BinDir: r.CNI.BinDir, Plugin: r.CNI.Source},
		BPFPinPath: r.BPF.PinPath, CgroupRoot: r.BPF.CgroupRoot, Listen: r.Observe.Listen,
	}
	var errs []error
	fail := func(section, key string, err error) {
		errs = append(errs, fmt.Errorf("[%s] %s: %w", section, key, err))
	}
	var err error
	p := &c.Plan
	if p.ClusterSubnets, err = network.ParseSubnets(r.Default.ClusterSubnets, network.Layer3); err != nil {
		fail("default", "cluster-subnets", err)
	} else if first, second, ok := network.DuplicateFamily(network.Network{Subnets: p.ClusterSubnets}.CIDRs()); ok {
		fail("default", "cluster-subnets", fmt.Errorf("%s and %s have the same IP family: keep one of them", first, second))
	}
	for _, l := range []struct {
		key, raw string
		out      *[]netip.Prefix
	}{
		{"service-cidrs", r.Default.ServiceCIDRs, &p.ServiceCIDRs}, {"join-subnets", r.Default.JoinSubnets, &p.Join},
		{"udn-join-subnets", r.Default.UDNJoinSubnets, &p.UDNJoin}, {"transit-subnets", r.Default.TransitSubnets, &p.Transit},
		{"masquerade-subnets", r.Default.MasqueradeSubnets, &p.Masquerade},
	} {
		if *l.out, err = network.ParseCIDRs(l.raw); err != nil {
			fail("default", l.key, err)
		} else if first, second, ok := network.DuplicateFamily(*l.out); ok {
			fail("default", l.key, fmt.Errorf("%s and %s have the same IP family: keep one of them", first, second))
		}
	}
	p.VRFTableBase, p.UnderlayMTU, p.ClusterMTU = r.Default.VRFTableBase, r.Default.UnderlayMTU, r.Default.MTU
	if p.ClusterMTU == 0 {
		p.ClusterMTU = p.UnderlayMTU - network.GeneveOverhead
	}
	if len(errs) == 0 {
		if err := p.Validate(); err != nil {
			fail("default", "address plan", err)
		}
	}
	for _, n := range []struct {
		key    string
		v, max int
	}{{"max-networks", c.MaxNetworks, network.MaxID}, {"max-networks-per-namespace", c.MaxNetworksPerNS, network.MaxID}, {"workers", c.Workers, 256}} {
		if n.v < 1 || n.v > n.max {
			fail("default", n.key, fmt.Errorf("%d is outside 1..%d", n.v, n.max))
		}
	}
	if c.IDAge, err = time.ParseDuration(r.Default.IDAge); err != nil {
		fail("default", "id-age", err)
	} else if c.IDAge < 0 {
		fail("default", "id-age", fmt.Errorf("%s is negative", c.IDAge))
	}
	if c.AllowedServices, err = parseServices(r.Default.AllowedServices); err != nil {
		fail("default", "udn-allowed-default-services", err)
	}
	if c.IngressNamespaces, err = parseNamespaces(r.Default.IngressNamespaces); err != nil {
		fail("default", "ingress-namespaces", err)
	}
	if c.Kubernetes.QPS <= 0 || c.Kubernetes.Burst < 1 {
		fail("kubernetes", "qps, burst", errors.New("must be above 0"))
	}
	if c.Kubernetes.LeaseDuration, err = time.ParseDuration(r.Kubernetes.LeaseDuration); err != nil {
		fail("kubernetes", "lease-duration", err)
	}
	if c.Kubernetes.LeaseRenewDeadline, err = time.ParseDuration(r.Kubernetes.LeaseRenewDeadline); err != nil {
		fail("kubernetes", "lease-renew-deadline", err)
	} else if c.Kubernetes.LeaseRenewDeadline >= c.Kubernetes.LeaseDuration {
		fail("kubernetes", "lease-renew-deadline", errors.New("must be shorter than lease-duration"))
	}
	for _, a := range strings.Split(r.OVS.EncapIPs, ",") {
		if a = strings.TrimSpace(a); a == "" {
			continue
		}
		p, err := netip.ParsePrefix(a)
		if ip, addrErr := netip.ParseAddr(a); addrErr == nil {
			p, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil || p != p.Masked() {
			fail("ovs", "encap-ips", fmt.Errorf("%q is neither a subnet nor an IP address", a))
			continue
		}
		c.OVS.Encap = append(c.OVS.Encap, p)
	}
	switch u := c.OVS.Uplink; {
	case u == "":
	case len(u) > 15 || strings.ContainsAny(u, "/ ,:"):
		fail("ovs", "uplink", fmt.Errorf("%q is not the name of an interface: use one, or %s", u, UplinkAuto))
	case u == c.OVS.ExternalBridge:
		fail("ovs", "uplink", fmt.Errorf("%q is the external bridge: use the physical interface that is to be its port, or %s", u, UplinkAuto))
	}
	if m := c.OVS.GatewayMode; m != network.SharedGateway && m != network.LocalGateway {
		fail("ovs", "gateway-mode", fmt.Errorf("%q is unknown: use shared or local", m))
	}
	if err := c.LogLevel.UnmarshalText([]byte(r.Observe.LogLevel)); err != nil {
		fail("observe", "log-level", fmt.Errorf("%q is unknown: use debug, info, warn or error", r.Observe.LogLevel))
	}
	c.DefaultNetwork = defaultNetwork(c.Plan)
	r.buildBGP(&c, fail)
	return c, errors.Join(errs...)
}

// parseNamespaces parses a list of namespaces, "name,name".
func parseNamespaces(text string) ([]string, error) {
	var out []string
	for _, name := range strings.Split(text, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if reasons := validation.IsDNS1123Label(name); len(reasons) > 0 {
			return nil, fmt.Errorf("%q is not the name of a namespace: %s", name, strings.Join(reasons, "; "))
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// parseServices parses a list of services, "namespace/name,namespace/name".
func parseServices(text string) ([]string, error) {
	var out []string
	for _, s := range strings.Split(text, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		if namespace, name, ok := strings.Cut(s, "/"); !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1035Label(name)) > 0 {
			return nil, fmt.Errorf("%q is not a service: use namespace/name", s)
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func defaultNetwork(p network.Plan) network.Network {
	n := network.Network{
		ID: network.DefaultID, Name: network.DefaultName, Topology: network.Layer3, Role: network.RolePrimary,
		MTU: p.ClusterMTU, Subnets: p.ClusterSubnets,
	}
	v4, v6 := n.Families()
	n.JoinSubnets, n.Transit = network.FilterFamilies(p.Join, v4, v6), network.FilterFamilies(p.Transit, v4, v6)
	return n
}
