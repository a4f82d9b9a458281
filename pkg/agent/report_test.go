// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
)

// TestDegraded: a failure sets the condition and records one event; the
// condition is reset after a success.
func TestDegraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.kernel.NoVRF = true
		f.agent.start()
		f.setNodeID(3)
		f.setNAD(nad(f.agent.config, "shop", "net", 7))
		eventually(t, "degraded", func() bool { c := f.conditionNow(); return c.True() && c.Reason == "VRFUnavailable" })
		if s := f.state(7); s.State != StateError || !strings.Contains(s.Error, "VRF") {
			t.Errorf("%+v", s)
		}
		f.setVRFSupport(true)
		eventually(t, "not degraded", func() bool { c := f.conditionNow(); return !c.True() && c.Reason == "AllWell" })
		if n := countPrefix(f.eventsNow(), "VRFUnavailable"); n != 1 {
			t.Errorf("%d events: %q", n, f.eventsNow())
		}
	})
}

// TestNetworkTooSmall: a network whose author left no host subnet for this node is no problem
// of the node, and has nothing there until its subnets suffice.
func TestNetworkTooSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.start()
		f.setNodeID(3)
		small := func(subnets string) network.NAD {
			n, err := network.NetConf{Name: "shop_small", Topology: "layer3", Role: "primary", Subnets: subnets}.Network(7, f.agent.config.Plan)
			return network.NAD{Namespace: "shop", Name: "small", Network: n, Err: err}
		}
		f.setNAD(small("10.20.0.0/24/24"))
		f.setNAD(nad(f.agent.config, "other", "net", 8))
		eventually(t, "another network ready", func() bool { return f.state(8).State == StateReady })
		time.Sleep(2 * linkGrace)
		if c := f.conditionNow(); c.True() {
			t.Errorf("the node is degraded: %+v", c)
		}
		if keys, components := f.agent.failures.current(); len(keys)+len(components) > 0 {
			t.Errorf("failures %v, %v", keys, components)
		}
		if s := f.state(7); s.State != StateNoSubnet || !strings.Contains(s.Error, "append a CIDR") {
			t.Errorf("%+v", s)
		}
		f.setNAD(small("10.20.0.0/24/24,10.21.0.0/16/24"))
		eventually(t, "ready", func() bool { return f.state(7).State == StateReady })
	})
}

// TestMissingLink: a network whose management port does not appear is a problem after
// linkGrace, however often it is reconciled meanwhile, until the port exists.
func TestMissingLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.set(func() { f.noPorts = true })
		f.agent.start()
		f.setNodeID(3)
		f.setNAD(nad(f.agent.config, "shop", "net", 7))
		start := time.Now()
		for time.Since(start) < linkGrace-time.Second {
			f.agent.resync()
			time.Sleep(time.Second)
			if c := f.conditionNow(); c.Reason == "LinkMissing" {
				t.Fatalf("degraded after %s: %+v", time.Since(start), c)
			}
		}
		eventually(t, "degraded", func() bool { c := f.conditionNow(); return c.True() && c.Reason == "LinkMissing" })
		if took := time.Since(start); took > linkGrace+10*time.Second {
			t.Errorf("reported after %s", took)
		}
		f.set(func() { f.noPorts = false })
		f.agent.resync()
		eventually(t, "not degraded", func() bool { c := f.conditionNow(); return !c.True() && c.Reason == "AllWell" })
	})
}

// TestSysctlFeatures: a sysctl with another value is a missing feature, and one that the kernel lacks is none.
func TestSysctlFeatures(t *testing.T) {
	root := t.TempDir()
	for name, value := range map[string]string{"net/ipv4/tcp_l3mdev_accept": "0", "net/ipv4/udp_l3mdev_accept": "1", "net/ipv6/conf/all/forwarding": "0"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for ipv6, want := range map[bool]map[string]bool{
		false: {"sysctl net.ipv4.tcp_l3mdev_accept=0": true, "sysctl net.ipv4.udp_l3mdev_accept=0": false},
		true:  {"sysctl net.ipv4.tcp_l3mdev_accept=0": true, "sysctl net.ipv4.udp_l3mdev_accept=0": false, "sysctl net.ipv6.conf.all.forwarding=1": false},
	} {
		got := map[string]bool{}
		for _, f := range SysctlFeatures(root, ipv6) {
			got[f.Name] = f.OK
		}
		if !maps.Equal(got, want) {
			t.Errorf("IPv6 %t: %v, want %v", ipv6, got, want)
		}
	}
}

func countPrefix(list []string, prefix string) int {
	n := 0
	for _, s := range list {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

// TestFailuresAnnotation: networks that fail for a while are in the Node's
// annotation, from which the networks' status is made; brief failures are not.
func TestFailuresAnnotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.kernel.NoVRF = true
		f.agent.start()
		f.setNodeID(3)
		annotation := func() string {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.annotations[network.AnnotationAgentFailures]
		}
		start := time.Now()
		for id, name := range map[int]string{7: "net", 8: "other"} {
			f.setNAD(nad(f.agent.config, "shop", name, id))
		}
		eventually(t, "annotation", func() bool {
			return strings.Contains(annotation(), `"ids":"7-8"`) && strings.Contains(annotation(), "VRF")
		})
		if took := time.Since(start); took < persistent {
			t.Errorf("written after %s", took)
		}
		f.setVRFSupport(true)
		eventually(t, "annotation empty", func() bool { return annotation() == "" })
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, ok := f.annotations[network.AnnotationAgentFailures]; !ok || f.writes > 5 {
			t.Errorf("%d writes: %v", f.writes, f.annotations)
		}
	})
}

// TestPodProblems: a problem that a pod's author causes is an event of the pod
// and does not degrade the node; a problem of the node does.
func TestPodProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil })
		f.setPod(Pod{UID: "u1", Namespace: "shop", Name: "host", HostNetwork: true})
		f.set(func() {
			f.hostProblems = []hostnet.Problem{{Pod: "shop/host", Reason: "ProbePortHeld", Message: "port 10250 is held"}}
		})
		f.agent.queue.EnqueueReport()
		eventually(t, "event of the pod", func() bool { return countPrefix(f.eventsNow(), "shop/host ProbePortHeld") > 0 })
		if c := f.conditionNow(); c.True() {
			t.Errorf("a pod degraded its node: %+v", c)
		}
		f.set(func() {
			f.hostProblems = append(f.hostProblems, hostnet.Problem{Reason: "PodCgroupsMissing", Message: "no cgroup"})
		})
		f.agent.queue.EnqueueReport()
		eventually(t, "condition", func() bool { c := f.conditionNow(); return c.True() && c.Reason == "PodCgroupsMissing" })
		if n := countPrefix(f.eventsNow(), "shop/host ProbePortHeld"); n != 1 {
			t.Errorf("%d events: %q", n, f.eventsNow())
		}
	})
}

// TestUnderlayMTU: a node whose external bridge carries less than underlay-mtu is reported, and
// publishes what it carries.
func TestUnderlayMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.start()
		f.setNodeID(3)
		set := func(mtu int) {
			f.mu.Lock()
			f.mtu = mtu
			f.mu.Unlock()
			f.agent.queue.EnqueueNode()
		}
		set(1500)
		eventually(t, "no problem with 1500", func() bool { return f.conditionNow().Reason == "AllWell" })
		set(1450)
		eventually(t, "1450 is reported", func() bool {
			c := f.conditionNow()
			return c.Reason == "UnderlayMTU" && strings.Contains(c.Message, "br-ex has MTU 1450, and [default] underlay-mtu is 1500")
		})
		f.mu.Lock()
		if got := f.annotations[network.AnnotationGatewayConfig]; !strings.Contains(got, `"mtu":1450`) {
			t.Errorf("annotation %s", got)
		}
		f.mu.Unlock()
		set(9000)
		eventually(t, "no problem with 9000", func() bool { return f.conditionNow().Reason == "AllWell" })
	})
}

// TestSystemIDShared: a node with another one's system-id of Open vSwitch is degraded until they differ.
func TestSystemIDShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.start()
		set := func(shared string) {
			f.mu.Lock()
			annotations := maps.Clone(f.annotations)
			f.mu.Unlock()
			annotations[network.AnnotationNodeID] = "3"
			if shared != "" {
				annotations[network.AnnotationSystemIDShared] = shared
			}
			f.events().setNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: annotations}})
		}
		set("")
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil && f.conditionNow().Reason == "AllWell" })
		time.Sleep(time.Second)
		start := time.Now()
		set("n2,n3")
		eventually(t, "degraded", func() bool { return f.conditionNow().Reason == "SystemIDShared" })
		if m := f.conditionNow().Message; !strings.Contains(m, "system-id c1 is also that of n2, n3") {
			t.Error(m)
		}
		set("")
		eventually(t, "not degraded", func() bool { return f.conditionNow().Reason == "AllWell" })
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("reported and cleared after %s, by the resync", took)
		}
	})
}
