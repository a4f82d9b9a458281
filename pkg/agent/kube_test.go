// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// The Node's condition is written when it changes and at each heartbeat, also if somebody has
// edited it or the Node was created again.
func TestConditionHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
		client := fake.NewClientset(node)
		ctx := t.Context()
		writes := func() (n int) {
			for _, a := range client.Actions() {
				if a.GetVerb() == "patch" {
					n++
				}
			}
			return n
		}
		set := func(k *KubeAPI, c Condition, wantWrites int) corev1.NodeCondition {
			t.Helper()
			before := writes()
			if err := k.SetCondition(ctx, c); err != nil {
				t.Fatal(err)
			}
			if n := writes() - before; n != wantWrites {
				t.Errorf("%d writes, want %d", n, wantWrites)
			}
			n, err := client.CoreV1().Nodes().Get(ctx, "node1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, have := range n.Status.Conditions {
				if have.Type == ConditionDegraded {
					return have
				}
			}
			return corev1.NodeCondition{}
		}
		good := condition(nil)
		bad := Condition{Type: ConditionDegraded, Status: conditionTrue, Reason: "FeatureMissing", Message: "x"}
		k := &KubeAPI{client: client, node: "node1"}
		first := set(k, good, 1)
		time.Sleep(conditionHeartbeat - time.Second)
		set(k, good, 0)
		time.Sleep(time.Second)
		beat := set(k, good, 1)
		if !beat.LastHeartbeatTime.After(first.LastHeartbeatTime.Time) || !beat.LastTransitionTime.Equal(&first.LastTransitionTime) {
			t.Errorf("after the heartbeat: %+v, before: %+v", beat, first)
		}
		time.Sleep(time.Second)
		changed := set(k, bad, 1)
		if !changed.LastTransitionTime.After(first.LastTransitionTime.Time) {
			t.Errorf("after the change: %+v", changed)
		}

		// An agent that starts soon writes nothing, and later a heartbeat.
		time.Sleep(time.Second)
		restarted := &KubeAPI{client: client, node: "node1"}
		set(restarted, bad, 0)
		time.Sleep(conditionHeartbeat)
		if c := set(&KubeAPI{client: client, node: "node1"}, bad, 1); !c.LastTransitionTime.Equal(&changed.LastTransitionTime) {
			t.Errorf("after a restart: %+v, before: %+v", c, changed)
		}

		// The clock was ahead: the heartbeat is in the future.
		n, err := client.CoreV1().Nodes().Get(ctx, "node1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(time.Now().Add(24 * time.Hour))
		if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if c := set(&KubeAPI{client: client, node: "node1"}, bad, 1); c.LastHeartbeatTime.After(time.Now()) {
			t.Errorf("after a heartbeat in the future: %+v", c)
		}

		// The Node is created again without the condition.
		if err := client.CoreV1().Nodes().Delete(ctx, "node1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if c := set(restarted, bad, 1); c.Reason != bad.Reason {
			t.Errorf("on the Node created again: %+v", c)
		}
	})
}
