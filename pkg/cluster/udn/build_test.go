// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func testPlan(t testing.TB) network.Plan {
	t.Helper()
	cfg, err := config.Parse("")
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Plan
}

func layer3(mtu int32, join []udnv1.CIDR, subnets ...udnv1.Layer3Subnet) *udnv1.Layer3Config {
	return &udnv1.Layer3Config{Role: udnv1.NetworkRolePrimary, MTU: mtu, Subnets: subnets, JoinSubnets: join}
}

func udnRequest(l *udnv1.Layer3Config) *Request {
	return FromUDN(&udnv1.UserDefinedNetwork{
		ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "db-network", UID: "uid-1", Generation: 3,
			Labels:      map[string]string{"team": "red"},
			Annotations: map[string]string{"note": "kept", "k8s.ovn.org/secret": "dropped", "kubectl.kubernetes.io/x": "dropped"}},
		Spec: udnv1.UserDefinedNetworkSpec{Topology: udnv1.NetworkTopologyLayer3, Layer3: l},
	})
}

func cudnRequest(l *udnv1.Layer3Config) *Request {
	return cudnOf(udnv1.NetworkSpec{Topology: udnv1.NetworkTopologyLayer3, Layer3: l})
}

func cudnOf(n udnv1.NetworkSpec) *Request {
	return FromCUDN(&udnv1.ClusterUserDefinedNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "shared", UID: "uid-1", Generation: 3, Labels: map[string]string{"advertise": "yes"}},
		Spec:       udnv1.ClusterUserDefinedNetworkSpec{Network: n},
	})
}

func layer2Request(l *udnv1.Layer2Config) *Request {
	return FromUDN(&udnv1.UserDefinedNetwork{
		ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "db-network", UID: "uid-1", Generation: 3},
		Spec:       udnv1.UserDefinedNetworkSpec{Topology: udnv1.NetworkTopologyLayer2, Layer2: l},
	})
}

func localnetRequest(l *udnv1.LocalnetConfig) *Request {
	l.Role = udnv1.NetworkRoleSecondary
	return cudnOf(udnv1.NetworkSpec{Topology: udnv1.NetworkTopologyLocalnet, Localnet: l})
}

func noOverlayRequest() *Request {
	return cudnOf(udnv1.NetworkSpec{
		Topology: udnv1.NetworkTopologyLayer3, Transport: udnv1.TransportOptionNoOverlay,
		Layer3:           layer3(1500, nil, udnv1.Layer3Subnet{CIDR: "10.10.0.0/16", HostSubnet: 24}),
		NoOverlayOptions: &udnv1.NoOverlayOptions{OutboundSNAT: udnv1.SNATDisabled, Routing: udnv1.RoutingUnmanaged},
	})
}

func secondary(l *udnv1.Layer3Config) *udnv1.Layer3Config {
	l.Role = udnv1.NetworkRoleSecondary
	return l
}

// inputs returns the inputs of a request without problems, unless it is invalid.
func inputs(t testing.TB, r *Request, namespaces ...string) Inputs {
	t.Helper()
	conf, _, err := r.NetConf(testPlan(t))
	in := Inputs{Owner: r.Owner, Request: r, Conf: conf, ID: 7, Users: map[string][]string{}}
	if err != nil {
		in.Invalid = err.Error()
	}
	for _, n := range namespaces {
		in.Namespaces = append(in.Namespaces, Namespace{Name: n, Labeled: true})
	}
	return in
}

// The rendered NADs.
func TestRenderGolden(t *testing.T) {
	v4, v6 := udnv1.Layer3Subnet{CIDR: "10.100.0.0/16", HostSubnet: 24}, udnv1.Layer3Subnet{CIDR: "fd10:1::/48", HostSubnet: 64}
	for name, r := range map[string]*Request{
		"udn-ipv4":            udnRequest(layer3(0, nil, v4)),
		"udn-dual-stack":      udnRequest(layer3(1300, []udnv1.CIDR{"100.70.0.0/16", "fd70::/64"}, v4, v6)),
		"udn-default-lengths": udnRequest(layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.100.0.0/16"}, udnv1.Layer3Subnet{CIDR: "fd10::/48"})),
		"udn-host-bits":       udnRequest(layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.100.7.9/16"})),
		"udn-small":           udnRequest(layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.100.0.0/28"})),
		"udn-appended":        udnRequest(layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.100.0.0/24", HostSubnet: 26}, udnv1.Layer3Subnet{CIDR: "10.200.0.0/24", HostSubnet: 26})),
		"cudn-ipv6":           cudnRequest(layer3(0, nil, v6)),
		"cudn-two-namespaces": cudnRequest(layer3(1300, nil, v4)),
		"layer3-secondary":    udnRequest(secondary(layer3(0, nil, v4))),
		"layer2-primary":      layer2Request(&udnv1.Layer2Config{Role: udnv1.NetworkRolePrimary, Subnets: udnv1.DualStackCIDRs{"10.100.0.0/16", "fd10:1::/64"}}),
		"layer2-preconfigured": layer2Request(&udnv1.Layer2Config{Role: udnv1.NetworkRolePrimary, MTU: 1300, Subnets: udnv1.DualStackCIDRs{"10.100.0.0/16"},
			ReservedSubnets: []udnv1.CIDR{"10.100.1.0/24", "10.100.2.0/24"}, InfrastructureSubnets: []udnv1.CIDR{"10.100.0.0/30"},
			DefaultGatewayIPs: udnv1.DualStackIPs{"10.100.0.2"}, JoinSubnets: udnv1.DualStackCIDRs{"100.70.0.0/16"},
			IPAM: &udnv1.IPAMConfig{Lifecycle: udnv1.IPAMLifecyclePersistent}}),
		"layer2-secondary":      layer2Request(&udnv1.Layer2Config{Role: udnv1.NetworkRoleSecondary, Subnets: udnv1.DualStackCIDRs{"fd10:1::/64"}}),
		"layer2-ipam-disabled":  layer2Request(&udnv1.Layer2Config{Role: udnv1.NetworkRoleSecondary, IPAM: &udnv1.IPAMConfig{Mode: udnv1.IPAMDisabled}}),
		"localnet":              localnetRequest(&udnv1.LocalnetConfig{PhysicalNetworkName: "tenantblue", Subnets: udnv1.DualStackCIDRs{"192.168.100.0/24", "2001:dbb::/64"}, ExcludeSubnets: []udnv1.CIDR{"192.168.100.1/32", "2001:dbb::0/128"}}),
		"localnet-vlan-persist": localnetRequest(&udnv1.LocalnetConfig{PhysicalNetworkName: "tenantblue", Subnets: udnv1.DualStackCIDRs{"192.168.0.0/16", "2001:dbb::/64"}, ExcludeSubnets: []udnv1.CIDR{"192.168.50.0/24"}, MTU: 9000, VLAN: &udnv1.VLANConfig{Mode: "Access", Access: &udnv1.AccessVLANConfig{ID: 200}}, IPAM: &udnv1.IPAMConfig{Lifecycle: udnv1.IPAMLifecyclePersistent}}),
		"localnet-ipam-off":     localnetRequest(&udnv1.LocalnetConfig{PhysicalNetworkName: "tenantblue", IPAM: &udnv1.IPAMConfig{Mode: udnv1.IPAMDisabled}}),
		"no-overlay":            noOverlayRequest(),
	} {
		t.Run(name, func(t *testing.T) {
			namespaces := []string{"red"}
			if strings.Contains(name, "two") {
				namespaces = append(namespaces, "blue")
			}
			in := inputs(t, r, namespaces...)
			want, problems := Build(in, State{Owner: r.Owner})
			if len(problems) > 0 {
				t.Fatalf("problems: %v", problems)
			}
			got, err := json.MarshalIndent(want.NADs, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(golden) {
				t.Errorf("differs from %s (run with -update if intended):\n%s", file, got)
			}
			for _, nad := range want.NADs { // zones parse the rendered NADs
				conf, err := network.ParseNetConf(nad.Config)
				if err != nil {
					t.Fatalf("parse the rendered NAD: %v", err)
				}
				if _, err := conf.Network(in.ID, testPlan(t)); err != nil {
					t.Errorf("the rendered network is invalid: %v", err)
				}
			}
		})
	}
}

// The operations and problems for each combination of a namespace's state.
func TestBuildNamespace(t *testing.T) {
	ours := func(phase Phase) *NAD {
		return &NAD{Namespace: "red", Name: "db-network", Phase: phase, OwnerUID: "uid-1", Finalizer: true, UID: "n"}
	}
	kept := ours(Terminating)
	kept.Finalizer, kept.OtherFinalizers = false, []string{"example.com/mine"}
	stale := ours(Present)
	stale.OwnerUID = "uid-0"
	r := func() *Request {
		return udnRequest(layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.100.0.0/16"}))
	}
	deleting := r()
	deleting.Deleting = true
	for _, c := range []struct {
		name    string
		req     *Request
		ns      *Namespace
		have    *NAD
		users   []string
		invalid string
		want    string // operations
		problem string
	}{
		{name: "new", req: r(), ns: &Namespace{Labeled: true}, want: "add finalizer, create"},
		{name: "exists", req: r(), ns: &Namespace{Labeled: true}, have: ours(Present), want: "add finalizer, repair"},
		{name: "no label", req: r(), ns: &Namespace{}, problem: "lacks the label"},
		{name: "no label, secondary", req: udnRequest(secondary(layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.100.0.0/16"}))), ns: &Namespace{}, want: "add finalizer, create"},
		{name: "label lost", req: r(), ns: &Namespace{}, have: ours(Present), want: "add finalizer, delete", problem: "lacks the label"},
		{name: "foreign", req: r(), ns: &Namespace{Labeled: true, Foreign: "foreign NAD"}, problem: "foreign NAD"},
		{name: "other primary", req: r(), ns: &Namespace{Labeled: true, Primary: "net1"}, problem: "primary network already exist in namespace red: net1"},
		{name: "other primary came later", req: r(), ns: &Namespace{Labeled: true, Primary: "net1"}, have: ours(Present), want: "add finalizer, repair", problem: "already exist"},
		{name: "namespace full", req: r(), ns: &Namespace{Labeled: true, Full: true}, problem: "maximum number of networks"},
		{name: "namespace full, exists", req: r(), ns: &Namespace{Labeled: true, Full: true}, have: ours(Present), want: "add finalizer, repair"},
		{name: "deselected", req: r(), have: ours(Present), want: "add finalizer, delete"},
		{name: "deselected, terminating", req: r(), have: ours(Terminating), want: "release"},
		{name: "deselected in use", req: r(), have: ours(Present), users: []string{"red/p"}, want: "add finalizer, repair", problem: "in use by the following pods: [red/p]"},
		{name: "owner deleted", req: deleting, ns: &Namespace{Labeled: true}, have: ours(Present), want: "add finalizer, delete"},
		{name: "owner deleted in use", req: deleting, have: ours(Present), users: []string{"red/p"}, want: "add finalizer, delete", problem: "in use"},
		{name: "owner deleted, terminating, in use", req: deleting, have: ours(Terminating), users: []string{"red/p"}, want: "add finalizer", problem: "in use"},
		{name: "owner deleted, terminating", req: deleting, have: ours(Terminating), want: "release"},
		{name: "no owner", have: ours(Present), want: "delete"},
		{name: "no owner, terminating", have: ours(Terminating), want: "release"},
		{name: "no owner, in use", have: ours(Terminating), users: []string{"red/p"}, problem: "in use"},
		{name: "deleted by hand", req: r(), ns: &Namespace{Labeled: true}, have: ours(Terminating), want: "release", problem: "was deleted"},
		{name: "kept by others", req: r(), ns: &Namespace{Labeled: true}, have: kept, problem: "these finalizers of other programs are removed: example.com/mine"},
		{name: "deleted by hand in use", req: r(), ns: &Namespace{Labeled: true}, have: ours(Terminating), users: []string{"red/p"}, want: "add finalizer, repair", problem: "was deleted"},
		{name: "of a former owner", req: r(), ns: &Namespace{Labeled: true}, have: stale, want: "add finalizer, delete", problem: "of a deleted UserDefinedNetwork"},
		{name: "invalid", req: r(), ns: &Namespace{Labeled: true}, invalid: "bad subnet", problem: "bad subnet"},
		{name: "became invalid", req: r(), ns: &Namespace{Labeled: true}, have: ours(Present), invalid: "bad subnet", want: "add finalizer", problem: "bad subnet"},
		{name: "selector became invalid", req: r(), have: ours(Present), invalid: "bad selector", want: "add finalizer", problem: "bad selector"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := Inputs{Owner: Owner{"red", "db-network"}, Users: map[string][]string{"red": c.users}}
			if c.req != nil {
				in = inputs(t, c.req)
				in.Users = map[string][]string{"red": c.users}
			}
			in.Invalid = c.invalid
			if c.ns != nil {
				c.ns.Name = "red"
				in.Namespaces = []Namespace{*c.ns}
			}
			have := State{Owner: in.Owner, NADs: map[string]NAD{}}
			if c.have != nil {
				have.NADs["red"] = *c.have
			}
			want, problems := Build(in, have)
			var ops []string
			for _, op := range Diff(want, have) {
				ops = append(ops, strings.TrimSuffix(strings.TrimSuffix(string(op.Kind), " to"), " from"))
			}
			if got := strings.Join(ops, ", "); got != c.want {
				t.Errorf("operations %q, want %q", got, c.want)
			}
			var texts []string
			for _, p := range problems {
				texts = append(texts, p.String())
			}
			if got := strings.Join(texts, "; "); !strings.Contains(got, c.problem) || (got == "") != (c.problem == "") {
				t.Errorf("problems %q, want %q", got, c.problem)
			}
		})
	}
}

// The NADs of a network that is being deleted, or is invalid, still say whether it is advertised.
func TestAdvertisedUntilTheEnd(t *testing.T) {
	deleting := udnRequest(layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.100.0.0/16"}))
	deleting.Deleting = true
	invalid := udnRequest(layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.100.0.0/16"}))
	for name, c := range map[string]struct {
		req     *Request
		invalid string
		uid     string
		want    string
	}{
		"being deleted":      {deleting, "", string(deleting.UID), ""},
		"invalid":            {invalid, "bad subnet", string(invalid.UID), ""},
		"of a former owner":  {deleting, "", "former", "default"},
		"without its object": {nil, "", "former", ""},
	} {
		for _, phase := range []Phase{Present, Terminating} {
			in := Inputs{Owner: deleting.Owner}
			if c.req != nil {
				in = inputs(t, c.req)
			}
			in.Users, in.Invalid, in.VRFs = map[string][]string{"red": {"red/p"}}, c.invalid, new("")
			nad := NAD{Namespace: "red", Name: deleting.Name, OwnerUID: types.UID(c.uid), Phase: phase, Finalizer: true, Annotations: map[string]string{network.AnnotationAdvertisedVRFs: "default"}}
			want, _ := Build(in, State{Owner: in.Owner, NADs: map[string]NAD{"red": nad}})
			if got, there := want.NADs["red"].Annotations[network.AnnotationAdvertisedVRFs]; !there || got != c.want {
				t.Errorf("%s, phase %v: advertised into %q, %t, want %q", name, phase, got, there, c.want)
			}
			if nad.Annotations[network.AnnotationAdvertisedVRFs] != "default" {
				t.Errorf("%s: the actual state is changed", name)
			}
		}
	}
}

// The owner of a secondary network holds no namespace, unless the NAD of a primary one of that name remains.
func TestHasPrimary(t *testing.T) {
	nad := func(r *Request) NAD {
		in := inputs(t, r)
		in.Namespaces = []Namespace{{Name: "red", Labeled: true}}
		want, _ := Build(in, State{Owner: in.Owner, NADs: map[string]NAD{}})
		return want.NADs["red"]
	}
	subnet := udnv1.Layer3Subnet{CIDR: "10.100.0.0/16"}
	for name, c := range map[string]struct {
		nads map[string]NAD
		want bool
	}{
		"primary":    {map[string]NAD{"red": nad(udnRequest(layer3(0, nil, subnet)))}, true},
		"secondary":  {map[string]NAD{"red": nad(udnRequest(secondary(layer3(0, nil, subnet))))}, false},
		"unreadable": {map[string]NAD{"red": {Config: "{"}}, true},
		"elsewhere":  {map[string]NAD{"blue": nad(udnRequest(layer3(0, nil, subnet)))}, false},
	} {
		if got := (State{NADs: c.nads}).hasPrimary("red"); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// Requests that only NetConf rejects, not the API: errors name the field and the
// remedy.
func TestNetConfInvalid(t *testing.T) {
	for _, c := range []struct {
		name string
		l    *udnv1.Layer3Config
		want string
	}{
		{"nothing", nil, "spec.layer3 is missing"},
		{"no subnets", layer3(0, nil), "subnets is empty"},
		{"no CIDR", layer3(0, nil, udnv1.Layer3Subnet{CIDR: "ten"}), "is not a CIDR"},
		{"mapped", layer3(0, nil, udnv1.Layer3Subnet{CIDR: "::ffff:10.1.0.0/112"}), "is not a CIDR"},
		{"host subnet wide", layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.1.0.0/16", HostSubnet: 8}), "host subnet length"},
		{"host subnet negative", layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.1.0.0/16", HostSubnet: -8}), "host subnet length"},
		{"host subnet narrow", layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.1.0.0/16", HostSubnet: 31}), "host subnet length"},
		{"overlap beyond 100", layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.1.0.0/16"}, udnv1.Layer3Subnet{CIDR: "10.1.2.0/24"}), "overlaps"},
		{"mtu", layer3(100, nil, udnv1.Layer3Subnet{CIDR: "10.1.0.0/16"}), "mtu 100"},
		{"mtu IPv6", layer3(1000, nil, udnv1.Layer3Subnet{CIDR: "fd10::/48"}), "mtu 1000"},
		{"join", layer3(0, []udnv1.CIDR{"x"}, udnv1.Layer3Subnet{CIDR: "10.1.0.0/16"}), "joinSubnets"},
		{"join small", layer3(0, []udnv1.CIDR{"100.70.0.0/29"}, udnv1.Layer3Subnet{CIDR: "10.1.0.0/16"}), "too small"},
		{"cluster's", layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.0.0.0/8"}), "cluster-subnets"},
		{"multicast", layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.1.0.0/16"}, udnv1.Layer3Subnet{CIDR: "ff05::/48"}), "subnets: ff05::/48 contains multicast addresses"},
		{"loopback", layer3(0, nil, udnv1.Layer3Subnet{CIDR: "127.1.0.0/16"}), "subnets: 127.1.0.0/16 contains loopback addresses"},
		{"link-local", layer3(0, nil, udnv1.Layer3Subnet{CIDR: "169.254.0.0/20"}), "which nodes use themselves (masquerade-subnets): choose another range"},
		{"unspecified", layer3(0, nil, udnv1.Layer3Subnet{CIDR: "::/48"}), "subnets: ::/48 contains unspecified addresses"},
		{"join multicast", layer3(0, []udnv1.CIDR{"224.1.0.0/16"}, udnv1.Layer3Subnet{CIDR: "10.1.0.0/16"}), "joinSubnet: 224.1.0.0/16 contains multicast addresses"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := udnRequest(c.l).NetConf(testPlan(t))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestNetConfInvalid for the other topologies.
func TestNetConfInvalidLayer2AndLocalnet(t *testing.T) {
	primary := func(change func(*udnv1.Layer2Config)) *Request {
		l := &udnv1.Layer2Config{Role: udnv1.NetworkRolePrimary, Subnets: udnv1.DualStackCIDRs{"10.1.0.0/16"}}
		change(l)
		return layer2Request(l)
	}
	blue := func(change func(*udnv1.LocalnetConfig)) *Request {
		l := &udnv1.LocalnetConfig{PhysicalNetworkName: "blue", Subnets: udnv1.DualStackCIDRs{"10.1.0.0/16"}}
		change(l)
		return localnetRequest(l)
	}
	noOptions := noOverlayRequest()
	noOptions.NoOverlay = nil
	for _, c := range []struct {
		name string
		r    *Request
		want string
	}{
		{"nothing", layer2Request(nil), "spec.layer2 is missing"},
		{"no options", noOptions, "noOverlayOptions is missing"},
		{"no CIDR", primary(func(l *udnv1.Layer2Config) { l.Subnets = udnv1.DualStackCIDRs{"ten"} }), "subnets"},
		{"reserved no CIDR", primary(func(l *udnv1.Layer2Config) { l.ReservedSubnets = []udnv1.CIDR{"ten"} }), "reservedSubnets"},
		{"infrastructure no CIDR", primary(func(l *udnv1.Layer2Config) { l.InfrastructureSubnets = []udnv1.CIDR{"ten"} }), "infrastructureSubnets"},
		{"gateway no address", primary(func(l *udnv1.Layer2Config) { l.DefaultGatewayIPs = udnv1.DualStackIPs{"ten"} }), "defaultGatewayIPs"},
		{"cluster's", primary(func(l *udnv1.Layer2Config) { l.Subnets = udnv1.DualStackCIDRs{"10.96.0.0/16"} }), "service-cidrs"},
		{"excludes outside", blue(func(l *udnv1.LocalnetConfig) { l.ExcludeSubnets = []udnv1.CIDR{"10.2.0.0/24"} }), "excludeSubnets"},
		{"excludes no CIDR", blue(func(l *udnv1.LocalnetConfig) { l.ExcludeSubnets = []udnv1.CIDR{"ten"} }), "excludeSubnets"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := c.r.NetConf(testPlan(t))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// The no-overlay proposal's cases of the condition TransportAccepted.
func TestTransportAccepted(t *testing.T) {
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	for _, c := range []struct {
		name    string
		r       *Request
		by      []Advertisement
		status  metav1.ConditionStatus
		reason  string
		message string
	}{
		{"geneve", cudnRequest(layer3(0, nil)), nil, metav1.ConditionTrue, "GeneveTransportAccepted", "Geneve transport has been configured."},
		{"missing", noOverlayRequest(), nil, metav1.ConditionFalse, "NoOverlayRouteAdvertisementsIsMissing", "No RouteAdvertisements CR is advertising the pod networks."},
		{"not accepted", noOverlayRequest(), []Advertisement{{"blue", no}, {"red", no}}, metav1.ConditionFalse,
			"NoOverlayRouteAdvertisementsNotAccepted", "RouteAdvertisements CR blue advertises the pod subnets, but its status is not accepted."},
		{"one accepted", noOverlayRequest(), []Advertisement{{"blue", no}, {"red", yes}}, metav1.ConditionTrue,
			"NoOverlayTransportAccepted", "Transport has been configured as 'no-overlay'."},
		{"one accepted, one not judged", noOverlayRequest(), []Advertisement{{"blue", unknown}, {"red", yes}}, metav1.ConditionTrue,
			"NoOverlayTransportAccepted", "Transport has been configured as 'no-overlay'."},
		{"not judged", noOverlayRequest(), []Advertisement{{"blue", no}, {"red", unknown}}, metav1.ConditionUnknown,
			"NoOverlayRouteAdvertisementsPending", "RouteAdvertisements CR red advertises the pod subnets, and it is not known yet whether it is accepted."},
	} {
		got := c.r.transportAccepted(Inputs{Advertised: c.by})
		if got.Status != c.status || got.Reason != c.reason || got.Message != c.message || got.ObservedGeneration != 3 {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// Managed routing without a managed fabric has a reason of its own.
func TestNoManagedFabric(t *testing.T) {
	got := noOverlayRequest().transportAccepted(Inputs{NoFabric: true, Advertised: []Advertisement{{"blue", metav1.ConditionTrue}}})
	if got.Status != metav1.ConditionFalse || got.Reason != "NoOverlayManagedRoutingNotConfigured" || !strings.Contains(got.Message, "[bgp-managed] topology") {
		t.Errorf("%+v", got)
	}
}

// Which RouteAdvertisements advertise a network's pods.
func TestAdvertises(t *testing.T) {
	yes := udnv1.NetworkSelector{NetworkSelectionType: udnv1.ClusterUserDefinedNetworks, ClusterUserDefinedNetworkSelector: &udnv1.ClusterUserDefinedNetworkSelector{
		NetworkSelector: metav1.LabelSelector{MatchLabels: map[string]string{"advertise": "yes"}}}}
	no, singular := *yes.DeepCopy(), *yes.DeepCopy()
	singular.NetworkSelectionType = udnv1.ClusterUserDefinedNetworksSingular
	no.ClusterUserDefinedNetworkSelector.NetworkSelector.MatchLabels["advertise"] = "no"
	pods, egress := []udnv1.AdvertisementType{udnv1.PodNetwork}, []udnv1.AdvertisementType{udnv1.EgressIP}
	for _, c := range []struct {
		name string
		spec udnv1.RouteAdvertisementsSpec
		want bool
	}{
		{"selected", udnv1.RouteAdvertisementsSpec{Advertisements: pods, NetworkSelectors: []udnv1.NetworkSelector{yes}}, true},
		{"second selector", udnv1.RouteAdvertisementsSpec{Advertisements: pods, NetworkSelectors: []udnv1.NetworkSelector{{NetworkSelectionType: udnv1.DefaultNetwork}, yes}}, true},
		{"the proposal's spelling", udnv1.RouteAdvertisementsSpec{Advertisements: pods, NetworkSelectors: []udnv1.NetworkSelector{singular}}, true},
		{"other labels", udnv1.RouteAdvertisementsSpec{Advertisements: pods, NetworkSelectors: []udnv1.NetworkSelector{no}}, false},
		{"default network", udnv1.RouteAdvertisementsSpec{Advertisements: pods, NetworkSelectors: []udnv1.NetworkSelector{{NetworkSelectionType: udnv1.DefaultNetwork}}}, false},
		{"egress addresses only", udnv1.RouteAdvertisementsSpec{Advertisements: egress, NetworkSelectors: []udnv1.NetworkSelector{yes}}, false},
	} {
		if got := advertises(&udnv1.RouteAdvertisements{Spec: c.spec}, noOverlayRequest().Labels); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Conditions stay within the API's limit, however many namespaces a network has.
func TestMessageLimit(t *testing.T) {
	names := make([]string, 5000)
	for i := range names {
		names[i] = strings.Repeat("n", 60)
	}
	in := inputs(t, cudnRequest(layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.1.0.0/16"})))
	want := State{Owner: in.Owner, NADs: map[string]NAD{}}
	var problems []Problem
	for i, n := range names {
		want.NADs[n+string(rune('0'+i))] = NAD{}
		problems = append(problems, Problem{n, "some reason"})
	}
	deleting := in
	deleting.Request = noOverlayRequest()
	deleting.Request.Deleting = true
	var all []metav1.Condition
	all = append(all, Conditions(in, want, problems, nil)...)
	all = append(all, Conditions(in, want, nil, nil)...)
	all = append(all, Conditions(deleting, want, problems, nil)...)
	if len(all) != 7 {
		t.Fatalf("%d conditions", len(all))
	}
	for _, c := range all {
		if len(c.Message) > 32768 {
			t.Errorf("%s has a message of %d bytes", c.Type, len(c.Message))
		}
	}
}

// Only the first few nodes without a subnet are named: of a thousand nodes that are
// added one by one, most do not change a network's status.
func TestNodesWithoutSubnetIsStable(t *testing.T) {
	n, messages := nodeIDs{}, map[string]int{}
	for id := uint64(1); id <= 1000; id++ {
		n.byID = append(n.byID, nodeID{id, fmt.Sprint("node-", id)})
		got, err := n.withoutSubnet(t.Context(), nil, 20)
		if err != nil {
			t.Fatal(err)
		}
		if (id > 20) != (len(got.First) > 0) {
			t.Errorf("%d nodes, capacity 20: %+v", id, got)
		}
		messages[got.String()]++
	}
	if len(messages) > maxNamed+2 {
		t.Errorf("1000 nodes made %d different messages, want %d at most", len(messages), maxNamed+2)
	}
	if got, want := messages["[node-21, node-22, node-23, node-24, node-25] and others"], 975; got != want {
		t.Errorf("the last message was the same for %d nodes, want %d: %v", got, want, messages)
	}
}

// The judgement of a former generation of a RouteAdvertisements does not count.
func TestAcceptedGeneration(t *testing.T) {
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	for _, c := range []struct {
		name              string
		status            metav1.ConditionStatus
		current, observed int64
		want              metav1.ConditionStatus
	}{
		{"current", yes, 2, 2, yes}, {"former", yes, 2, 1, unknown}, {"former, not accepted", no, 2, 1, unknown},
		{"not accepted", no, 2, 2, no}, {"no generation", yes, 2, 0, unknown},
		{"no generation, object never changed", yes, 1, 0, yes},
	} {
		ra := &udnv1.RouteAdvertisements{ObjectMeta: metav1.ObjectMeta{Generation: c.current}}
		ra.Status.Conditions = []metav1.Condition{{Type: udnv1.ConditionAccepted, Status: c.status, ObservedGeneration: c.observed}}
		if got := accepted(ra); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := accepted(&udnv1.RouteAdvertisements{}); got != unknown {
		t.Errorf("without a condition: %v", got)
	}
}

// Nothing is said of a UserDefinedNetwork whose namespace is not in the cache.
func TestUnknownNamespace(t *testing.T) {
	in := inputs(t, udnRequest(layer3(0, nil, udnv1.Layer3Subnet{CIDR: "10.100.0.0/16"})))
	in.Namespaces = nil
	if !in.unknownNamespace(State{}) {
		t.Error("a new network: its status would be written")
	}
	if in.unknownNamespace(State{NADs: map[string]NAD{"red": {}}}) {
		t.Error("a network whose namespace is being deleted and whose NAD is in use has no status")
	}
	in.Namespaces = []Namespace{{Name: "red", Labeled: true}}
	if in.unknownNamespace(State{}) {
		t.Error("a network of a known namespace has no status")
	}
}
