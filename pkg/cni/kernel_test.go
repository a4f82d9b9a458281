// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

// setupNamespaces moves the test into a new network namespace, which acts as the
// host's, and returns the path of another one, which acts as the pod's.
func setupNamespaces(t *testing.T) (path string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test's goroutine
	dir := t.TempDir()
	path = filepath.Join(dir, "pod")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pod, err := netns.New()
	if err != nil {
		t.Skipf("cannot make network namespaces: %v", err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "none", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	_ = pod.Close()
	host, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	return path
}

func buildPod(t *testing.T, sandbox, path string) Pod {
	t.Helper()
	d := newFakeDeps()
	d.setPod("uid-1", annotation(t, 5))
	s := d.server(nil)
	r := request("ADD", sandbox)
	r.NetNS = path
	in, missing, err := s.inputs(t.Context(), r)
	if missing != "" || err != nil {
		t.Fatal(missing, err)
	}
	p, err := Build(r, in)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestKernelConvergesAfterCrash(t *testing.T) {
	path := setupNamespaces(t)
	p := buildPod(t, "sandbox", path)
	want := p.Links()
	all := len(Diff(want, State{}))
	for crash := 0; crash <= all; crash++ {
		ns, err := Kernel{}.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		// Apply some operations, crash, then read the actual state and apply the rest.
		if err := Apply(t.Context(), ns, Diff(want, State{})[:crash]); err != nil {
			t.Fatal(err)
		}
		have, err := ns.Read(t.Context(), p.names())
		if err != nil {
			t.Fatal(err)
		}
		if err := Apply(t.Context(), ns, Diff(want, have)); err != nil {
			t.Fatal(err)
		}
		if have, err = ns.Read(t.Context(), p.names()); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(have, want) {
			t.Errorf("crash after %d operations: have %+v\nwant %+v", crash, have, want)
		}
		if ops := Diff(want, have); len(ops) > 0 {
			t.Errorf("crash after %d operations: a further run would do %v", crash, ops)
		}
		for _, i := range p.Interfaces {
			if host, err := netlink.LinkByName(i.Host); err != nil || host.Attrs().Group != network.PodLinkGroup {
				t.Errorf("the host's end %s: %v, %v; want the link group %d, which nftables knows", i.Host, host, err, network.PodLinkGroup)
			}
			if err := (Kernel{}).DeleteHost(i.Host); err != nil {
				t.Fatal(err)
			}
			if err := (Kernel{}).DeleteHost(i.Host); err != nil {
				t.Errorf("deleting a missing host end: %v", err)
			}
		}
		if have, err = ns.Read(t.Context(), p.names()); err != nil || len(have) != 0 {
			t.Errorf("leftover links: %+v %v", have, err)
		}
		ns.Close()
	}
}

func TestKernelInsidePod(t *testing.T) {
	path := setupNamespaces(t)
	p := buildPod(t, "sandbox", path)
	ns, err := Kernel{}.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := Apply(t.Context(), ns, Diff(p.Links(), State{})); err != nil {
		t.Fatal(err)
	}
	k := ns.(*kernelPod)
	// Without IPAM the pod may set IPv6 addresses; an IPv4 network has none.
	for name, want := range map[string]string{"none": "0", "ipv4": "1"} {
		l := Link{Name: name, Host: HostName("sandbox", name), MAC: "0a:58:0a:63:00:05", MTU: 1400, Up: true}
		if name == "ipv4" {
			l.Addresses = prefixes("10.99.0.5/16")
		}
		if err := k.addLink(l); err != nil {
			t.Fatal(err)
		}
		if err := k.inPodNamespace(func() error {
			b, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6")
			if err == nil && strings.TrimSpace(string(b)) != want {
				err = fmt.Errorf("disable_ipv6 is %s, want %s", b, want)
			}
			return err
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"eth0", "ovn-udn1"} {
		link, err := k.pod.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		// Duplicate address detection would delay the pod's first packet.
		for _, setting := range []string{"accept_ra", "accept_dad"} {
			if err := k.inPodNamespace(func() error {
				b, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/" + setting)
				if err == nil && strings.TrimSpace(string(b)) != "0" {
					err = fmt.Errorf("%s is %s", setting, b)
				}
				return err
			}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		// The kernel clears the tentative flag asynchronously, in a work item.
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			addrs, err := k.pod.AddrList(link, netlink.FAMILY_V6)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 }) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: an address stays tentative: %v", name, addrs)
			}
		}
	}
	// The default routes of both IP families use the primary network.
	for _, dst := range []string{"8.8.8.8", "2001:db8::1"} {
		routes, err := k.pod.RouteGet(net.ParseIP(dst))
		if err != nil {
			t.Fatalf("route to %s: %v", dst, err)
		}
		link, err := k.pod.LinkByIndex(routes[0].LinkIndex)
		if err != nil || link.Attrs().Name != network.PrimaryInterface {
			t.Errorf("route to %s uses %v (%v), want %s", dst, link, err, network.PrimaryInterface)
		}
	}
	// Another sandbox's interface of the same name stays unchanged.
	foreign := request("ADD", "another")
	if have, err := ns.Read(t.Context(), Pod{Request: foreign}.names()); err != nil || len(have) != 0 {
		t.Errorf("links of sandbox %q read as those of %q: %+v %v", "sandbox", "another", have, err)
	}
	q := buildPod(t, "another", path)
	if err := Apply(t.Context(), ns, Diff(q.Links(), State{})); err == nil || !strings.Contains(err.Error(), "add interface eth0") {
		t.Errorf("adding an interface with a name in use: got %v", err)
	}
	have, err := ns.Read(t.Context(), p.names())
	if err != nil || have["eth0"].MAC != p.Links()["eth0"].MAC {
		t.Errorf("the existing interface changed: %+v %v", have, err)
	}
}

func TestKernelServer(t *testing.T) {
	path := setupNamespaces(t)
	d := newFakeDeps()
	d.setPod("uid-1", annotation(t, 5))
	s := d.server(Kernel{})
	for _, command := range []string{"ADD", "ADD", "CHECK", "DEL", "DEL"} {
		r := request(command, "sandbox")
		r.NetNS = path
		// Must run on this goroutine: its thread is in the test's namespace.
		if out, _, err := s.Handle(t.Context(), r.wire(t)); err != nil {
			t.Fatalf("%s: %v %s", command, err, out)
		}
	}
	r := request("CHECK", "sandbox")
	r.NetNS = path
	if _, _, err := s.Handle(t.Context(), r.wire(t)); err == nil {
		t.Error("CHECK passes after DEL")
	}
	if _, err := (Kernel{}).Open("/proc/self/task/" + fmt.Sprint(unix.Gettid()) + "/ns/net"); err == nil || !strings.Contains(err.Error(), "is the host's") {
		t.Errorf("opening the host's namespace as a pod's: %v", err)
	}
}
