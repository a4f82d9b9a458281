// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"bulkhead/test/lab/internal/remote"
	"bulkhead/test/lab/internal/sys"

	"golang.org/x/sync/errgroup"
)

// modules are the kernel modules that the product or a test needs, except those that
// the kernel loads on demand, such as other nftables expressions.
var modules = []string{"virtio_net", "openvswitch", "geneve", "vrf", "veth", "nf_tables", "nft_socket", "nft_ct", "nft_fib_inet", "nft_reject_inet", "nft_nat", "nft_masq"}

// Booted is the message of a node that is set up, on its console.
const Booted = "lab node is up"

// Node sets a node VM up: the command server, the network, and the daemons in the order
// of their dependencies. It returns only on an error.
func Node(name string) error {
	slog.Info("starting lab node", "node", name, "uptime", uptime())
	c, err := readConfig(name)
	if err != nil {
		return err
	}
	if err := modprobe(modules...); err != nil {
		return err
	}
	slog.Info("loaded kernel modules", "uptime", uptime())
	if err := setIdentity(c); err != nil {
		return err
	}
	if err := Configure("lo", nil, nil); err != nil {
		return err
	}
	l, err := managementListener("eth1", c.Management)
	if err != nil {
		return err
	}
	// Not in the root cgroup, which the kernel's own sockets have: the product judges
	// connections by cgroup.
	if err := enterCgroup("lab/init"); err != nil {
		return err
	}
	// All commands run in one cgroup.
	commands, err := openCgroup("lab/exec")
	if err != nil {
		return err
	}
	server := &remote.Server{Token: c.Token, Env: Environment(), Prepare: func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(commands.Fd())}
	}}
	go server.Serve(l)
	// Configure the card first, so that kubelet and containerd need not wait for OVS.
	if err := Configure("eth0", c.Addresses, c.Gateways); err != nil {
		return err
	}
	slog.Info("network is up", "uptime", uptime())

	var group errgroup.Group
	group.Go(func() error { return startRuntime(c) })
	group.Go(func() error { return startSwitch(c) })
	if err := group.Wait(); err != nil {
		return err
	}
	slog.Info(Booted, "node", c.Name, "uptime", uptime())
	select {}
}

// setIdentity sets the machine's name, hosts file and basic kernel parameters.
func setIdentity(c Config) error {
	if err := syscall.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, h := range c.Hosts {
		fmt.Fprintf(&hosts, "%s %s\n", h.Address, h.Name)
	}
	files := map[string]string{
		"/etc/hosts": hosts.String(), "/etc/hostname": c.Name + "\n",
		"/etc/resolv.conf": "", // there is no name server: an empty file keeps daemons from waiting for one
		"/etc/machine-id":  machineID(c.Name),
	}
	for path, content := range files {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	sysctls(map[string]string{
		"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1",
		"net.ipv6.conf.all.accept_ra": "0", "net.ipv6.conf.default.accept_ra": "0",
		"fs.inotify.max_user_instances": "1024", "kernel.panic": "5",
	})
	return nil
}

// machineID returns a machine id that a node keeps across reboots.
func machineID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16]) + "\n"
}

// startRuntime starts containerd on the prepared image store, and kubelet.
func startRuntime(c Config) error {
	if err := copyStore(ImagesDir, "/var/lib/containerd"); err != nil {
		return err
	}
	for _, d := range []string{"/opt/cni/bin", "/etc/cni/net.d", "/etc/kubernetes/manifests", "/var/log/pods"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("create %s: %w", d, err)
		}
	}
	// containerd 1.7 runs the loopback plugin for every pod.
	if err := os.Symlink(ShareDir+"/bin/loopback", "/opt/cni/bin/loopback"); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("install the loopback plugin: %w", err)
	}
	go daemon{name: "containerd", argv: []string{"/usr/bin/containerd", "--config", ShareDir + "/config/containerd.toml"}}.keepRunning()
	if err := sys.WaitFile("/run/containerd/containerd.sock", time.Minute); err != nil {
		return err
	}
	slog.Info("containerd is up", "uptime", uptime())
	var ips []string
	for _, a := range c.Addresses {
		ips = append(ips, a.Addr().String())
	}
	dir := ShareDir + "/nodes/" + c.Name
	go daemon{name: "kubelet", cgroup: "kubelet", argv: []string{ShareDir + "/bin/kubelet",
		"--config=" + dir + "/kubelet.yaml", "--kubeconfig=" + dir + "/kubeconfig",
		"--hostname-override=" + c.Name, "--node-ip=" + strings.Join(ips, ","), "--v=1",
		// Nobody reads the containers' statistics, which take a seventh of its CPU time.
		"--housekeeping-interval=5m",
	}}.keepRunning()
	return nil
}

// copyStore makes a writable copy of the image store. It copies small files, which are
// databases, and links to snapshots and blobs, which never change. containerd can
// delete a link like a directory.
func copyStore(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("walk the image store: %w", err)
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		shared := filepath.Base(filepath.Dir(path))
		switch {
		case d.IsDir() && shared == "snapshots":
			if err := os.Symlink(path, target); err != nil {
				return fmt.Errorf("link a snapshot: %w", err)
			}
			return filepath.SkipDir
		case d.IsDir():
			if err := os.MkdirAll(target, 0o711); err != nil {
				return fmt.Errorf("create the image store: %w", err)
			}
			return nil
		case shared == "sha256":
			return os.Symlink(path, target)
		case d.Type().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("read the image store: %w", err)
			}
			return os.WriteFile(target, data, 0o600)
		}
		return nil
	})
}

// startSwitch starts OVS, adds the card to br-ex and moves the node's addresses there, unless the
// product does, and starts the node's OVN zone. ovn-controller stays idle until the product sets the
// external_ids of the Open_vSwitch row.
func startSwitch(c Config) error {
	if err := preferSwitch(); err != nil {
		return err
	}
	const ovs, ovn = "/var/run/openvswitch", "/var/run/ovn"
	for _, d := range []string{ovs, ovn, "/var/log/openvswitch", "/var/log/ovn", "/etc/openvswitch", "/var/lib/ovn"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("create %s: %w", d, err)
		}
	}
	// The root file system has empty databases: creating one would take a process.
	for from, to := range map[string]string{
		"conf.db": "/etc/openvswitch/conf.db", "ovnnb_db.db": "/var/lib/ovn/ovnnb_db.db", "ovnsb_db.db": "/var/lib/ovn/ovnsb_db.db",
	} {
		data, err := os.ReadFile("/usr/share/bulkhead-lab/" + from)
		if err != nil {
			return fmt.Errorf("read an empty database: %w", err)
		}
		if err := os.WriteFile(to, data, 0o640); err != nil {
			return fmt.Errorf("write an empty database: %w", err)
		}
	}
	go daemon{name: "ovsdb-server", cgroup: switchCgroup + "ovsdb-server", argv: []string{"/usr/sbin/ovsdb-server", "/etc/openvswitch/conf.db",
		"--remote=punix:" + ovs + "/db.sock", "--remote=db:Open_vSwitch,Open_vSwitch,manager_options",
		"--pidfile=" + ovs + "/ovsdb-server.pid", "--log-file=/var/log/openvswitch/ovsdb-server.log", "-vconsole:off"}}.keepRunning()
	for _, db := range []struct{ short, file, schema, table string }{
		{"nb", "ovnnb_db", "OVN_Northbound", "NB_Global"}, {"sb", "ovnsb_db", "OVN_Southbound", "SB_Global"},
	} {
		go daemon{name: "ovn-" + db.short, cgroup: switchCgroup + db.short, argv: []string{"/usr/sbin/ovsdb-server", "/var/lib/ovn/" + db.file + ".db",
			"--remote=punix:" + ovn + "/" + db.file + ".sock", "--remote=db:" + db.schema + "," + db.table + ",connections",
			"--pidfile=" + ovn + "/" + db.file + ".pid", "--unixctl=" + ovn + "/" + db.file + ".ctl",
			"--log-file=/var/log/ovn/ovsdb-server-" + db.short + ".log", "-vconsole:off"}}.keepRunning()
	}
	if err := sys.WaitFile(ovs+"/db.sock", time.Minute); err != nil {
		return err
	}
	mac := MAC(0x54, c.Addresses[0].Addr())
	initialise := []string{"/usr/bin/ovs-vsctl", "--no-wait", "--", "init"}
	if !c.AgentUplink {
		initialise = append(initialise, "--", "--may-exist", "add-br", "br-ex",
			"--", "set", "bridge", "br-ex", "fail_mode=standalone", "other-config:hwaddr=\""+mac.String()+"\"",
			"--", "--may-exist", "add-port", "br-ex", "eth0")
	}
	if err := run(initialise...); err != nil {
		return err
	}
	slog.Info("OVSDB servers are up", "uptime", uptime())
	go daemon{name: "ovs-vswitchd", cgroup: switchCgroup + "ovs-vswitchd", argv: []string{"/usr/sbin/ovs-vswitchd", "unix:" + ovs + "/db.sock",
		"--pidfile=" + ovs + "/ovs-vswitchd.pid", "--log-file=/var/log/openvswitch/ovs-vswitchd.log", "-vconsole:off"}}.keepRunning()
	for _, db := range []string{"ovnnb_db", "ovnsb_db"} {
		if err := sys.WaitFile(ovn+"/"+db+".sock", time.Minute); err != nil {
			return err
		}
	}
	go daemon{name: "ovn-northd", cgroup: switchCgroup + "ovn-northd", argv: []string{"/usr/bin/ovn-northd", "--ovnnb-db=unix:" + ovn + "/ovnnb_db.sock",
		"--ovnsb-db=unix:" + ovn + "/ovnsb_db.sock", "--pidfile=" + ovn + "/ovn-northd.pid",
		"--log-file=/var/log/ovn/ovn-northd.log", "-vconsole:off"}}.keepRunning()
	go daemon{name: "ovn-controller", cgroup: switchCgroup + "ovn-controller", argv: []string{"/usr/bin/ovn-controller", "unix:" + ovs + "/db.sock",
		"--pidfile=" + ovn + "/ovn-controller.pid", "--log-file=/var/log/ovn/ovn-controller.log", "-vconsole:off"}}.keepRunning()
	if c.AgentUplink {
		return nil
	}
	if _, err := waitLink("br-ex"); err != nil {
		return err
	}
	return moveAddresses("eth0", "br-ex", c.Addresses, c.Gateways)
}

// uptime returns the seconds since the kernel started, for the log.
func uptime() string {
	data, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return "unknown"
	}
	seconds, _, _ := strings.Cut(string(data), " ")
	return seconds
}

func run(argv ...string) error {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return nil
}
