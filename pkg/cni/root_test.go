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
)

// hostAndPod moves the test into a network namespace of its own, so that the
// machine's is not touched, and makes another that stands for a pod's.
func hostAndPod(t *testing.T) (path string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	runtime.LockOSThread() // for good: the thread is thrown away with the test's goroutine
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
	w := newWorld()
	w.setPod("uid-1", annotation(t, 5))
	s := w.server(nil)
	r := request("ADD", sandbox)
	r.NetNS = path
	in, missing, err := s.inputs(r)
	if missing != "" || err != nil {
		t.Fatal(missing, err)
	}
	p, err := Build(r, in)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestKernelConvergesFromAnyPoint(t *testing.T) {
	path := hostAndPod(t)
	p := buildPod(t, "sandbox", path)
	want := p.Links()
	all := len(Diff(want, State{}))
	for crash := 0; crash <= all; crash++ {
		ns, err := Kernel{}.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		// Some operations, then a crash; then a new run that reads what is there.
		if err := Apply(t.Context(), ns, Diff(want, State{})[:crash]); err != nil {
			t.Fatal(err)
		}
		have, err := ns.Read(t.Context(), p.Request.names())
		if err != nil {
			t.Fatal(err)
		}
		if err := Apply(t.Context(), ns, Diff(want, have)); err != nil {
			t.Fatal(err)
		}
		if have, err = ns.Read(t.Context(), p.Request.names()); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(have, want) {
			t.Errorf("crash after %d operations: have %+v\nwant %+v", crash, have, want)
		}
		if ops := Diff(want, have); len(ops) > 0 {
			t.Errorf("crash after %d operations: a further run would do %v", crash, ops)
		}
		for _, i := range p.Interfaces {
			if err := (Kernel{}).DeleteHost(i.Host); err != nil {
				t.Fatal(err)
			}
			if err := (Kernel{}).DeleteHost(i.Host); err != nil {
				t.Errorf("deleting what is gone: %v", err)
			}
		}
		if have, err = ns.Read(t.Context(), p.Request.names()); err != nil || len(have) != 0 {
			t.Errorf("left: %+v %v", have, err)
		}
		ns.Close()
	}
}

func TestKernelInsidePod(t *testing.T) {
	path := hostAndPod(t)
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
	for _, name := range []string{"eth0", "ovn-udn1"} {
		link, err := k.pod.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		// No duplicate address detection: a pod's first packet is not to wait for it.
		for _, setting := range []string{"accept_ra", "accept_dad"} {
			if err := k.inside(func() error {
				b, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/" + setting)
				if err == nil && strings.TrimSpace(string(b)) != "0" {
					err = fmt.Errorf("%s is %s", setting, b)
				}
				return err
			}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		// The kernel clears an address's flag in a work item of its own.
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
	// The default routes lead out of the primary network, in both families.
	for _, dst := range []string{"8.8.8.8", "2001:db8::1"} {
		routes, err := k.pod.RouteGet(net.ParseIP(dst))
		if err != nil {
			t.Fatalf("route to %s: %v", dst, err)
		}
		link, err := k.pod.LinkByIndex(routes[0].LinkIndex)
		if err != nil || link.Attrs().Name != PrimaryIfName {
			t.Errorf("route to %s goes by %v (%v), want %s", dst, link, err, PrimaryIfName)
		}
	}
	// A link of the pod's own by the same name is not ours and stays.
	foreign := request("ADD", "another")
	if have, err := ns.Read(t.Context(), foreign.names()); err != nil || len(have) != 0 {
		t.Errorf("links of sandbox %q taken for another's: %+v %v", "sandbox", have, err)
	}
	q := buildPod(t, "another", path)
	if err := Apply(t.Context(), ns, Diff(q.Links(), State{})); err == nil || !strings.Contains(err.Error(), "add interface eth0") {
		t.Errorf("taking a name that is in use gives %v", err)
	}
	have, err := ns.Read(t.Context(), p.Request.names())
	if err != nil || have["eth0"].MAC != p.Links()["eth0"].MAC {
		t.Errorf("the interface that was there changed: %+v %v", have, err)
	}
}

func TestKernelServer(t *testing.T) {
	path := hostAndPod(t)
	w := newWorld()
	w.setPod("uid-1", annotation(t, 5))
	s := w.server(Kernel{})
	for _, command := range []string{"ADD", "ADD", "CHECK", "DEL", "DEL"} {
		r := request(command, "sandbox")
		r.NetNS = path
		// On this goroutine: its thread is in the test's own namespace.
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
		t.Errorf("the host's own namespace as a pod's: %v", err)
	}
}
