// SPDX-License-Identifier: Apache-2.0

// Package native runs OVN and Open vSwitch from a Debian 13 tree on this machine, with
// the userspace datapath and, if the caller wants that, in network namespaces. It needs
// neither a virtual machine nor installed packages.
package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"bulkhead/test/api"
)

// TreeEnv names the root of the Debian 13 tree.
const TreeEnv = "BULKHEAD_ROOTFS"

// Tree is the root of a Debian 13 tree with OVN and Open vSwitch.
type Tree string

// FindTree returns the tree that TreeEnv names.
func FindTree() (Tree, error) {
	root := Tree(os.Getenv(TreeEnv))
	if root == "" {
		return "", fmt.Errorf("%s names no Debian 13 tree with OVN", TreeEnv)
	}
	if _, err := os.Stat(root.Path("usr/bin/ovn-northd")); err != nil {
		return "", fmt.Errorf("%s: %w", TreeEnv, err)
	}
	return root, nil
}

// Path returns the path of a file of the tree.
func (r Tree) Path(p string) string { return filepath.Join(string(r), p) }

// Argv returns the command line that runs a program of the tree with the tree's own
// libraries.
func (r Tree) Argv(program string, args ...string) []string {
	bin := ""
	// ovs-vswitchd in usr/sbin is a symlink through this machine's /etc/alternatives.
	for _, dir := range []string{"usr/lib/openvswitch-switch/", "usr/lib/frr/", "usr/bin/", "usr/sbin/"} {
		bin = r.Path(dir + program)
		if _, err := os.Stat(bin); err == nil {
			break
		}
	}
	libraries := r.Path("usr/lib/x86_64-linux-gnu")
	return append([]string{r.Path("usr/lib64/ld-linux-x86-64.so.2"), "--library-path", libraries + ":" + libraries + "/frr", bin}, args...)
}

// Run runs a command for at most a minute and returns its output; its error holds what
// the command wrote to stderr.
func Run(env []string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// Eventually calls f until it succeeds, for at most a minute.
func Eventually(desc string, f func() error) error {
	deadline := time.Now().Add(time.Minute)
	for {
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("timeout after a minute: %s: %w", desc, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Host is one node with its databases and daemons, in the network namespace NS if that
// is set.
type Host struct {
	Tree Tree
	Name string
	Dir  string // sockets, databases and logs
	NS   string

	daemons []*exec.Cmd
}

// NewHost creates the directory of a host without daemons. Stop removes it.
func NewHost(r Tree, name, ns string) (*Host, error) {
	// A unix socket's path holds 107 bytes, so the directory of a test does not do.
	dir, err := os.MkdirTemp("/tmp", "bh-ovn-")
	if err != nil {
		return nil, fmt.Errorf("create the directory of host %s: %w", name, err)
	}
	return &Host{Tree: r, Name: name, NS: ns, Dir: dir}, nil
}

// Stop kills the host's daemons and removes its directory.
func (h *Host) Stop() error {
	for _, cmd := range h.daemons {
		Kill(cmd)
	}
	h.daemons = nil
	if err := os.RemoveAll(h.Dir); err != nil {
		return fmt.Errorf("remove the directory of host %s: %w", h.Name, err)
	}
	return nil
}

// Kill ends a daemon, unless it has been waited for already.
func Kill(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func (h *Host) env() []string {
	return append(os.Environ(), "OVS_RUNDIR="+h.Dir, "OVN_RUNDIR="+h.Dir, "OVS_LOGDIR="+h.Dir, "OVN_LOGDIR="+h.Dir, "OVS_DBDIR="+h.Dir, "OVN_DBDIR="+h.Dir,
		"OVN_NB_DB="+h.Sock("nb"), "OVN_SB_DB="+h.Sock("sb"))
}

// Path returns the path of a file in the host's directory.
func (h *Host) Path(name string) string { return filepath.Join(h.Dir, name) }

// Sock returns the OVSDB address of a database of the host: nb, sb or ovs.
func (h *Host) Sock(db string) string { return "unix:" + h.Path(db+".sock") }

// inNamespace returns argv prefixed to run in the host's namespace.
func (h *Host) inNamespace(argv []string) []string {
	if h.NS == "" {
		return argv
	}
	return append([]string{"ip", "netns", "exec", h.NS}, argv...)
}

// Daemon starts a program, which Stop kills.
func (h *Host) Daemon(program string, args ...string) (*exec.Cmd, error) {
	argv := h.inNamespace(h.Tree.Argv(program, args...))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = h.env()
	out, err := os.Create(h.Path(fmt.Sprintf("%s%d.out", program, time.Now().UnixNano())))
	if err != nil {
		return nil, fmt.Errorf("create the output of %s: %w", program, err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := api.StartChild(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	h.daemons = append(h.daemons, cmd)
	return cmd, nil
}

// Run runs a program of the tree on the host and returns its output.
func (h *Host) Run(program string, args ...string) (string, error) {
	return Run(h.env(), h.inNamespace(h.Tree.Argv(program, args...))...)
}

// Output returns the ends of the daemons' logs, for a failure's message.
func (h *Host) Output() string {
	var out strings.Builder
	files, _ := filepath.Glob(h.Path("*.[lo][ou][gt]"))
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && len(b) > 0 {
			fmt.Fprintf(&out, "%s:\n%s\n", f, b[max(0, len(b)-1500):])
		}
	}
	return out.String()
}

// Namespace creates a network namespace whose name starts with this process' number.
func Namespace(name string) (string, error) {
	name = fmt.Sprintf("bho%d-%s", os.Getpid(), name)
	if _, err := Run(nil, "ip", "netns", "add", name); err != nil {
		return "", err
	}
	_, err := Run(nil, "ip", "-n", name, "link", "set", "lo", "up")
	if err != nil {
		err = errors.Join(err, DeleteNamespace(name))
	}
	return name, err
}

// DeleteNamespace deletes what Namespace created.
func DeleteNamespace(name string) error {
	_, err := Run(nil, "ip", "netns", "del", name)
	return err
}

// Ping pings to from the network namespace ns.
func (r Tree) Ping(ns, to string, count int) error {
	_, err := Run(nil, append([]string{"ip", "netns", "exec", ns}, r.Argv("ping", "-n", "-q", "-c", fmt.Sprint(count), "-i", "0.2", "-W", "1", to)...)...)
	return err
}
