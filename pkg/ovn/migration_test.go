// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
	"bulkhead/pkg/ovn/nbdb"
)

func TestActivePod(t *testing.T) {
	type pod struct {
		name  string // UID; pods are created in the order of age
		age   int    // in seconds
		ready bool
		phase corev1.PodPhase
	}
	running, pending, failed, succeeded := corev1.PodRunning, corev1.PodPending, corev1.PodFailed, corev1.PodSucceeded
	for _, c := range []struct {
		name string
		pods []pod
		want string
	}{
		{"none", nil, ""},
		{"one", []pod{{"a", 9, false, running}}, "a"},
		{"completed", []pod{{"a", 9, false, succeeded}}, ""},
		{"the target starts", []pod{{"a", 9, false, running}, {"b", 1, false, pending}}, "a"},
		{"the target receives the memory", []pod{{"b", 1, false, running}, {"a", 9, false, running}}, "a"},
		{"the target runs the virtual machine", []pod{{"a", 9, false, running}, {"b", 1, true, running}}, "b"},
		{"the source has completed", []pod{{"a", 9, false, succeeded}, {"b", 1, true, running}}, "b"},
		{"the source is gone without a report", []pod{{"b", 1, false, running}}, "b"},
		{"the target failed", []pod{{"a", 9, false, running}, {"b", 1, false, failed}}, "a"},
		{"the target failed after its report", []pod{{"a", 9, false, running}, {"b", 1, true, failed}}, "a"},
		{"a second migration starts", []pod{{"a", 9, false, succeeded}, {"b", 5, true, running}, {"c", 1, false, running}}, "b"},
		{"a second migration ends", []pod{{"b", 5, true, running}, {"c", 1, true, running}}, "c"},
		{"the source is slow to end", []pod{{"a", 9, false, running}, {"b", 5, true, running}, {"c", 1, false, running}}, "b"},
		{"two of one second", []pod{{"b", 5, false, running}, {"a", 5, false, running}}, "a"},
	} {
		now := time.Unix(1000, 0)
		var pods []*corev1.Pod
		for _, p := range c.pods {
			o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(p.name), CreationTimestamp: metav1.NewTime(now.Add(-time.Duration(p.age) * time.Second))}}
			o.Status.Phase = p.phase
			if p.ready {
				o.Annotations = map[string]string{network.AnnotationMigrationTargetReady: "2026-01-01 00:00:00 +0000 UTC"}
			}
			pods = append(pods, o)
		}
		got := ""
		if p := activePod(pods); p != nil {
			got = string(p.UID)
		}
		if got != c.want {
			t.Errorf("%s: active is %q, want %q", c.name, got, c.want)
		}
	}
}

// editPod changes a pod in the API.
func (env *zoneEnv) editPod(namespace, name string, edit func(*corev1.Pod)) {
	ctx, api := context.Background(), env.kube.CoreV1().Pods(namespace)
	pod, err := api.Get(ctx, name, metav1.GetOptions{})
	env.must(err)
	edit(pod)
	_, err = api.Update(ctx, pod, metav1.UpdateOptions{})
	env.must(err)
}

func setReady(p *corev1.Pod) {
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[network.AnnotationMigrationTargetReady] = "2026-01-01 00:00:00 +0000 UTC"
}

// disabled returns which of the ports exist and are disabled.
func (env *zoneEnv) disabled(ports ...string) (out []string) {
	for _, id := range ports {
		if !env.has(id) {
			continue
		}
		if e := env.port(id).Enabled; e != nil && !*e {
			out = append(out, id)
		}
	}
	return out
}

func (env *zoneEnv) waitDisabled(desc, want string, ports ...string) {
	env.t.Helper()
	env.waitUntil(desc+": only "+want+" is disabled", func() bool {
		got := env.disabled(ports...)
		return want == "" && len(got) == 0 || len(got) == 1 && got[0] == want
	})
}

// Of two pods with a virtual machine's addresses, one on this node and one on
// another, one port is disabled, also after a restart. Pods of other namespaces with
// these addresses change nothing.
func TestZoneMigration(t *testing.T) {
	for _, c := range []struct {
		name   string
		conf   network.NetConf
		entry  func(key int) string
		remote bool // the other node's pods have ports here
	}{
		{"layer2", network.NetConf{Name: "cluster_udn_shared", Topology: "layer2", Role: "secondary", Subnets: "10.50.0.0/16"},
			func(key int) string { return layer2Entry("10.50.0.3", "0a:58:0a:32:00:03", key) }, true},
		{"localnet", network.NetConf{Name: "cluster_udn_shared", Topology: "localnet", Role: "secondary", PhysicalNetworkName: "tenantblue", Subnets: "10.50.0.0/16"},
			func(int) string { return layer2Entry("10.50.0.3", "0a:58:0a:32:00:03", 0) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const near, far = "plain.shared_plain_near", "plain.shared_plain_far"
				env := newZoneEnv(t)
				env.node(1, true)
				env.node(2, true)
				env.namespace("other", false)
				for _, ns := range []string{"plain", "other"} {
					env.nadOf(ns, "shared", 5, c.conf)
				}
				env.run()
				env.pod("plain", "near", requests("shared"))
				env.waitUntil("default network", func() bool { return len(env.networks("plain", "near")) == 1 })
				env.setNetworks("plain", "near", func(n network.PodNetworks) { n["plain/shared"] = entry(t, c.entry(11)) })
				env.waitForRow(near)
				time.Sleep(time.Second) // the clock of the test: the target is younger
				claimant := func(name string) {
					env.remotePod("node2", "other", name, `{"other/shared":`+c.entry(13)+`}`)
					env.editPod("other", name, setReady)
					env.settle()
				}
				claimant("claimant1")
				env.waitDisabled("another namespace's pod", "", near, far)
				target := func() {
					env.remotePod("node2", "plain", "far", `{"plain/shared":`+c.entry(12)+`}`)
					env.settle()
				}
				inactive := func(other string) string {
					if other == far && !c.remote {
						return ""
					}
					return other
				}
				target()
				env.waitDisabled("the target starts", inactive(far), near, far)
				env.editPod("plain", "far", setReady)
				env.waitDisabled("the target runs the virtual machine", near, near, far)
				rows := env.nb.Rows().Dump()
				env.run()
				env.settle()
				if got := env.nb.Rows().Dump(); got != rows {
					t.Errorf("after a restart, rows were\n%s\nare\n%s", rows, got)
				}
				// A NAD that is deleted by force does not enable the source's port again.
				env.deleteNAD("plain", "shared")
				env.settle()
				env.zone.queue.AddUnits(c.conf.Name, podUnit("plain/near"))
				env.settle()
				env.waitDisabled("the NAD is deleted", near, near, far)
				env.nadOf("plain", "shared", 5, c.conf)
				env.settle()
				env.editPod("plain", "far", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
				env.waitDisabled("the target failed", "", near, far)
				env.deletePod("plain", "far")
				target()
				env.waitDisabled("the next target starts", inactive(far), near, far)
				env.editPod("plain", "far", setReady)
				env.waitDisabled("the next target runs it", near, near, far)
				env.deletePod("plain", "near")
				env.waitUntil("the source's port is gone", func() bool { return !env.has(near) })
				env.settle()
				env.waitDisabled("the source is gone", "", near, far)
				claimant("claimant2")
				// Back to this node.
				env.pod("plain", "near", requests("shared"))
				env.waitUntil("default network", func() bool { return len(env.networks("plain", "near")) == 1 })
				env.setNetworks("plain", "near", func(n network.PodNetworks) { n["plain/shared"] = entry(t, c.entry(14)) })
				env.waitDisabled("this node's pod is the target", near, near, far)
				env.editPod("plain", "near", setReady)
				env.waitDisabled("this node's pod runs it", inactive(far), near, far)
			})
		})
	}
}

// OVN answers the DHCP client of a virtual machine, with the cluster's DNS as soon as
// there is one.
func TestZoneVirtualMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const port = "red.net_red_vm"
		env := newZoneEnv(t)
		env.node(1, true)
		env.namespace("kube-system", false)
		env.nadOf("red", "net", 1, network.NetConf{Name: redNet, Topology: "layer2", Role: "primary", Subnets: "10.50.0.0/16"})
		env.run()
		env.pod("red", "vm", nil)
		env.editPod("red", "vm", func(p *corev1.Pod) { p.Labels = map[string]string{network.LabelVirtualMachine: "web"} })
		env.waitUntil("default network", func() bool { return len(env.networks("red", "vm")) == 1 })
		env.setNetworks("red", "vm", func(n network.PodNetworks) {
			n["red/net"] = entry(t, layer2Entry("10.50.0.3", "0a:58:0a:32:00:03", 11))
		})
		options := func() map[string]string {
			for _, r := range env.nb.Rows() {
				if o, ok := r.Model.(*nbdb.DHCPOptions); ok {
					if p := env.port(port); p.Dhcpv4Options == nil || *p.Dhcpv4Options != r.UUID {
						t.Errorf("the port has DHCP options %v, want %s", p.Dhcpv4Options, r.UUID)
					}
					return o.Options
				}
			}
			return nil
		}
		env.waitForRow(port)
		if o := options(); o["hostname"] != `"web"` || o["router"] != "10.50.0.1" || o["dns_server"] != "" {
			t.Errorf("options are %v", o)
		}
		env.service("kube-system", "kube-dns", 1, func(s *corev1.ServiceSpec) {
			s.Ports = []corev1.ServicePort{{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}}
		}, "10.96.0.10")
		env.waitUntil("DNS", func() bool { return options()["dns_server"] == "10.96.0.10" })
		env.deletePod("red", "vm")
		env.waitUntil("options gone", func() bool { return options() == nil && !env.has(port) })
	})
}
