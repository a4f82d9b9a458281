// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/network"
)

// A pod's annotation opens ports of its locked address, also while it runs. One that cannot be
// read opens none and is reported. Pods of the cluster default network have nothing to open.
func TestZoneOpenPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newZoneEnv(t)
		env.node(1, true)
		env.nad("red", "net", redNet, 1, "10.10.0.0/16/24")
		env.run()
		open := func(value string) map[string]string {
			return map[string]string{network.AnnotationOpenDefaultPorts: value}
		}
		env.pod("red", "a", open("- {protocol: tcp, port: 80}"))
		env.pod("red", "b", nil)
		env.pod("plain", "c", open("- {protocol: tcp, port: 80}"))
		env.waitForRow("locked-red_a-tcp")
		env.waitForRow("red_b")
		env.waitForRow("plain_c")
		env.settle()
		for _, id := range []string{"locked-red_a-udp", "locked-red_b-tcp", "locked-plain_c-tcp"} {
			if env.has(id) {
				t.Errorf("there is an ACL %s", id)
			}
		}
		set := func(name string, annotations map[string]string) {
			ctx, pods := context.Background(), env.kube.CoreV1().Pods("red")
			p, err := pods.Get(ctx, name, metav1.GetOptions{})
			env.must(err)
			delete(p.Annotations, network.AnnotationOpenDefaultPorts)
			for k, v := range annotations {
				p.Annotations[k] = v
			}
			_, err = pods.Update(ctx, p, metav1.UpdateOptions{})
			env.must(err)
		}
		env.setRunning("red", "a")
		env.setRunning("red", "b")
		set("a", open("- {protocol: udp, port: 53}"))
		set("b", open("- {protocol: icmp}"))
		env.waitForRow("locked-red_a-udp")
		env.waitForRow("locked-red_b-icmp")
		env.waitUntil("TCP is closed", func() bool { return !env.has("locked-red_a-tcp") })
		set("a", open("- {protocol: gre}"))
		set("b", nil)
		env.waitUntil("all is closed", func() bool {
			return !env.has("locked-red_a-udp") && !env.has("locked-red_a-arp-to") && !env.has("locked-red_b-icmp")
		})
		if e := env.warningEvents(reasonOpenPorts); len(e) == 0 || !strings.Contains(e[0], `protocol "gre" is none of`) {
			t.Errorf("events %q", e)
		}
		set("a", open("- {protocol: udp, port: 53}"))
		env.waitForRow("locked-red_a-udp")
		env.deletePod("red", "a")
		env.waitUntil("the pod's rows are deleted", func() bool { return !env.has("red_a") && !env.has("locked-red_a-udp") })
		if !env.has("locked-deny-to") || !env.has("red_b") {
			t.Error("the other pod's port, or the lock, is gone")
		}
	})
}
