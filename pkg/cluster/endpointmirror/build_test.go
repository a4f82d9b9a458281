// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// testPlan is that of a dual-stack cluster.
var testPlan = func() network.Plan {
	cfg, err := config.Parse("[default]\ncluster-subnets = 10.244.0.0/16/24,fd10:244::/48/64\nservice-cidrs = 10.96.0.0/16,fd10:96::/112\n")
	if err != nil {
		panic(err)
	}
	return cfg.Plan
}()

func tenant(name string, cidrs ...string) *network.Network {
	n := &network.Network{ID: 7, Name: name, Topology: network.Layer3, Role: network.RolePrimary, Transit: testPlan.Transit,
		JoinSubnets: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd99::/64")}}
	for _, c := range cidrs {
		p := netip.MustParsePrefix(c)
		n.Subnets = append(n.Subnets, network.Subnet{CIDR: p, HostLen: network.DefaultHostLen(p)})
	}
	return n
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func endpoint(pod string, addresses ...string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: addresses}
	if pod != "" {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "red", Name: pod, UID: types.UID("uid-" + pod)}
	}
	return e
}

func ptr[T any](v T) *T { return &v }

// sourceSlice returns a slice of Service red/web as Kubernetes creates it.
func sourceSlice(family discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "web-x7k2p", UID: "uid-source", Labels: map[string]string{
			discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
		}},
		AddressType: family, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: ptr("http"), Protocol: ptr(corev1.ProtocolTCP), Port: ptr(int32(8080))}},
	}
}

func pods() map[PodRef]Pod {
	return map[PodRef]Pod{
		{"red", "a"}:       {UID: "uid-a", Addresses: addrs("10.20.1.5", "fd20:0:0:1::5")},
		{"red", "b"}:       {UID: "uid-b", Addresses: addrs("10.20.2.5", "fd20:0:0:2::5")},
		{"red", "host"}:    {UID: "uid-host", HostNetwork: true},
		{"red", "waiting"}: {UID: "uid-waiting"},
		{"red", "forged"}:  {UID: "uid-forged", Addresses: addrs("10.244.9.9", "fd10:244::9")},
	}
}

func inputs(s *discoveryv1.EndpointSlice, n *network.Network) Inputs {
	return Inputs{
		Source: Source{"red", "web-x7k2p"}, Slice: s, Network: n, Plan: testPlan, Pods: pods(),
		ByAddress: map[netip.Addr]Pod{netip.MustParseAddr("10.244.1.5"): pods()[PodRef{"red", "a"}]},
	}
}

// have returns an actual state with another mirror.
func have() State {
	return State{Source: Source{"red", "web-x7k2p"}, Mirrors: map[string]Mirror{"old": {Namespace: "red", Name: "old"}}}
}

// The addresses of an endpoint in the mirror.
func TestAddresses(t *testing.T) {
	v4, v6 := discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	dual, only4, only6 := tenant("n", "10.20.0.0/16", "fd20::/48"), tenant("n", "10.20.0.0/16"), tenant("n", "fd20::/48")
	deleted := endpoint("a", "10.244.1.5")
	deleted.TargetRef.UID = "uid-of-deleted-a"
	anyUID := endpoint("a", "10.244.1.5")
	anyUID.TargetRef.UID = ""
	noNamespace := endpoint("a", "10.244.1.5")
	noNamespace.TargetRef.Namespace = ""
	elsewhere := endpoint("a", "10.244.1.5")
	elsewhere.TargetRef.Namespace = "blue"
	node := endpoint("", "192.168.7.1")
	node.TargetRef = &corev1.ObjectReference{Kind: "Node", Name: "n1"}
	for name, tt := range map[string]struct {
		network  *network.Network
		family   discoveryv1.AddressType
		endpoint discoveryv1.Endpoint
		want     string // addresses, space-separated
	}{
		"pod":                               {dual, v4, endpoint("a", "10.244.1.5"), "10.20.1.5"},
		"pod, IPv6":                         {dual, v6, endpoint("a", "fd10:244:0:1::5"), "fd20:0:0:1::5"},
		"pod, network without IPv6":         {only4, v6, endpoint("a", "fd10:244:0:1::5"), ""},
		"pod, network without IPv4":         {only6, v4, endpoint("a", "10.244.1.5"), ""},
		"pod, IPv6 only":                    {only6, v6, endpoint("a", "fd10:244:0:1::5"), "fd20:0:0:1::5"},
		"pod without addresses yet":         {dual, v4, endpoint("waiting", "10.244.1.8"), ""},
		"unknown pod":                       {dual, v4, endpoint("unknown", "10.244.1.8"), ""},
		"deleted pod of the same name":      {dual, v4, deleted, ""},
		"pod without uid":                   {dual, v4, anyUID, "10.20.1.5"},
		"pod without namespace":             {dual, v4, noNamespace, "10.20.1.5"},
		"pod of another namespace":          {dual, v4, elsewhere, ""},
		"pod, address outside network":      {dual, v4, endpoint("forged", "10.244.1.8"), ""},
		"pod, two addresses":                {dual, v4, endpoint("a", "10.244.1.5", "10.244.1.6"), "10.20.1.5"},
		"host network":                      {dual, v4, endpoint("host", "192.168.7.1"), "192.168.7.1"},
		"host network, IPv6":                {dual, v6, endpoint("host", "2001:db8::1"), "2001:db8::1"},
		"host network, IPv4 network":        {only4, v6, endpoint("host", "2001:db8::1"), ""},
		"host network, pod address":         {dual, v4, endpoint("host", "10.244.3.3"), ""},
		"custom, on the network":            {dual, v4, endpoint("", "10.20.200.1"), "10.20.200.1"},
		"custom, outside":                   {dual, v4, endpoint("", "203.0.113.9"), "203.0.113.9"},
		"custom, outside, IPv6":             {dual, v6, endpoint("", "2001:DB8:0::9"), "2001:db8::9"},
		"custom, pod address":               {dual, v4, endpoint("", "10.244.1.5"), "10.20.1.5"},
		"custom, unknown pod address":       {dual, v4, endpoint("", "10.244.77.5"), ""},
		"custom, unknown pod address, IPv6": {dual, v6, endpoint("", "fd10:244::77"), ""},
		"custom, service":                   {dual, v4, endpoint("", "10.96.0.1"), ""},
		"custom, join":                      {dual, v4, endpoint("", "100.64.0.2"), ""},
		"custom, join of the network":       {dual, v4, endpoint("", "172.30.0.2"), ""},
		"custom, transit":                   {dual, v4, endpoint("", "100.88.0.2"), ""},
		"custom, masquerade":                {dual, v4, endpoint("", "169.254.0.2"), ""},
		"custom, several":                   {dual, v4, endpoint("", "10.96.0.1", "10.20.1.5", "10.244.1.5", "203.0.113.9"), "10.20.1.5 203.0.113.9"},
		"node reference":                    {dual, v4, node, "192.168.7.1"},
		"host name":                         {dual, v4, endpoint("", "example.org"), ""},
		"other IP family":                   {dual, v4, endpoint("", "2001:db8::9"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := sourceSlice(tt.family, tt.endpoint)
			var got string
			for _, m := range Build(inputs(s, tt.network), have()).Mirrors {
				got = strings.Join(m.Endpoints[0].Addresses, " ")
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// Which slices have a mirror.
func TestMirroredSlices(t *testing.T) {
	n := tenant("n", "10.20.0.0/16")
	slice := func(change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		s := sourceSlice(discoveryv1.AddressTypeIPv4, endpoint("a", "10.244.1.5"))
		change(s)
		return s
	}
	for name, tt := range map[string]struct {
		in   Inputs
		want bool
	}{
		"endpointslice controller": {inputs(slice(func(*discoveryv1.EndpointSlice) {}), n), true},
		"endpointslicemirroring controller": {inputs(slice(func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelManagedBy] = "endpointslicemirroring-controller.k8s.io"
		}), n), true},
		"custom":            {inputs(slice(func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelManagedBy) }), n), true},
		"without service":   {inputs(slice(func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelServiceName) }), n), false},
		"host names":        {inputs(slice(func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }), n), false},
		"without endpoints": {inputs(slice(func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }), n), false},
		"being deleted":     {inputs(slice(func(s *discoveryv1.EndpointSlice) { s.DeletionTimestamp = ptr(metav1.Now()) }), n), false},
		"deleted":           {inputs(nil, n), false},
		"default network":   {inputs(slice(func(*discoveryv1.EndpointSlice) {}), nil), false},
		"mirror": {inputs(slice(func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelManagedBy] = network.EndpointSliceManager
		}), n), false},
	} {
		if got := len(Build(tt.in, have()).Mirrors) > 0; got != tt.want {
			t.Errorf("%s: mirrored %v, want %v", name, got, tt.want)
		}
	}
	// In two cases mirrors stay unchanged.
	deleting, networkUnknown := inputs(nil, n), inputs(sourceSlice(discoveryv1.AddressTypeIPv4), nil)
	deleting.NamespaceDeleting, networkUnknown.NetworkUnknown = true, "two primary networks"
	for name, in := range map[string]Inputs{"namespace being deleted": deleting, "unknown network": networkUnknown} {
		if ops := Diff(Build(in, have()), have()); len(ops) > 0 {
			t.Errorf("%s: %v", name, ops)
		}
	}
	networkUnknown.Slice = nil
	if ops := Diff(Build(networkUnknown, have()), have()); len(ops) != 1 {
		t.Errorf("operations for a deleted slice while the network is unknown: %v, want one", ops)
	}
}

// Complete mirrors.
func TestMirrorGolden(t *testing.T) {
	ready := func(e discoveryv1.Endpoint, yes bool) discoveryv1.Endpoint {
		e.Conditions = discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: ptr(!yes)}
		e.NodeName, e.Zone, e.Hostname = ptr("node-1"), ptr("zone-1"), ptr("web-0")
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-1"}}}
		return e
	}
	dual := tenant("cluster_udn_red", "10.20.0.0/16", "fd20::/48")
	for name, in := range map[string]Inputs{
		"ipv4": inputs(sourceSlice(discoveryv1.AddressTypeIPv4, ready(endpoint("b", "10.244.2.5"), false), ready(endpoint("a", "10.244.1.5"), true),
			endpoint("waiting", "10.244.1.8"), endpoint("host", "192.168.7.1")), dual),
		"ipv6": inputs(sourceSlice(discoveryv1.AddressTypeIPv6, ready(endpoint("a", "fd10:244:0:1::5"), true)), dual),
		"custom": inputs(sourceSlice(discoveryv1.AddressTypeIPv4, endpoint("", "203.0.113.9"), endpoint("", "10.244.1.5"), endpoint("", "10.20.9.9"),
			endpoint("", "10.244.66.6")), dual),
	} {
		t.Run(name, func(t *testing.T) {
			m := Build(in, State{}).Mirrors[MirrorName(in.Source.Name)]
			got, err := json.MarshalIndent(&discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, Labels: labels(m), Annotations: annotations(m),
					OwnerReferences: []metav1.OwnerReference{ownerRef(m)}},
				AddressType: m.AddressType, Endpoints: m.Endpoints, Ports: m.Ports,
			}, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// Changes of the source's order or of unused fields cause no write.
func TestNoRedundantWrites(t *testing.T) {
	n := tenant("n", "10.20.0.0/16")
	a, b := endpoint("a", "10.244.1.5"), endpoint("b", "10.244.2.5")
	s := sourceSlice(discoveryv1.AddressTypeIPv4, a, b)
	state := Build(inputs(s, n), State{})
	reordered := sourceSlice(discoveryv1.AddressTypeIPv4, b, a, endpoint("waiting", "10.244.1.8"))
	reordered.ResourceVersion, reordered.Annotations = "99", map[string]string{corev1.EndpointsLastChangeTriggerTime: "now"}
	if ops := Diff(Build(inputs(reordered, n), state), state); len(ops) > 0 {
		t.Errorf("operations %v, want none", ops)
	}
	reordered.Endpoints[0].Conditions.Ready = ptr(false)
	if ops := Diff(Build(inputs(reordered, n), state), state); len(ops) != 1 || ops[0].Kind != Update {
		t.Errorf("operations after a change of readiness: %v, want one update", ops)
	}
}

func TestSourceOf(t *testing.T) {
	slice := func(name, label, annotation string, refs ...metav1.OwnerReference) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: name, OwnerReferences: refs}}
		if label != "" {
			s.Labels = map[string]string{discoveryv1.LabelManagedBy: label}
		}
		if annotation != "" {
			s.Annotations = map[string]string{network.AnnotationSource: annotation}
		}
		return s
	}
	ref := ownerRef(Mirror{Source: "web"})
	service := metav1.OwnerReference{APIVersion: "v1", Kind: "Service", Name: "web", Controller: ptr(true)}
	name, ours := MirrorName("web"), network.EndpointSliceManager
	for name, tt := range map[string]struct {
		slice *discoveryv1.EndpointSlice
		want  bool
	}{
		"mirror":                       {slice(name, ours, "web", ref), true},
		"copy":                         {slice("copy", ours, "web", ref), true},
		"label removed":                {slice(name, "", "web", ref), true},
		"label and annotation removed": {slice(name, "", "", ref), true},
		"reference removed":            {slice(name, ours, "web"), true},
		"reference and label removed":  {slice(name, "", "web"), true},
		"of Kubernetes":                {slice("web-x7k2p", "endpointslice-controller.k8s.io", "", service), false},
		"of another implementation":    {slice("web-mirror", ours, "web", service), false},
		"label only":                   {slice("web-mirror", ours, ""), false},
		"annotation only":              {slice("web-mirror", "", "web"), false},
		"label and annotation only":    {slice("web-mirror", ours, "web"), false},
		"other slice owned by a slice": {slice("theirs", "", "", ref), false},
		"no marks":                     {slice(name, "", ""), false},
	} {
		got, mirror := SourceOf(tt.slice)
		if mirror != tt.want || mirror && got != (Source{"red", "web"}) {
			t.Errorf("%s: %v %v, want %v", name, got, mirror, tt.want)
		}
	}
}

// Names of mirrors are valid, unique per source, and differ from their sources'.
func FuzzMirrorName(f *testing.F) {
	f.Add("web-x7k2p", "web-x7k2q")
	f.Add("a", "a-udn-0000000000")
	f.Add(strings.Repeat("a", 253), strings.Repeat("a", 252)+"b")
	f.Add(strings.Repeat("a.", 126)+"a", "a.b-c")
	f.Fuzz(func(t *testing.T, a, b string) {
		if len(validation.IsDNS1123Subdomain(a)) > 0 {
			return
		}
		name := MirrorName(a)
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 || name == a {
			t.Errorf("%q becomes %q: %v", a, name, problems)
		}
		if a != b && MirrorName(b) == name {
			t.Errorf("%q and %q become %q", a, b, name)
		}
	})
}
