// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/hostnet"
)

// TestHostPodExpected: the eBPF maps get a new host-network pod from its event, without waiting for a reconcile.
func TestHostPodExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.start()
		f.setNodeID(3)
		f.setNAD(nad(f.agent.config, "shop", "net", 4))
		f.events().changeNamespace("shop", Namespace{Labelled: true})
		eventually(t, "network ready", func() bool { return f.state(4).State == StateReady })
		pod := func(name string, host bool) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{HostNetwork: host}}
		}
		expected := func() int {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.expected)
		}
		f.events().setPod(pod("web", false))
		if n := expected(); n != 0 {
			t.Errorf("for a pod on the network: %d", n)
		}
		f.events().setPod(pod("exporter", true))
		check := func(when string, id int) {
			t.Helper()
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.expected) != 1 || f.expected[0].Name != "exporter" || f.expected[0].NetworkID != id {
				t.Errorf("%s: expected: %+v", when, f.expected)
			}
		}
		check("for a host-network pod", 4)
		f.events().deleteNAD("shop/net")
		check("without its network", hostnet.NetworkUnknown)
		f.setNAD(nad(f.agent.config, "shop", "net", 5))
		check("with another network", 5)
		f.events().changeNamespace("shop", Namespace{})
		f.events().deleteNAD("shop/net")
		check("in a namespace without a network of its own", 0)
	})
}
