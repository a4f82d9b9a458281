// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/database/inmemory"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/ovn-kubernetes/libovsdb/server"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/vsdb"
	"bulkhead/test/native"
)

// forEachServer runs a test against libovsdb's server in memory and, if
// BULKHEAD_ROOTFS is a Debian 13 tree, against its ovsdb-server.
func forEachServer(t *testing.T, test func(t *testing.T, c *Client)) {
	t.Run("memory", func(t *testing.T) { test(t, connect(t, memoryServer(t))) })
	t.Run("ovsdb-server", func(t *testing.T) { test(t, connect(t, realServer(t))) })
}

func memoryServer(t *testing.T) string {
	t.Helper()
	types, err := vsdb.FullDatabaseModel()
	if err != nil {
		t.Fatal(err)
	}
	discard := logr.Discard()
	db := inmemory.NewDatabase(map[string]model.ClientDBModel{"Open_vSwitch": types}, &discard)
	dbModel, errs := model.NewDatabaseModel(vsdb.Schema(), types)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	s, err := server.NewOvsdbServer(db, &discard, dbModel)
	if err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(t.TempDir(), "db.sock")
	go func() { _ = s.Serve("unix", sock) }()
	t.Cleanup(s.Close)
	return "unix:" + sock
}

// rootfs returns the tree to run Open vSwitch from.
func rootfs(t *testing.T) native.Tree {
	t.Helper()
	root, err := native.FindTree()
	if err != nil {
		t.Skip(err)
	}
	return root
}

// fromRootfs returns a command of the tree, run with the tree's libraries.
func fromRootfs(root native.Tree, program string, args ...string) *exec.Cmd {
	argv := root.Argv(program, args...)
	return exec.Command(argv[0], argv[1:]...)
}

// background runs a daemon of the tree until the test ends.
func background(t *testing.T, root native.Tree, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := fromRootfs(root, program, args...)
	cmd.Stderr = &testLog{t}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

type testLog struct{ t *testing.T }

func (l *testLog) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "|ERR|") || strings.Contains(string(p), "|EMER|") {
		fmt.Fprint(os.Stderr, l.t.Name()+": "+string(p))
	}
	return len(p), nil
}

// realServer starts ovsdb-server on a fresh database.
func realServer(t *testing.T) string {
	t.Helper()
	return startServer(t, rootfs(t), t.TempDir())
}

func startServer(t *testing.T, root native.Tree, dir string) string {
	t.Helper()
	db := filepath.Join(dir, "conf.db")
	if _, err := os.Stat(db); err != nil {
		out, err := fromRootfs(root, "ovsdb-tool", "create", db, root.Path("usr/share/openvswitch/vswitch.ovsschema")).CombinedOutput()
		if err != nil {
			t.Fatalf("ovsdb-tool create: %v: %s", err, out)
		}
	}
	sock := filepath.Join(dir, "db.sock")
	background(t, root, "ovsdb-server", db, "--remote=punix:"+sock, "--unixctl="+filepath.Join(dir, "ovsdb.ctl"), "--no-chdir")
	return "unix:" + sock
}

func connect(t *testing.T, address string) *Client {
	t.Helper()
	ctx := deadline(t)
	c, err := Connect(ctx, address, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	initialise(t, c)
	return c
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// initialise creates the root row, like ovs-vswitchd's start script, and an
// external bridge.
func initialise(t *testing.T, c *Client) {
	t.Helper()
	ctx := deadline(t)
	if _, err := c.root(ctx); err == nil {
		return
	}
	i := &vsdb.Interface{UUID: "i", Name: "br-ex", Type: "internal"}
	p := &vsdb.Port{UUID: "p", Name: "br-ex", Interfaces: []string{"i"}}
	b := &vsdb.Bridge{UUID: "b", Name: "br-ex", Ports: []string{"p"}, DatapathType: "dummy"}
	o := &vsdb.OpenvSwitch{UUID: "o", Bridges: []string{"b"}, ExternalIDs: map[string]string{
		"ovn-bridge-mappings": "localnet1:br-ops", "ovn-bridge-datapath-type": "dummy"}}
	transact(t, c, must(c.create(i, p, b, o))...)
	waitFor(t, c, func() bool { _, err := c.root(ctx); return err == nil })
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func transact(t *testing.T, c *Client, ops ...ovsdb.Operation) {
	t.Helper()
	if _, err := c.db.Transact(deadline(t), c.db.Client(), ops...); err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, c *Client, cond func() bool) {
	t.Helper()
	if err := c.await(deadline(t), anyRow, func() (bool, error) { return cond(), nil }); err != nil {
		t.Fatal(err)
	}
}

var testInputs = Inputs{SBAddress: "unix:/var/run/ovn/ovnsb_db.sock", ExternalBridge: "br-ex", PhysicalNetwork: "physnet"}

func testNode() network.Node {
	return network.Node{Name: "node-1", ID: 3, EncapIPs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}
}

func testNetwork(id int) network.Network {
	return network.Network{ID: id, Name: fmt.Sprintf("cluster_udn_n%d", id), Topology: network.Layer3, Role: network.RolePrimary, MTU: 1400,
		Subnets: []network.Subnet{{CIDR: netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", id%200)), HostLen: 24}}}
}

func TestChassis(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *Client) {
		ctx := deadline(t)
		for range 2 {
			if err := c.SyncChassis(ctx, testNode(), testInputs); err != nil {
				t.Fatal(err)
			}
		}
		ids, err := c.ExternalIDs(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for k, want := range map[string]string{
			"ovn-bridge-mappings": "localnet1:br-ops,physnet:br-ex", "ovn-encap-ip": "192.0.2.7", "ovn-is-interconn": "true",
			"system-id": ChassisID("node-1", nil), "ovn-bridge-datapath-type": "dummy",
		} {
			if ids[k] != want {
				t.Errorf("external_ids:%s is %q, want %q", k, ids[k], want)
			}
		}
		br := &vsdb.Bridge{Name: "br-int"}
		if err := c.db.Get(ctx, br); err != nil || br.FailMode == nil || *br.FailMode != "secure" || br.DatapathType != "dummy" {
			t.Errorf("br-int is %+v, %v: want fail_mode secure", br, err)
		}
		in := testInputs
		in.ExternalIDs = ids
		want := must(BuildChassis(testNode(), in))
		if ops := Diff(want, must(c.Read(ctx, OwnerChassis))); len(ops) > 0 {
			t.Errorf("a second run would still apply:\n%s", Describe(ops))
		}
	})
}

func TestManagementPorts(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *Client) {
		ctx := deadline(t)
		if err := c.SyncChassis(ctx, testNode(), testInputs); err != nil {
			t.Fatal(err)
		}
		var nets []network.Network
		for id := 1; id <= 450; id++ {
			nets = append(nets, testNetwork(id))
		}
		full := testNetwork(451)
		full.Subnets[0].CIDR = netip.MustParsePrefix("10.1.0.0/24") // has a subnet for node 1 only
		err := c.SyncManagement(ctx, testNode(), append(nets, full), nil)
		if err == nil || !strings.Contains(err.Error(), full.Name) {
			t.Errorf("a network without a subnet for the node: got error %v", err)
		}
		s := must(c.Read(ctx, OwnerManagement))
		if len(s.Ports) != len(nets) {
			t.Fatalf("%d management ports, want %d", len(s.Ports), len(nets))
		}
		got := s.Ports["ovn-k8s-mp7"]
		if got.MAC != "0a:58:0a:07:02:02" || got.MTU != 1400 || got.ExternalIDs[KeyLSP] != "k8s-cluster_udn_n7_node-1" || got.Bridge != "br-int" || !got.Internal {
			t.Errorf("management port is %+v", got)
		}
		nets[6].MTU = 1300
		kept := s.Ports["ovn-k8s-mp20"]
		if err := c.SyncManagement(ctx, testNode(), nets[5:10], []int{7, 20, 999}); err != nil {
			t.Fatal(err)
		}
		if s = must(c.Read(ctx, OwnerManagement)); len(s.Ports) != 6 || s.Ports["ovn-k8s-mp7"].MTU != 1300 || !reflect.DeepEqual(s.Ports["ovn-k8s-mp20"], kept) {
			t.Errorf("after the change: %+v", s.Ports)
		}
	})
}

func podPorts(sandbox string) []PodPort {
	return []PodPort{
		{Name: "veth" + sandbox + "0", LSP: "ns_pod", Namespace: "ns", Pod: "pod", UID: "u-" + sandbox, MAC: "0a:58:0a:f4:00:03", Sandbox: sandbox,
			IfName: "eth0", Attachment: "bulkhead/eth0", NAD: "default", Network: "default"},
		{Name: "veth" + sandbox + "1", LSP: "ns.blue_ns_pod", Namespace: "ns", Pod: "pod", UID: "u-" + sandbox, MAC: "0a:58:0a:14:02:05", Sandbox: sandbox,
			IfName: "ovn-udn1", Attachment: "bulkhead/eth0", NAD: "ns/blue", Network: "ns_blue"},
	}
}

func TestPodPorts(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *Client) {
		ctx := deadline(t)
		if err := c.SyncChassis(ctx, testNode(), testInputs); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			sandbox  string
			replaced []string
		}{{"old", nil}, {"old", nil}, {"new", []string{"vethold0", "vethold1"}}} { // repeated, then a new instance of the pod
			if replaced, err := c.EnsurePods(ctx, podPorts(step.sandbox)); err != nil || !slices.Equal(replaced, step.replaced) {
				t.Fatalf("%s: replaced %v, want %v: %v", step.sandbox, replaced, step.replaced, err)
			}
		}
		list := must(c.ListPods(ctx))
		if len(list) != 2 || list[0] != podPorts("new")[0] || list[1] != podPorts("new")[1] {
			t.Errorf("ports are %+v", list)
		}
		if err := c.DeletePods(ctx, "new", "other/net1"); err != nil {
			t.Fatal(err)
		}
		if list = must(c.ListPods(ctx)); len(list) != 2 {
			t.Errorf("deleting another attachment leaves %d ports, want 2", len(list))
		}
		for range 2 { // missing ports are no error
			if err := c.DeletePods(ctx, "new", "bulkhead/eth0"); err != nil {
				t.Fatal(err)
			}
		}
		if list = must(c.ListPods(ctx)); len(list) != 0 {
			t.Errorf("leftover ports: %+v", list)
		}
	})
}

func TestForeignPortStays(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *Client) {
		ctx := deadline(t)
		if err := c.SyncChassis(ctx, testNode(), testInputs); err != nil {
			t.Fatal(err)
		}
		foreign := podPorts("x")[0]
		i := &vsdb.Interface{UUID: "i", Name: foreign.Name, ExternalIDs: map[string]string{KeySandbox: "x", KeyLSP: foreign.LSP}}
		p := &vsdb.Port{UUID: "p", Name: foreign.Name, Interfaces: []string{"i"}}
		ops := must(c.create(i, p))
		br := &vsdb.Bridge{Name: "br-ex"}
		if err := c.db.Get(ctx, br); err != nil {
			t.Fatal(err)
		}
		transact(t, c, append(ops, must(c.db.Where(br).Mutate(br, model.Mutation{Field: &br.Ports, Mutator: "insert", Value: []string{"p"}}))...)...)
		waitFor(t, c, func() bool { return c.db.Get(ctx, &vsdb.Interface{Name: foreign.Name}) == nil })
		_, err := c.EnsurePods(ctx, podPorts("x"))
		if err == nil || !strings.Contains(err.Error(), "add port "+foreign.Name) {
			t.Errorf("adding a port with a foreign port's name: got error %v", err)
		}
		if list := must(c.ListPods(ctx)); len(list) != 1 || list[0].Name != podPorts("x")[1].Name {
			t.Errorf("ports are %+v, want only the second", list)
		}
		if err := c.DeletePods(ctx, "x", ""); err != nil {
			t.Fatal(err)
		}
		if err := c.db.Get(ctx, &vsdb.Interface{Name: foreign.Name}); err != nil {
			t.Errorf("the foreign interface was deleted: %v", err)
		}
	})
}

func TestWaitInstalled(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *Client) {
		ctx := deadline(t)
		if err := c.SyncChassis(ctx, testNode(), testInputs); err != nil {
			t.Fatal(err)
		}
		ports := podPorts("s")
		if _, err := c.EnsurePods(ctx, ports); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		err := c.WaitInstalled(short, ports)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the interface has no OpenFlow port yet") {
			t.Errorf("without ovn-controller: %v", err)
		}
		done := make(chan error, 1)
		go func() { done <- c.WaitInstalled(ctx, ports) }()
		for _, p := range ports { // as ovn-controller does
			row := &vsdb.Interface{Name: p.Name}
			if err := c.db.Get(ctx, row); err != nil {
				t.Fatal(err)
			}
			transact(t, c, must(c.setIDs(row, &row.ExternalIDs, map[string]string{KeyInstalled: "true"}, nil))...)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		// EnsurePods is idempotent and keeps ovn-controller's external_ids.
		if _, err := c.EnsurePods(ctx, ports); err != nil {
			t.Fatal(err)
		}
		if err := c.WaitInstalled(ctx, ports); err != nil {
			t.Fatal(err)
		}
		// A port with the same name that was bound for another pod does not count.
		later := podPorts("s")
		later[0].UID = "another"
		short, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if err := c.WaitInstalled(short, later[:1]); err == nil || !strings.Contains(err.Error(), "belongs to logical port") {
			t.Errorf("another pod's port: %v", err)
		}
	})
}

func TestReconnectsAfterDatabaseRestart(t *testing.T) {
	root, dir := rootfs(t), t.TempDir()
	db := filepath.Join(dir, "conf.db")
	if out, err := fromRootfs(root, "ovsdb-tool", "create", db, root.Path("usr/share/openvswitch/vswitch.ovsschema")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sock := filepath.Join(dir, "db.sock")
	args := []string{db, "--remote=punix:" + sock, "--unixctl=" + filepath.Join(dir, "ctl"), "--no-chdir"}
	first := background(t, root, "ovsdb-server", args...)
	c := connect(t, "unix:"+sock)
	ctx := deadline(t)
	if err := c.SyncChassis(ctx, testNode(), testInputs); err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsurePods(ctx, podPorts("s")); err != nil {
		t.Fatal(err)
	}
	_ = first.Process.Kill()
	_ = first.Wait()
	_ = os.Remove(sock)
	background(t, root, "ovsdb-server", args...)
	if err := c.DeletePods(ctx, "s", ""); err != nil { // waits for the new connection
		t.Fatal(err)
	}
	if list := must(c.ListPods(ctx)); len(list) != 0 {
		t.Errorf("leftover ports: %+v", list)
	}
}
