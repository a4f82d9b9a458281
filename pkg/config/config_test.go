// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"bulkhead/pkg/network"
)

func TestLoadPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bulkhead.conf")
	if err := os.WriteFile(file, []byte("[default]\nmtu=1300\nvrf-table-base=5000\n[ovs]\ngateway-mode=local\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load("agent", []string{"--config", file, "--mtu=1350"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Plan.ClusterMTU != 1350 || c.Plan.VRFTableBase != 5000 || c.OVS.GatewayMode != "local" {
		t.Errorf("flag over file over default: mtu %d, table base %d, mode %s", c.Plan.ClusterMTU, c.Plan.VRFTableBase, c.OVS.GatewayMode)
	}
	if c.DefaultNetwork.MTU != 1350 || len(c.DefaultNetwork.JoinSubnets) != 1 {
		t.Errorf("default network: %+v", c.DefaultNetwork)
	}
}

func TestDualStackDefaultNetwork(t *testing.T) {
	c, err := Load("agent", []string{"--cluster-subnets=10.244.0.0/16/24,fd10:244::/48/64", "--service-cidrs=10.96.0.0/16,fd10:96::/112"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := c.DefaultNetwork; len(n.Subnets) != 2 || len(n.JoinSubnets) != 2 || len(n.Transit) != 2 {
		t.Errorf("%+v", n)
	}
}

func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		ini  string
		args []string
		want string
	}{
		"unknown key":     {ini: "[default]\nmtuu=1\n", want: "mtuu"},
		"unknown section": {ini: "[defalt]\nmtu=1\n", want: "defalt"},
		"bad number":      {ini: "[default]\nmtu=big\n", want: "big"},
		"bad CIDR":        {args: []string{"--service-cidrs=10.96.0.0"}, want: "service-cidrs"},
		"overlap":         {args: []string{"--service-cidrs=10.244.0.0/20"}, want: "overlaps"},
		"two subnets":     {args: []string{"--cluster-subnets=10.244.0.0/16/24,10.245.0.0/16/24"}, want: "[default] cluster-subnets: 10.244.0.0/16 and 10.245.0.0/16 have the same IP family: keep one of them"},
		"too small":       {args: []string{"--join-subnets=100.64.0.0/21"}, want: "join-subnets 100.64.0.0/21 is too small for 4094 nodes: use a prefix of length 20 or shorter"},
		"two IPv4 CIDRs":  {args: []string{"--join-subnets=100.64.0.0/16,100.66.0.0/16"}, want: "100.64.0.0/16 and 100.66.0.0/16 have the same IP family"},
		"unknown flag":    {args: []string{"--mtuu=1"}, want: "mtuu"},
		"argument":        {args: []string{"start"}, want: `"start"`},
		"mode":            {args: []string{"--gateway-mode=both"}, want: "gateway-mode"},
		"uplink":          {args: []string{"--uplink=eth0,eth1"}, want: "uplink"},
		"bridge's uplink": {args: []string{"--uplink=br-ex"}, want: "is the external bridge"},
		"encap":           {args: []string{"--encap-ips=node1"}, want: "encap-ips"},
		"log level":       {args: []string{"--log-level=loud"}, want: "log-level"},
		"limit":           {args: []string{"--max-networks=0"}, want: "max-networks"},
		"qps":             {args: []string{"--qps=0"}, want: "qps"},
		"lease":           {args: []string{"--lease-duration=5s"}, want: "lease-renew-deadline"},
		"transport":       {args: []string{"--transport=vxlan"}, want: "geneve or no-overlay"},
		"no SNAT option":  {ini: "[default]\ntransport=no-overlay\n[no-overlay]\nrouting=unmanaged\n", want: "[no-overlay] outbound-snat"},
		"no routing":      {ini: "[default]\ntransport=no-overlay\n[no-overlay]\noutbound-snat=enabled\n", want: "[no-overlay] routing"},
		"no topology":     {args: []string{"--transport=no-overlay", "--outbound-snat=enabled", "--routing=managed"}, want: "[bgp-managed] topology"},
		"topology":        {ini: "[bgp-managed]\ntopology=ring\n", want: "full-mesh or route-reflectors"},
		"overlay's SNAT":  {args: []string{"--outbound-snat=enabled"}, want: "[no-overlay] outbound-snat"},
		"AS number":       {args: []string{"--as-number=0"}, want: "as-number"},
		"FRR's namespace": {args: []string{"--frr-namespace=a/b"}, want: "frr-namespace"},
		"isolation":       {args: []string{"--advertised-udn-isolation-mode=none"}, want: "strict or loose"},
		"ingress":         {args: []string{"--ingress-namespaces=edge,a/b"}, want: "ingress-namespaces: \"a/b\" is not the name of a namespace"},
		"no file":         {args: []string{"--config=/nonexistent/x.conf"}, want: "/nonexistent/x.conf"},
		"no file name":    {args: []string{"--config"}, want: "--config"},
	} {
		t.Run(name, func(t *testing.T) {
			args := tt.args
			if tt.ini != "" {
				file := filepath.Join(t.TempDir(), "x.conf")
				if err := os.WriteFile(file, []byte(tt.ini), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--config="+file)
			}
			if _, err := Load("agent", args, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestNoOverlayDefaultNetwork(t *testing.T) {
	c, err := Parse("[default]\ntransport=no-overlay\n[no-overlay]\noutbound-snat=enabled\nrouting=managed\n[bgp-managed]\ntopology=full-mesh\nas-number=64514\n")
	if err != nil {
		t.Fatal(err)
	}
	if n := c.DefaultNetwork; n.Transport != network.TransportNoOverlay || n.OutboundSNAT != "enabled" {
		t.Errorf("default network: %+v", n)
	}
	if want := (BGP{ManagedDefault: true, Topology: FullMesh, ASN: 64514, FRRNamespace: "frr-k8s-system"}); c.BGP != want {
		t.Errorf("got %+v, want %+v", c.BGP, want)
	}
	if c, err = Parse("[default]\ningress-namespaces = edge, gates,edge,\n"); err != nil || !slices.Equal(c.IngressNamespaces, []string{"edge", "gates"}) {
		t.Errorf("ingress namespaces: %q, %v", c.IngressNamespaces, err)
	}
	if c, err = Parse(""); err != nil || c.DefaultNetwork.Transport != "" || c.BGP.ManagedDefault || c.BGP.LooseIsolation {
		t.Errorf("without settings: %+v, %v", c.BGP, err)
	}
}

// Every key of the file is also a flag with the same name.
func TestEveryKeyIsAFlag(t *testing.T) {
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	r := defaults()
	r.flags(fs)
	sections := map[string][]string{
		"default": {"cluster-subnets", "mtu", "workers"}, "kubernetes": {"qps", "node-name"}, "ovn": {"nb-address"},
		"no-overlay":  {"outbound-snat", "routing"},
		"bgp-managed": {"topology", "as-number", "frr-namespace"}, "ovs": {"encap-ips"}, "cni": {"cni-socket"}, "bpf": {"bpf-pin-path"}, "observe": {"listen"},
	}
	for section, keys := range sections {
		for _, key := range keys {
			f := fs.Lookup(key)
			if f == nil {
				t.Errorf("[%s] %s has no flag", section, key)
				continue
			}
			if err := defaults().readINI("[" + section + "]\n" + key + "=" + f.DefValue + "\n"); f.DefValue != "" && err != nil {
				t.Errorf("[%s] %s: %v", section, key, err)
			}
		}
	}
}

func TestHelp(t *testing.T) {
	if _, err := Load("agent", []string{"--check-config"}, nil); !errors.Is(err, ErrChecked) {
		t.Errorf("--check-config with the defaults: %v", err)
	}
	if _, err := Load("agent", []string{"--check-config", "--mtu=1"}, nil); err == nil || errors.Is(err, ErrChecked) || !strings.Contains(err.Error(), "mtu") {
		t.Errorf("--check-config with a wrong value: %v", err)
	}
	if _, err := Load("agent", []string{"--help"}, nil); !errors.Is(err, ErrHelp) {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("[default]\nmtu=1400\n")
	f.Add("[ovs]\nencap-ips=192.0.2.1,2001:db8::1\n[kubernetes]\nqps=5\n")
	f.Fuzz(func(t *testing.T, ini string) {
		if c, err := Parse(ini); err == nil {
			if err := c.Plan.Validate(); err != nil {
				t.Errorf("accepted an invalid plan: %v", err)
			}
		}
	})
}

// docs/configuration.md lists every key.
func TestDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	defaults().flags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(string(doc), "`"+f.Name+"`") {
			t.Errorf("docs/configuration.md does not name %s", f.Name)
		}
	})
}

// TestMTU: the overlay's default MTU follows from the underlay's.
func TestMTU(t *testing.T) {
	const noOverlay = "transport=no-overlay\n[no-overlay]\noutbound-snat=enabled\nrouting=unmanaged\n"
	for ini, want := range map[string][3]int{ // of the underlay, of overlays, of the cluster default network
		"":                            {1500, 1400, 1400},
		"underlay-mtu=9000\n":         {9000, 8900, 8900},
		"mtu=1300\n":                  {1500, 1300, 1300},
		noOverlay:                     {1500, 1400, 1500},
		"mtu=1300\n" + noOverlay:      {1500, 1300, 1300},
		"underlay-mtu=1280\nmtu=1100": {1280, 1100, 1100},
	} {
		c, err := Parse("[default]\n" + ini)
		if err != nil {
			t.Errorf("%q: %v", ini, err)
			continue
		}
		if got := [3]int{c.Plan.UnderlayMTU, c.Plan.ClusterMTU, c.DefaultNetwork.MTU}; got != want {
			t.Errorf("%q: %v, want %v", ini, got, want)
		}
	}
	if _, err := Parse("[default]\nunderlay-mtu=1450\nmtu=1400\n"); err == nil || !strings.Contains(err.Error(), "underlay-mtu 1450") {
		t.Errorf("an MTU that the underlay does not carry: %v", err)
	}
}
