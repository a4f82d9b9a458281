// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"bulkhead/pkg/network"
)

var storage = network.Network{ID: 9, Name: "storage", Topology: network.Layer2, Role: network.RoleSecondary, MTU: 1300, Subnets: subnets(network.Layer2, "10.50.0.0/16")}

// secondaryDeps has a pod that requests networks, with the cluster's annotation.
func secondaryDeps(t *testing.T, requests string) *fakeDeps {
	t.Helper()
	d := newFakeDeps()
	a := annotation(t, 5)
	a["ns/storage"] = network.PodNetwork{IPs: prefixes("10.50.0.3/16"), MAC: "0a:58:0a:32:00:03", Role: network.RoleSecondary}
	a["ns/storage/1"] = network.PodNetwork{IPs: prefixes("10.50.0.4/16"), MAC: "0a:58:0a:32:00:04", Role: network.RoleSecondary}
	d.nads["ns/storage"] = network.NAD{Namespace: "ns", Name: "storage", Network: storage}
	d.setPod("uid-1", a)
	d.pods["ns/pod"].Annotations[network.AnnotationNetworks] = requests
	return d
}

// interfaces returns the pod's interfaces with their addresses, by name.
func interfaces(t *testing.T, links *FakeLinks, netns string) map[string]string {
	t.Helper()
	links.mu.Lock()
	defer links.mu.Unlock()
	out := map[string]string{}
	for name, l := range links.namespaces[netns] {
		for _, a := range l.Addresses {
			if a.Addr().Is4() {
				out[name] = a.String()
			}
		}
	}
	return out
}

var withStorage = map[string]string{"eth0": "10.244.2.5/24", "ovn-udn1": "10.20.2.5/24"}

// Without a meta plugin, the pod's one ADD also attaches the secondary networks that
// it requests, and its DEL detaches them.
func TestSecondaryAlone(t *testing.T) {
	d, links := secondaryDeps(t, "storage, macvlan, ns/storage@disk"), NewFakeLinks("/ns/a")
	d.foreign = map[string]struct{}{"ns/macvlan": {}}
	s := d.server(links)
	if _, err := call(t, s, request("ADD", "a")); err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(withStorage)
	want["net1"], want["disk"] = "10.50.0.3/16", "10.50.0.4/16"
	if got := interfaces(t, links, "/ns/a"); !maps.Equal(got, want) {
		t.Errorf("interfaces %v, want %v", got, want)
	}
	var lsps []string
	for _, p := range d.ports {
		lsps = append(lsps, p.LSP)
	}
	slices.Sort(lsps)
	if want := []string{"ns.blue_ns_pod", "ns.storage/1_ns_pod", "ns.storage_ns_pod", "ns_pod"}; !slices.Equal(lsps, want) {
		t.Errorf("ports of %v, want %v", lsps, want)
	}
	checkStatus(t, <-d.statuses, "bulkhead eth0 false, bulkhead ovn-udn1 true, ns/storage net1 false, ns/storage disk false")
	if _, err := call(t, s, request("CHECK", "a")); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	r := request("DEL", "a")
	r.NetNS, r.Namespace, r.Pod = "", "", ""
	if _, err := call(t, s, r); err != nil {
		t.Fatal(err)
	}
	if h, _ := links.HostNames(); len(h) != 1 || len(d.ports) > 0 {
		t.Errorf("leftover links %v, ports %v", h, d.portNames())
	}
}

func checkStatus(t *testing.T, got, want string) {
	t.Helper()
	var status []struct {
		Name, Interface string
		Default         bool
	}
	if err := json.Unmarshal([]byte(got), &status); err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, s := range status {
		list = append(list, fmt.Sprintf("%s %s %t", s.Name, s.Interface, s.Default))
	}
	if got := strings.Join(list, ", "); got != want {
		t.Errorf("network status %q, want %q", got, want)
	}
}

// A pod without a primary network has its default route on the cluster default network.
func TestSecondaryOfDefaultNetwork(t *testing.T) {
	d, links := secondaryDeps(t, "storage"), NewFakeLinks("/ns/a")
	d.primary = nil
	a := annotation(t, 5)
	delete(a, "ns/blue")
	a[network.DefaultName] = network.NewPodNetwork(defaultNet, plan, a[network.DefaultName].IPs, false)
	a["ns/storage"] = network.PodNetwork{IPs: prefixes("10.50.0.3/16"), MAC: "0a:58:0a:32:00:03", Role: network.RoleSecondary}
	d.setPod("uid-1", a)
	d.pods["ns/pod"].Annotations[network.AnnotationNetworks] = "storage"
	if _, err := call(t, d.server(links), request("ADD", "a")); err != nil {
		t.Fatal(err)
	}
	checkStatus(t, <-d.statuses, "bulkhead eth0 true, ns/storage net1 false")
}

// A meta plugin attaches secondary networks one by one, also one that is requested twice,
// and writes the pod's status. Each interface is detached by a DEL of its own.
func TestSecondaryWithMetaPlugin(t *testing.T) {
	d, links := secondaryDeps(t, "storage, storage@disk"), NewFakeLinks("/ns/a")
	s := d.server(links)
	s.conf.ConfDir = t.TempDir()
	writeConf(t, s.conf.ConfDir, "00-multus.conf", multusConf)
	if err := WriteConflist(s.conf.ConfDir, "/run/cni.sock"); err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, s, request("ADD", "a")); err != nil {
		t.Fatal(err)
	}
	if got := interfaces(t, links, "/ns/a"); !maps.Equal(got, withStorage) {
		t.Errorf("interfaces %v, want %v: Multus refuses to attach one that is there", got, withStorage)
	}
	// ADD is refused in place of the default network, for which the pod's annotation may ask Multus, and for a
	// network that the pod does not request.
	for _, c := range []struct{ nad, ifName, want string }{
		{"ns/storage", "eth0", "is of the cluster default network"}, {"ns/net", "eth0", "is of the cluster default network"}, {"ns/net", "net3", "does not request"},
	} {
		r := request("ADD", "a")
		r.Network, r.NAD, r.IfName = "x", c.nad, c.ifName
		if out, err := call(t, s, r); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("ADD of %s as %s returns %s, %v", c.nad, c.ifName, out, err)
		}
	}
	want := maps.Clone(withStorage)
	for _, c := range []struct{ ifName, address, lsp string }{{"net1", "10.50.0.3/16", "ns.storage_ns_pod"}, {"disk", "10.50.0.4/16", "ns.storage/1_ns_pod"}} {
		r := request("ADD", "a")
		r.Network, r.NAD, r.IfName = "storage", "ns/storage", c.ifName
		for range 2 { // it may be repeated
			out, err := call(t, s, r)
			if err != nil || !strings.Contains(out, c.address) || !strings.Contains(out, c.ifName) {
				t.Errorf("ADD of %s returns %s, %v", c.ifName, out, err)
			}
		}
		if p := d.ports[HostName("a", c.ifName)]; p.LSP != c.lsp || p.Attachment != "storage/"+c.ifName {
			t.Errorf("port of %s: %+v", c.ifName, p)
		}
		want[c.ifName] = c.address
		if got := interfaces(t, links, "/ns/a"); !maps.Equal(got, want) {
			t.Errorf("interfaces %v, want %v", got, want)
		}
		r.Command = "CHECK"
		if _, err := call(t, s, r); err != nil {
			t.Errorf("CHECK of %s: %v", c.ifName, err)
		}
	}
	if _, err := call(t, s, request("CHECK", "a")); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	for _, ifName := range []string{"disk", "net1"} {
		r := request("DEL", "a")
		r.Network, r.NAD, r.IfName = "storage", "ns/storage", ifName
		if _, err := call(t, s, r); err != nil {
			t.Fatal(err)
		}
		delete(want, ifName)
		if got := interfaces(t, links, "/ns/a"); !maps.Equal(got, want) {
			t.Errorf("interfaces %v, want %v", got, want)
		}
	}
	if len(d.statuses) > 0 {
		t.Errorf("network status %s, want none", <-d.statuses)
	}
}

// A meta plugin that comes later finds interfaces in place, and detaches them.
func TestMetaPluginLater(t *testing.T) {
	d, links := secondaryDeps(t, "storage"), NewFakeLinks("/ns/a")
	s := d.server(links)
	if _, err := call(t, s, request("ADD", "a")); err != nil {
		t.Fatal(err)
	}
	<-d.statuses
	s.conf.ConfDir = t.TempDir()
	writeConf(t, s.conf.ConfDir, "00-multus.conf", multusConf)
	if _, err := call(t, s, request("CHECK", "a")); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	for _, r := range []Request{{Network: "storage", NAD: "ns/storage", IfName: "net1"}, {Network: NetworkName, IfName: "eth0"}} {
		r.Command, r.CNIVersion, r.Sandbox = "DEL", "1.0.0", "a"
		if _, err := call(t, s, r); err != nil {
			t.Fatal(err)
		}
	}
	if h, _ := links.HostNames(); len(h) != 1 || len(d.ports) > 0 {
		t.Errorf("leftover links %v, ports %v", h, d.portNames())
	}
}

// multusConf is what Multus' own installation writes, with Bulkhead's configuration in it.
const multusConf = `{"cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus", "delegates": [{"name": "bulkhead", "plugins": [{"type": "ovn-k8s-cni-overlay"}]}]}`

func writeConf(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDelegated(t *testing.T) {
	own, err := Conflist("/run/cni.sock")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files     map[string]string
		delegated bool
	}{
		"none":                  {nil, false},
		"own":                   {map[string]string{ConflistName: string(own), "90-other.conf": `{"type": "bridge"}`}, false},
		"Multus":                {map[string]string{ConflistName: string(own), "00-multus.conf": multusConf}, true},
		"Multus is second":      {map[string]string{ConflistName: string(own), "70-multus.conf": multusConf}, false},
		"chained with another":  {map[string]string{ConflistName: string(own), "05-chain.conflist": `{"plugins": [{"type": "ovn-k8s-cni-overlay"}, {"type": "tuning"}]}`}, false},
		"own as a single conf":  {map[string]string{"05-own.conf": `{"type": "ovn-k8s-cni-overlay"}`}, false},
		"not a configuration":   {map[string]string{ConflistName: string(own), "00-README": "", "00-multus.conf.bak": multusConf}, false},
		"another's, ours later": {map[string]string{"90-bulkhead.json": string(own), "20-meta.json": `{"type": "meta"}`}, true},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "00-multus.d.conf"), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, content := range c.files {
			writeConf(t, dir, file, content)
		}
		if got, err := Delegated(dir); got != c.delegated || err != nil {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
	dir := t.TempDir()
	writeConf(t, dir, "00-broken.conf", "{")
	for _, dir := range []string{dir, filepath.Join(dir, "none")} {
		if _, err := Delegated(dir); err == nil || !strings.Contains(err.Error(), "CNI configuration") {
			t.Errorf("error %v", err)
		}
	}
}

// A configuration without netAttachDefName would be taken for the cluster default
// network's, also one with its name: its ADD and CHECK are refused, and its DEL removes no other interface.
func TestConfigurationWithoutName(t *testing.T) {
	d, links := secondaryDeps(t, ""), NewFakeLinks("/ns/a")
	s := d.server(links)
	if _, err := call(t, s, request("ADD", "a")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"storage", NetworkName} {
		for _, nad := range []string{"", network.DefaultName} {
			r := request("ADD", "a")
			r.Network, r.NAD, r.IfName = name, nad, "net1"
			for _, r.Command = range []string{"ADD", "CHECK"} {
				if _, err := call(t, s, r); err == nil || !strings.Contains(err.Error(), "netAttachDefName") {
					t.Errorf("%s of %s %s: error %v", r.Command, name, nad, err)
				}
			}
			r.Command = "DEL"
			if _, err := call(t, s, r); err != nil {
				t.Fatal(err)
			}
			if got := interfaces(t, links, "/ns/a"); !maps.Equal(got, withStorage) {
				t.Errorf("interfaces %v, want %v", got, withStorage)
			}
		}
	}
}

// A Localnet network needs a bridge on the node. A retry succeeds once it is mapped.
func TestLocalnetWithoutBridge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, links := secondaryDeps(t, "storage"), NewFakeLinks("/ns/a")
		physical := storage
		physical.Topology, physical.PhysicalNetworkName = network.Localnet, "tenantblue"
		d.nads["ns/storage"] = network.NAD{Namespace: "ns", Name: "storage", Network: physical}
		s := d.server(links)
		const want = "network storage: this node maps physical network tenantblue to no bridge: add tenantblue:BRIDGE to external_ids:ovn-bridge-mappings"
		if _, err := call(t, s, request("ADD", "a")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v", err)
		}
		d.mapped = "tenantblue"
		if _, err := call(t, s, request("ADD", "a")); err != nil {
			t.Error(err)
		}
		if got := interfaces(t, links, "/ns/a")["net1"]; got != "10.50.0.3/16" {
			t.Errorf("net1 has %s", got)
		}
	})
}

func TestSecondaryRefused(t *testing.T) {
	for name, c := range map[string]struct{ requests, want string }{
		"does not exist":    {"nowhere", "NetworkAttachmentDefinition ns/nowhere, which annotation k8s.v1.cni.cncf.io/networks requests, does not exist"},
		"primary":           {"blue", "requests the primary network ns/blue"},
		"no address yet":    {"storage, storage, storage", "no entry for ns/storage/2 yet"},
		"runtime's name":    {"storage@eth0", "eth0 is the name of another interface"},
		"primary's name":    {"storage@ovn-udn1", "ovn-udn1 is the name of another interface"},
		"name twice":        {"storage@disk, storage@disk", "disk is requested twice"},
		"too long a name":   {"storage@sixteen-letters-", "not an interface name"},
		"too many networks": {strings.Repeat("storage,", 32) + "storage", "at most 32"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, links := secondaryDeps(t, c.requests), NewFakeLinks("/ns/a")
				if _, err := call(t, d.server(links), request("ADD", "a")); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q", err, c.want)
				}
				if h, _ := links.HostNames(); len(h) != 1 || len(d.ports) > 0 {
					t.Errorf("leftover links %v, ports %v", h, d.portNames())
				}
			})
		})
	}
}

// A pod's default route of one IP family is on the secondary network on which it requests it. Its primary network, also
// the cluster default network, keeps routes to what only it reaches.
func TestDefaultRouteOnSecondary(t *testing.T) {
	for _, primary := range []bool{true, false} {
		d, links := secondaryDeps(t, `[{"name": "storage", "default-route": ["10.50.0.254"]}]`), NewFakeLinks("/ns/a")
		pod := d.pods["ns/pod"]
		a, err := network.ParsePodNetworks(pod.Annotations[network.AnnotationPodNetworks])
		if err != nil {
			t.Fatal(err)
		}
		entry := a["ns/storage"]
		entry.Gateways = []netip.Addr{netip.MustParseAddr("10.50.0.254")}
		a["ns/storage"] = entry
		link, gateway, gateway6, rest := "ovn-udn1", "10.20.2.1", "fd20:0:0:2::1", []string{"10.20.0.0/16", "10.96.0.0/16", "100.65.0.0/16"}
		if !primary {
			d.primary = nil
			delete(a, "ns/blue")
			a[network.DefaultName] = network.NewPodNetwork(defaultNet, plan, a[network.DefaultName].IPs, false)
			link, gateway, gateway6, rest = "eth0", "10.244.2.1", "fd00:10:244:2::1", []string{"10.244.0.0/16", "10.96.0.0/16", "100.64.0.0/16"}
		}
		requests := pod.Annotations[network.AnnotationNetworks]
		d.setPod("uid-1", a)
		d.pods["ns/pod"].Annotations[network.AnnotationNetworks] = requests
		if _, err := call(t, d.server(links), request("ADD", "a")); err != nil {
			t.Fatal(err)
		}
		routes := map[string]string{} // destination → interface and gateway
		for name, l := range links.namespaces["/ns/a"] {
			for _, r := range l.Routes {
				routes[r.Dest.String()] = name + " " + r.Via.String()
			}
		}
		want := map[string]string{"0.0.0.0/0": "net1 10.50.0.254", "::/0": link + " " + gateway6}
		for _, dest := range rest {
			want[dest] = link + " " + gateway
		}
		for dest, via := range want {
			if routes[dest] != via {
				t.Errorf("primary network of its own %t: route to %s by %q, want %q", primary, dest, routes[dest], via)
			}
		}
		for name, l := range links.namespaces["/ns/a"] {
			for _, r := range l.Routes {
				if r.Dest.Bits() == 0 && want[r.Dest.String()] != name+" "+r.Via.String() {
					t.Errorf("primary network of its own %t: another default route, by %s %s", primary, name, r.Via)
				}
			}
		}
	}
}
