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
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"bulkhead/pkg/network"
	"bulkhead/pkg/process"
	"bulkhead/test/program"
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

func TestAddCheckDel(t *testing.T) {
	d, links := newFakeDeps(), NewFakeLinks("/ns/a", "/ns/b")
	d.setPod("uid-1", annotation(t, 5))
	s := d.server(links)
	out, err := call(t, s, request("ADD", "a"))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "result.json", out+"\n")
	golden(t, "network-status.json", <-d.statuses+"\n")
	again, err := call(t, s, request("ADD", "a"))
	if err != nil || again != out {
		t.Errorf("a repeated ADD returns %s, %v", again, err)
	}
	if _, err := call(t, s, request("CHECK", "a")); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if n := d.portNames(); len(n) != 2 {
		t.Errorf("ports are %v", n)
	}
	// The pod's new sandbox, before the DEL of the old one.
	if _, err := call(t, s, request("ADD", "b")); err != nil {
		t.Fatal(err)
	}
	// A process of the old one may still run: its interfaces no longer lead to the host.
	if hosts, err := links.HostNames(); err != nil || hosts[HostName("a", "eth0")] || hosts[HostName("a", "ovn-udn1")] || !hosts[HostName("b", "eth0")] || !hosts[HostName("b", "ovn-udn1")] {
		t.Errorf("links of the host: %v, %v", hosts, err)
	}
	if _, err := call(t, s, request("DEL", "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, s, request("CHECK", "b")); err != nil {
		t.Errorf("a late DEL of the old sandbox broke the new one: %v", err)
	}
	if _, err := call(t, s, request("CHECK", "a")); err == nil || !strings.Contains(cniError(err).Details, "ADD would add interface eth0") {
		t.Errorf("CHECK of a deleted sandbox: %v", err)
	}
	links.DeleteNamespace("/ns/b")
	for range 2 { // DEL needs neither the network namespace nor the pod
		r := request("DEL", "b")
		r.NetNS, r.Namespace, r.Pod = "", "", ""
		if _, err := call(t, s, r); err != nil {
			t.Errorf("DEL of a deleted pod: %v", err)
		}
	}
	if n := d.portNames(); len(n) != 0 {
		t.Errorf("leftover ports %v", n)
	}
	if h, _ := links.HostNames(); len(h) != 1 {
		t.Errorf("leftover links %v", h)
	}
}

func TestAddWaitsForInputs(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(d *fakeDeps, s *Server)
		supply  func(d *fakeDeps, s *Server)
		reason  string
	}{
		"pod": {prepare: func(d *fakeDeps, s *Server) { delete(d.pods, "ns/pod") }, supply: func(d *fakeDeps, s *Server) { d.setPod("uid-1", annotation(t, 5)) }, reason: "no such pod"},
		"other uid": {prepare: func(d *fakeDeps, s *Server) { d.setPod("uid-0", annotation(t, 5)) }, supply: func(d *fakeDeps, s *Server) { d.setPod("uid-1", annotation(t, 5)) },
			reason: "pod uid uid-0 under that name, not uid-1"},
		// A static pod has another UID in the runtime than its mirror pod has in the API.
		"mirror pod": {prepare: func(d *fakeDeps, s *Server) { d.setPod("uid-0", annotation(t, 5)) }, supply: func(d *fakeDeps, s *Server) {
			d.mu.Lock()
			mirror := d.pods["ns/pod"].DeepCopy()
			mirror.Annotations[corev1.MirrorPodAnnotationKey] = "uid-1"
			d.pods["ns/pod"] = mirror
			d.mu.Unlock()
			s.NetworksChanged()
		}, reason: "pod uid uid-0 under that name, not uid-1"},
		"annotation": {prepare: func(d *fakeDeps, s *Server) { d.setPod("uid-1", nil) }, supply: func(d *fakeDeps, s *Server) { d.setPod("uid-1", annotation(t, 5)) },
			reason: "annotation k8s.ovn.org/pod-networks is missing"},
		"primary entry": {prepare: func(d *fakeDeps, s *Server) {
			a := annotation(t, 5)
			delete(a, "ns/blue")
			d.setPod("uid-1", a)
		}, supply: func(d *fakeDeps, s *Server) { d.setPod("uid-1", annotation(t, 5)) }, reason: "no entry for ns/blue yet"},
		// The zone has not seen the namespace's label yet, and decided for a pod of the default network.
		"open default network": {prepare: func(d *fakeDeps, s *Server) {
			a := annotation(t, 5)
			entry := a[network.DefaultName]
			entry.Role = network.RolePrimary
			a[network.DefaultName] = entry
			d.setPod("uid-1", a)
		}, supply: func(d *fakeDeps, s *Server) { d.setPod("uid-1", annotation(t, 5)) }, reason: "the role primary on the cluster default network, but namespace ns has the primary network ns/blue"},
		// The agent has not.
		"locked default network": {prepare: func(d *fakeDeps, s *Server) {
			a := annotation(t, 5)
			delete(a, "ns/blue") // as long as nobody else has written it
			d.setPod("uid-1", a)
			delete(d.primary, "ns")
		}, supply: func(d *fakeDeps, s *Server) {
			d.mu.Lock()
			d.primary = newFakeDeps().primary
			d.mu.Unlock()
			d.setPod("uid-1", annotation(t, 5))
		}, reason: "the role infrastructure-locked on the cluster default network, but namespace ns has the primary network none"},
		"primary network": {prepare: func(d *fakeDeps, s *Server) { d.primaryErr = fmt.Errorf("namespace ns: %w", network.ErrNoPrimary) },
			supply: func(d *fakeDeps, s *Server) { d.mu.Lock(); d.primaryErr = nil; d.mu.Unlock(); s.NetworksChanged() }, reason: "no primary network yet"},
		"NAD": {prepare: func(d *fakeDeps, s *Server) { delete(d.nads, "ns/blue") },
			supply: func(d *fakeDeps, s *Server) {
				d.mu.Lock()
				d.nads["ns/blue"] = network.NAD{Namespace: "ns", Name: "blue", Network: blue}
				d.mu.Unlock()
				s.NetworksChanged()
			}, reason: "NetworkAttachmentDefinition ns/blue is unknown"},
		"readiness": {prepare: func(d *fakeDeps, s *Server) { s.SetReady("the node is not configured yet") }, supply: func(d *fakeDeps, s *Server) { s.SetReady("") }, reason: "not configured yet"},
	} {
		t.Run(name, func(t *testing.T) {
			d, links := newFakeDeps(), NewFakeLinks("/ns/a")
			d.setPod("uid-1", annotation(t, 5))
			s := d.server(links)
			c.prepare(d, s)
			s.conf.NetworksWait = 10 * time.Millisecond
			_, err := call(t, s, request("ADD", "a"))
			if err == nil || !strings.Contains(err.Error(), c.reason) || cniError(err).Code != 11 {
				t.Fatalf("timeout: got %v, want %q", err, c.reason)
			}
			s.conf.NetworksWait = time.Minute
			done := make(chan error, 1)
			go func() { _, _, err := s.Handle(t.Context(), request("ADD", "a").wire(t)); done <- err }()
			c.supply(d, s)
			if err := <-done; err != nil {
				t.Errorf("ADD after the input arrived: %v", err)
			}
		})
	}
}

func TestFailedAddIsUndone(t *testing.T) {
	total := 0
	for fail := 0; fail <= total+1; fail++ {
		d, links := newFakeDeps(), NewFakeLinks("/ns/a")
		d.setPod("uid-1", annotation(t, 5))
		s := d.server(links)
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
			d.bindsPorts = false // OVN never binds the ports
		}
		if _, err := call(t, s, request("ADD", "a")); err == nil {
			t.Fatalf("ADD hides failure %d", fail)
		}
		h, _ := links.HostNames()
		if len(d.portNames()) != 0 || len(h) != 1 {
			t.Errorf("failure %d of %d leaves ports %v, links %v", fail, total, d.portNames(), h)
		}
	}
	// If a repeated ADD fails, the existing connection stays.
	d, links := newFakeDeps(), NewFakeLinks("/ns/a")
	d.setPod("uid-1", annotation(t, 5))
	s := d.server(links)
	if _, err := call(t, s, request("ADD", "a")); err != nil {
		t.Fatal(err)
	}
	d.ensureErr = errors.New("injected")
	if _, err := call(t, s, request("ADD", "a")); err == nil || len(d.portNames()) != 2 {
		t.Errorf("a repeated ADD failed with %v and left ports %v", err, d.portNames())
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
		{"no overlap", other("10.99.0.0/16"), ""},
		{"subnet and subnet", other("10.20.5.0/24"), "subnet 10.20.0.0/16 of network ns_blue overlaps subnet 10.20.5.0/24 of network ns_red"},
		{"IPv6", other("10.99.0.0/16,fd20:0:0:7::/64"), "subnet fd20::/48 of network ns_blue overlaps subnet fd20:0:0:7::/64 of network ns_red"},
		{"join and subnet", other("100.65.3.0/24"), "join subnet 100.65.0.0/16 of network ns_blue overlaps subnet 100.65.3.0/24 of network ns_red"},
		{"the default network's join", other("100.64.3.0/24"), "join subnet 100.64.0.0/16 of network default overlaps subnet 100.64.3.0/24 of network ns_red"},
		{"join and join", other("10.99.0.0/16", "100.65.0.0/17"), "join subnet 100.65.0.0/16 of network ns_blue overlaps join subnet 100.65.0.0/17 of network ns_red"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, links := newFakeDeps(), NewFakeLinks("/ns/a")
			d.nads["ns/red"] = network.NAD{Namespace: "ns", Name: "red", Network: c.net}
			a := annotation(t, 5)
			a["ns/red"] = network.PodNetwork{MAC: "0a:58:0a:63:00:05", Role: network.RoleSecondary, IPs: []netip.Prefix{netip.MustParsePrefix("10.99.0.5/16")}}
			d.setPod("uid-1", a)
			s := d.server(links)
			for _, nad := range []string{"", "ns/red"} {
				r := request("ADD", "a")
				if r.NAD = nad; nad != "" {
					r.IfName = "net1"
					d.pods["ns/pod"].Annotations[network.AnnotationNetworks] = "red"
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
	d, links := newFakeDeps(), NewFakeLinks("/ns/a", "/ns/b", "/ns/c")
	s := d.server(links)
	for _, sandbox := range []string{"a", "b", "c"} {
		d.setPod("uid-1", annotation(t, 5))
		if _, err := call(t, s, request("ADD", sandbox)); err != nil {
			t.Fatal(err)
		}
		d.mu.Lock() // make the ports those of different pods
		for n, p := range d.ports {
			p.LSP += sandbox
			d.ports[n] = p
		}
		d.mu.Unlock()
	}
	links.DeleteNamespace("/ns/a")
	if err := s.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := d.portNames(); len(n) != 4 {
		t.Errorf("collecting one of three pods leaves %v", n)
	}
	d.ports["foreign"] = Port{Name: "foreign", Sandbox: "x", Attachment: "othernet/net1"}
	gc := Request{Command: "GC", CNIVersion: "1.1.0", Network: NetworkName, Valid: []ValidAttachment{{ContainerID: "c", IfName: "eth0"}}}
	if _, err := call(t, s, gc); err != nil {
		t.Fatal(err)
	}
	if n := d.portNames(); len(n) != 3 {
		t.Errorf("GC leaves %v, want the ports of sandbox c and of the other configuration", n)
	}
}

func TestStatus(t *testing.T) {
	d := newFakeDeps()
	s := NewServer(Config{Default: defaultNet}, d, d, d, NewFakeLinks(), d)
	status := Request{Command: "STATUS", CNIVersion: "1.1.0", Network: NetworkName}
	if _, err := call(t, s, status); err == nil || cniError(err).Code != 50 {
		t.Errorf("STATUS before the first sync: %v", err)
	}
	s.SetReady("")
	if _, err := call(t, s, status); err != nil {
		t.Error(err)
	}
}

// TestPlugin runs the real client against the real socket.
func TestPlugin(t *testing.T) {
	dir := t.TempDir()
	bin, socket := program.Build(t, "bulkhead/cmd/cni"), filepath.Join(dir, "run", "cni.sock")
	if err := InstallPlugin(bin, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	d := newFakeDeps()
	d.setPod("uid-1", annotation(t, 5))
	s := d.server(NewFakeLinks("/ns/a"))
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
	l, err := process.ListenUnix(socket) // a stale socket
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, socket) }()
	deadline := time.Now().Add(time.Minute)
	for { // a runtime also polls STATUS
		if _, err := run("STATUS"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the server does not become ready")
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
	if v, err := run("NONSENSE"); err == nil || v["code"] != 4.0 {
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

// TestStatusRetried: the network status is written once the API server answers again. A pod that is gone gets none.
func TestStatusRetried(t *testing.T) {
	for want, errs := range map[int][]error{
		1: {errors.New("connection refused"), errors.New("connection refused")},
		0: {errors.New("connection refused"), apierrors.NewNotFound(corev1.Resource("pods"), "pod")},
	} {
		synctest.Test(t, func(t *testing.T) {
			d, links := newFakeDeps(), NewFakeLinks("/ns/a")
			d.setPod("uid-1", annotation(t, 5))
			for _, err := range errs {
				d.statusErrs <- err
			}
			if _, err := call(t, d.server(links), request("ADD", "a")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * statusRetries)
			synctest.Wait()
			if got := len(d.statuses); got != want {
				t.Errorf("after %v: %d statuses, want %d", errs, got, want)
			}
		})
	}
}
