// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/pkg/network"
)

func drawState(t *rapid.T, label string) State {
	s := State{}
	for _, name := range []string{"eth0", "ovn-udn1"} {
		if !rapid.Bool().Draw(t, label+name) {
			continue
		}
		l := Link{Name: name, Host: HostName("s", name), MAC: rapid.SampledFrom([]string{"0a:58:00:00:00:01", "0a:58:00:00:00:02"}).Draw(t, "mac"),
			MTU: rapid.SampledFrom([]int{1300, 1400}).Draw(t, "mtu"), Up: true}
		for n := range rapid.IntRange(0, 3).Draw(t, "addresses") {
			p := netip.MustParsePrefix(fmt.Sprintf("10.%d.0.5/24", n))
			gw := netip.MustParseAddr(fmt.Sprintf("10.%d.0.1", n))
			l.Addresses = append(l.Addresses, p)
			if rapid.Bool().Draw(t, "route") {
				l.Routes = append(l.Routes, Route{Dest: netip.MustParsePrefix(fmt.Sprintf("192.168.%d.0/24", n)), Via: gw})
			}
		}
		s[name] = l
	}
	return s
}

var sandboxNames = map[string]string{"eth0": HostName("s", "eth0"), "ovn-udn1": HostName("s", "ovn-udn1")}

// TestDiffConverges applies Diff from any state to any other, with a crash after
// any operation, and expects the desired state and an empty Diff.
func TestDiffConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, have := drawState(t, "want"), drawState(t, "have")
		links := NewFakeLinks("/ns/a")
		ns, err := links.Open("/ns/a")
		if err != nil {
			t.Fatal(err)
		}
		if err := Apply(t.Context(), ns, Diff(have, State{})); err != nil {
			t.Fatal(err)
		}
		ops := Diff(want, have)
		for _, part := range [][]Op{ops[:rapid.IntRange(0, len(ops)).Draw(t, "crash")], nil} {
			if part == nil {
				now, err := ns.Read(t.Context(), sandboxNames)
				if err != nil {
					t.Fatal(err)
				}
				part = Diff(want, now)
			}
			if err := Apply(t.Context(), ns, part); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ns.Read(t.Context(), sandboxNames)
		if err != nil || len(Diff(want, got)) > 0 || len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(normal(got), normal(want)) {
			t.Fatalf("have %+v\nwant %+v (%v)", got, want, err)
		}
	})
}

func normal(s State) State {
	out := State{}
	for k, l := range s {
		if len(l.Addresses) == 0 {
			l.Addresses = nil
		}
		if len(l.Routes) == 0 {
			l.Routes = nil
		}
		out[k] = l
	}
	return out
}

func TestBuildDefaultRoute(t *testing.T) {
	r := request("ADD", "a")
	nets := map[string]network.Network{network.DefaultName: defaultNet, "ns/blue": blue}
	p, err := Build(r, Inputs{UID: "uid-1", Annotation: annotation(t, 5), Networks: nets, Primary: "ns/blue"})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range p.Interfaces {
		n := 0
		for _, route := range i.Routes {
			if route.Dest.Bits() == 0 {
				n++
			}
		}
		if want := map[string]int{"eth0": 0, "ovn-udn1": 2}[i.Name]; n != want {
			t.Errorf("%s has %d default routes, want %d", i.Name, n, want)
		}
	}
	// A pod in a namespace without a primary network.
	plain := network.PodNetworks{network.DefaultName: network.NewPodNetwork(defaultNet, plan, prefixes("10.244.2.5/24"), false)}
	if p, err = Build(r, Inputs{Annotation: plain, Networks: nets}); err != nil {
		t.Fatal(err)
	}
	if len(p.Interfaces) != 1 || !p.Interfaces[0].Default || p.Interfaces[0].LSP != "ns_pod" ||
		!reflect.DeepEqual(p.Interfaces[0].Routes, []Route{{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.244.2.1")}}) {
		t.Errorf("plain pod: %+v", p.Interfaces)
	}
	for field, bad := range map[string]network.PodNetwork{
		"mac_address": {MAC: "01:00:5e:00:00:01"}, "default routes": {MAC: "0a:58:00:00:00:01", Routes: []network.PodRoute{{Dest: netip.MustParsePrefix("::/0"), NextHop: netip.MustParseAddr("fd00::1")}}},
		"valid pod address": {MAC: "0a:58:00:00:00:01", IPs: prefixes("224.0.0.1/24")}, "mixes IP families": {MAC: "0a:58:00:00:00:01", Routes: []network.PodRoute{{Dest: netip.MustParsePrefix("10.0.0.0/8"), NextHop: netip.MustParseAddr("fd00::1")}}},
	} {
		_, err := Build(r, Inputs{Annotation: network.PodNetworks{network.DefaultName: bad}, Networks: nets})
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("invalid entry: got error %v, want one with %q", err, field)
		}
	}
}

func TestHostName(t *testing.T) {
	seen := map[string]bool{}
	for i := range 1000 {
		for _, name := range []string{"eth0", "ovn-udn1"} {
			h := HostName(fmt.Sprint("sandbox", i), name)
			if len(h) > 15 || seen[h] {
				t.Fatalf("host name %q is too long or not unique", h)
			}
			seen[h] = true
		}
	}
}

func TestConflist(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if err := WriteConflist(dir, "/var/run/bulkhead/cni.sock"); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, ConflistName))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, ConflistName, string(b))
	if temporary, _ := filepath.Glob(filepath.Join(dir, ".bulkhead-*")); len(temporary) > 0 {
		t.Errorf("leftover temporary files: %v", temporary)
	}
}

// TestBeginBoot: an agent that starts again in the same boot leaves the configuration. The first one of the next boot removes it,
// unless the container runtime would then use another plugin's: there pods wait with ours, on a new node too.
func TestBeginBoot(t *testing.T) {
	const bridge, multus = `{"plugins": [{"type": "bridge"}]}`, `{"type": "multus-shim"}`
	for name, c := range map[string]struct {
		file, content string // of another program
		installed     bool   // before the boot
		want          bool   // after it
		reported      bool
	}{
		"alone":                         {installed: true},
		"new":                           {},
		"another plugin's, later":       {"10-crio-bridge.conflist", bridge, true, true, true},
		"another plugin's, later, new":  {"87-podman.conflist", bridge, false, true, true},
		"another plugin's, first":       {"05-other.conf", bridge, true, false, true},
		"a meta plugin's":               {"00-multus.conf", multus, true, false, false},
		"a file that is none":           {"99-notes.txt", "x", true, false, false},
		"a meta plugin's that is later": {"70-multus.conf", multus, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, run := t.TempDir(), t.TempDir()
			plugin := filepath.Join(run, "plugin")
			if err := os.WriteFile(plugin, []byte("program"), 0o600); err != nil {
				t.Fatal(err)
			}
			i := Installation{Plugin: plugin, BinDir: filepath.Join(run, "bin"), ConfDir: dir, Socket: "/run/cni.sock", Mark: filepath.Join(run, "bulkhead", "cni-installed")}
			exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
			conflist := filepath.Join(dir, ConflistName)
			if c.file != "" {
				writeConf(t, dir, c.file, c.content)
			}
			if c.installed {
				if err := i.install(); err != nil {
					t.Fatal(err)
				}
				if err := i.BeginBoot(); err != nil || !exists(conflist) {
					t.Errorf("in the same boot: %v, the configuration exists: %t", err, exists(conflist))
				}
			}
			if err := os.RemoveAll(filepath.Dir(i.Mark)); err != nil {
				t.Fatal(err)
			}
			for range 2 { // until the agent is ready
				if err := i.BeginBoot(); err != nil || exists(conflist) != c.want {
					t.Errorf("in the next boot: %v, the configuration exists: %t, want %t", err, exists(conflist), c.want)
				}
			}
			if c.want && !exists(filepath.Join(i.BinDir, network.CNIType)) {
				t.Error("the configuration is there without its plugin")
			}
			if err := otherConfigurations(dir); (err != nil) != c.reported || err != nil && !strings.Contains(err.Error(), c.file) {
				t.Errorf("reported: %v, want %t", err, c.reported)
			}
		})
	}
	if err := (Installation{ConfDir: filepath.Join(t.TempDir(), "none"), Mark: "none"}).BeginBoot(); err != nil {
		t.Errorf("without a directory: %v", err)
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"} {
		f.Add(request(command, "a").wire(f))
	}
	f.Add([]byte(`{"env":{"CNI_COMMAND":"ADD"},"config":"e30="}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := ParseRequest(body)
		if err != nil {
			return
		}
		if r.Command == "ADD" && (r.Sandbox == "" || r.NetNS == "" || r.Pod == "" || len(r.IfName) > 15 || strings.Contains(r.IfName, "/")) {
			t.Errorf("accepted %+v", r)
		}
	})
}

// Invalid requests have the codes of the CNI specification.
func TestErrorCodes(t *testing.T) {
	const config = `{"cniVersion":"1.1.0","name":"bulkhead","type":"ovn-k8s-cni-overlay"}`
	env := map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "eth0", "CNI_ARGS": "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod"}
	with := func(name, value string) map[string]string {
		out := maps.Clone(env)
		out[name] = value
		return out
	}
	for name, c := range map[string]struct {
		env    map[string]string
		config string
		code   uint
	}{
		"valid":             {env, config, 0},
		"version":           {env, strings.Replace(config, "1.1.0", "9.9.9", 1), 1},
		"command":           {with("CNI_COMMAND", "X"), config, 4},
		"container":         {with("CNI_CONTAINERID", ""), config, 4},
		"interface":         {with("CNI_IFNAME", "a/b"), config, 4},
		"network namespace": {with("CNI_NETNS", ""), config, 4},
		"pod":               {with("CNI_ARGS", ""), config, 4},
		"JSON":              {env, "{", 6},
		"name":              {env, `{"cniVersion":"1.1.0"}`, 7},
		"NAD":               {env, `{"cniVersion":"1.1.0","name":"red"}`, 7},
	} {
		body, err := json.Marshal(Wire{c.env, []byte(c.config)})
		if err != nil {
			t.Fatal(err)
		}
		_, err = ParseRequest(body)
		if code := cniError(cmp.Or(err, errors.New("valid"))).Code; err == nil && c.code != 0 || err != nil && code != c.code {
			t.Errorf("%s: code %d, want %d: %v", name, code, c.code, err)
		}
	}
}
