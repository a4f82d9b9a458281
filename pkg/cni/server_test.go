// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/pkg/network"
)

var update = flag.Bool("update", false, "rewrite goldens")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func call(t *testing.T, s *Server, r Request) (string, error) {
	t.Helper()
	out, _, err := s.Handle(t.Context(), r.wire(t))
	return string(out), err
}

func TestLifeOfAPod(t *testing.T) {
	w, links := newWorld(), NewFakeLinks("/ns/a", "/ns/b")
	w.setPod("uid-1", annotation(t, 5))
	s := w.server(links)
	out, err := call(t, s, request("ADD", "a"))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "result.json", out+"\n")
	golden(t, "network-status.json", <-w.statuses+"\n")
	again, err := call(t, s, request("ADD", "a"))
	if err != nil || again != out {
		t.Errorf("a second ADD gives %s, %v", again, err)
	}
	if _, err := call(t, s, request("CHECK", "a")); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if n := w.portNames(); len(n) != 2 {
		t.Errorf("ports are %v", n)
	}
	// The pod's next sandbox, before the former one's DEL.
	if _, err := call(t, s, request("ADD", "b")); err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, s, request("DEL", "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, s, request("CHECK", "b")); err != nil {
		t.Errorf("a late DEL of the former sandbox hurt the new one: %v", err)
	}
	if _, err := call(t, s, request("CHECK", "a")); err == nil || !strings.Contains(cniError(err).Details, "would have to add interface eth0") {
		t.Errorf("CHECK of what is gone: %v", err)
	}
	links.Remove("/ns/b")
	for range 2 { // neither namespace nor pod is needed
		r := request("DEL", "b")
		r.NetNS, r.Namespace, r.Pod = "", "", ""
		if _, err := call(t, s, r); err != nil {
			t.Errorf("DEL of what is gone: %v", err)
		}
	}
	if n := w.portNames(); len(n) != 0 {
		t.Errorf("left ports %v", n)
	}
	if h, _ := links.HostNames(); len(h) != 1 {
		t.Errorf("left links %v", h)
	}
}

func TestAddWaitsForWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(w *world, s *Server)
		arrive  func(w *world, s *Server)
		why     string
	}{
		"pod": {prepare: func(w *world, s *Server) { delete(w.pods, "ns/pod") }, arrive: func(w *world, s *Server) { w.setPod("uid-1", annotation(t, 5)) }, why: "no such pod"},
		"other uid": {prepare: func(w *world, s *Server) { w.setPod("uid-0", annotation(t, 5)) }, arrive: func(w *world, s *Server) { w.setPod("uid-1", annotation(t, 5)) },
			why: "pod uid uid-0 under that name, not uid-1"},
		"annotation": {prepare: func(w *world, s *Server) { w.setPod("uid-1", nil) }, arrive: func(w *world, s *Server) { w.setPod("uid-1", annotation(t, 5)) },
			why: "annotation k8s.ovn.org/pod-networks is missing"},
		"primary entry": {prepare: func(w *world, s *Server) {
			a := annotation(t, 5)
			delete(a, "ns/blue")
			w.setPod("uid-1", a)
		}, arrive: func(w *world, s *Server) { w.setPod("uid-1", annotation(t, 5)) }, why: "no entry for ns/blue yet"},
		"primary network": {prepare: func(w *world, s *Server) { w.why = fmt.Errorf("namespace ns: %w", network.ErrNoPrimary) },
			arrive: func(w *world, s *Server) { w.mu.Lock(); w.why = nil; w.mu.Unlock(); s.NetworksChanged() }, why: "no primary network yet"},
		"NAD": {prepare: func(w *world, s *Server) { delete(w.nads, "ns/blue") },
			arrive: func(w *world, s *Server) {
				w.mu.Lock()
				w.nads["ns/blue"] = network.NAD{Namespace: "ns", Name: "blue", Network: blue}
				w.mu.Unlock()
				s.NetworksChanged()
			}, why: "NetworkAttachmentDefinition ns/blue is unknown"},
		"readiness": {prepare: func(w *world, s *Server) { s.SetReady("the node has no facts yet") }, arrive: func(w *world, s *Server) { s.SetReady("") }, why: "no facts yet"},
	} {
		t.Run(name, func(t *testing.T) {
			w, links := newWorld(), NewFakeLinks("/ns/a")
			w.setPod("uid-1", annotation(t, 5))
			s := w.server(links)
			c.prepare(w, s)
			s.conf.NetworksWait = 10 * time.Millisecond
			_, err := call(t, s, request("ADD", "a"))
			if err == nil || !strings.Contains(err.Error(), c.why) || cniError(err).Code != 11 {
				t.Fatalf("in vain: %v, want %q", err, c.why)
			}
			s.conf.NetworksWait = time.Minute
			done := make(chan error, 1)
			go func() { _, _, err := s.Handle(t.Context(), request("ADD", "a").wire(t)); done <- err }()
			c.arrive(w, s)
			if err := <-done; err != nil {
				t.Errorf("after it came: %v", err)
			}
		})
	}
}

func TestFailedAddLeavesNothing(t *testing.T) {
	total := 0
	for fail := 0; fail <= total+1; fail++ {
		w, links := newWorld(), NewFakeLinks("/ns/a")
		w.setPod("uid-1", annotation(t, 5))
		s := w.server(links)
		s.conf.PortsWait = 10 * time.Millisecond
		n := 0
		links.Fail = func(op Op) error {
			if n++; n == fail {
				return errors.New("injected")
			}
			return nil
		}
		switch {
		case fail == 0:
			if _, err := call(t, s, request("ADD", "a")); err != nil {
				t.Fatal(err)
			}
			total = n
			continue
		case fail == total+1:
			w.connects = false // OVN never binds the ports
		}
		if _, err := call(t, s, request("ADD", "a")); err == nil {
			t.Fatalf("failure %d is hidden", fail)
		}
		h, _ := links.HostNames()
		if len(w.portNames()) != 0 || len(h) != 1 {
			t.Errorf("failure %d of %d leaves ports %v, links %v", fail, total, w.portNames(), h)
		}
	}
	// What was connected before stays, when a repeated ADD fails.
	w, links := newWorld(), NewFakeLinks("/ns/a")
	w.setPod("uid-1", annotation(t, 5))
	s := w.server(links)
	if _, err := call(t, s, request("ADD", "a")); err != nil {
		t.Fatal(err)
	}
	w.failPort = errors.New("injected")
	if _, err := call(t, s, request("ADD", "a")); err == nil || len(w.portNames()) != 2 {
		t.Errorf("a repeated ADD failed with %v and left ports %v", err, w.portNames())
	}
}

func TestOverlappingNetworks(t *testing.T) {
	other := func(cidrs string, join ...string) network.Network {
		return network.Network{ID: 9, Name: "ns_red", Topology: network.Layer2, Role: network.RoleSecondary, MTU: 1400,
			Subnets: subnets(network.Layer2, cidrs), JoinSubnets: prefixes(join...)}
	}
	for _, c := range []struct {
		name string
		net  network.Network
		want string
	}{
		{"apart", other("10.99.0.0/16"), ""},
		{"subnet and subnet", other("10.20.5.0/24"), "subnet 10.20.0.0/16 of network ns_blue overlaps subnet 10.20.5.0/24 of network ns_red"},
		{"IPv6", other("10.99.0.0/16,fd20:0:0:7::/64"), "subnet fd20::/48 of network ns_blue overlaps subnet fd20:0:0:7::/64 of network ns_red"},
		{"join and subnet", other("100.65.3.0/24"), "join subnet 100.65.0.0/16 of network ns_blue overlaps subnet 100.65.3.0/24 of network ns_red"},
		{"the default network's join", other("100.64.3.0/24"), "join subnet 100.64.0.0/16 of network default overlaps subnet 100.64.3.0/24 of network ns_red"},
		{"join and join", other("10.99.0.0/16", "100.65.0.0/17"), "join subnet 100.65.0.0/16 of network ns_blue overlaps join subnet 100.65.0.0/17 of network ns_red"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, links := newWorld(), NewFakeLinks("/ns/a")
			w.nads["ns/red"] = network.NAD{Namespace: "ns", Name: "red", Network: c.net}
			a := annotation(t, 5)
			a["ns/red"] = network.PodNetwork{MAC: "0a:58:0a:63:00:05", Role: network.RoleSecondary, IPs: []netip.Prefix{netip.MustParsePrefix("10.99.0.5/16")}}
			w.setPod("uid-1", a)
			s := w.server(links)
			for _, nad := range []string{"", "ns/red"} {
				r := request("ADD", "a")
				if r.NAD = nad; nad != "" {
					r.IfName = "net1"
				}
				_, err := call(t, s, r)
				switch {
				case c.want == "" && err != nil:
					t.Errorf("refused: %v", err)
				case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || cniError(err).Code != codeOverlap):
					t.Errorf("error %v, want %q", err, c.want)
				}
			}
		})
	}
}

func TestGCAndCollect(t *testing.T) {
	w, links := newWorld(), NewFakeLinks("/ns/a", "/ns/b", "/ns/c")
	s := w.server(links)
	for _, sandbox := range []string{"a", "b", "c"} {
		w.setPod("uid-1", annotation(t, 5))
		if _, err := call(t, s, request("ADD", sandbox)); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock() // as if they were pods of different names
		for n, p := range w.ports {
			p.LSP += sandbox
			w.ports[n] = p
		}
		w.mu.Unlock()
	}
	links.Remove("/ns/a")
	if err := s.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := w.portNames(); len(n) != 4 {
		t.Errorf("collecting one pod of three leaves %v", n)
	}
	w.ports["foreign"] = Port{Name: "foreign", Sandbox: "x", Attachment: "othernet/net1"}
	gc := Request{Command: "GC", CNIVersion: "1.1.0", Network: NetworkName, Valid: []ValidAttachment{{ContainerID: "c", IfName: "eth0"}}}
	if _, err := call(t, s, gc); err != nil {
		t.Fatal(err)
	}
	if n := w.portNames(); len(n) != 3 {
		t.Errorf("GC leaves %v: want pod c and the other configuration's", n)
	}
}

func TestStatus(t *testing.T) {
	w := newWorld()
	s := NewServer(Config{Default: defaultNet}, w, w, w, NewFakeLinks(), w)
	status := Request{Command: "STATUS", CNIVersion: "1.1.0", Network: NetworkName}
	if _, err := call(t, s, status); err == nil || cniError(err).Code != 50 {
		t.Errorf("before the first synchronisation: %v", err)
	}
	s.SetReady("")
	if _, err := call(t, s, status); err != nil {
		t.Error(err)
	}
}

// TestPlugin runs the real client against the real socket.
func TestPlugin(t *testing.T) {
	dir := t.TempDir()
	bin, socket := filepath.Join(dir, "plugin"), filepath.Join(dir, "run", "cni.sock")
	build := exec.Command("go", "build", "-o", bin, "bulkhead/cmd/cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := InstallPlugin(bin, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	w := newWorld()
	w.setPod("uid-1", annotation(t, 5))
	s := w.server(NewFakeLinks("/ns/a"))
	run := func(command string) (map[string]any, error) {
		cmd := exec.Command(filepath.Join(dir, "bin", network.CNIType))
		cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=a", "CNI_NETNS=/ns/a", "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
			"CNI_ARGS=K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID=uid-1"}
		cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.0.0","name":"bulkhead","type":"ovn-k8s-cni-overlay","socket":%q}`, socket))
		out, err := cmd.Output()
		var v map[string]any
		if len(out) > 0 {
			if jsonErr := json.Unmarshal(out, &v); jsonErr != nil {
				t.Fatalf("%s printed %q: %v", command, out, jsonErr)
			}
		}
		return v, err
	}
	if v, err := run("ADD"); err == nil || v["code"] != 11.0 || v["cniVersion"] != "1.0.0" {
		t.Errorf("without an agent: %v %v", v, err)
	}
	l, err := listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, socket) }()
	deadline := time.Now().Add(time.Minute)
	for { // STATUS is how a runtime waits as well
		if _, err := run("STATUS"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the server does not come up")
		}
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v %v", info, err)
	}
	if v, err := run("ADD"); err != nil || v["cniVersion"] != "1.0.0" || len(v["interfaces"].([]any)) != 4 {
		t.Errorf("ADD: %v %v", v, err)
	}
	if v, err := run("VERSION"); err != nil || len(v["supportedVersions"].([]any)) != len(Versions) {
		t.Errorf("VERSION: %v %v", v, err)
	}
	if v, err := run("NONSENSE"); err == nil || v["code"] != 6.0 {
		t.Errorf("an unknown command: %v %v", v, err)
	}
	if v, err := run("DEL"); err != nil || v != nil {
		t.Errorf("DEL: %v %v", v, err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
