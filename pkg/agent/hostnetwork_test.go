// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/firewall"
	"bulkhead/pkg/hostnet"
	"bulkhead/pkg/network"
)

// TestLockFailsClosed: lock returns once the pod's address is locked, and fails
// if it could not be locked; a failure to permit something does not matter.
func TestLockFailsClosed(t *testing.T) {
	pod := Pod{UID: "u1", Namespace: "shop", Name: "web", Networks: network.PodNetworks{
		"default": {IPs: []netip.Prefix{netip.MustParsePrefix("10.244.2.7/24")}, Role: network.RoleInfrastructureLocked}}}
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.cache.SetPod(pod)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := f.agent.hosts.lock(ctx, pod); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "shop/web") {
			t.Errorf("before the cache is synced: %v", err)
		}
		cancel()
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil })
		for _, c := range []struct {
			what string
			err  error
			want bool
		}{
			{"a restriction is not enforced", fmt.Errorf("row: %w", hostnet.ErrNotEnforced), false},
			{"a permission is not applied", errors.New("a host-network pod's row"), true},
			{"no failure", nil, true},
		} {
			f.set(func() { f.hostErr = c.err })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := f.agent.hosts.lock(ctx, pod); (err == nil) != c.want || c.want == false && !errors.Is(err, hostnet.ErrNotEnforced) {
				t.Errorf("%s: %v", c.what, err)
			}
			cancel()
		}
		if locked := f.hosts().Locked; len(locked) != 1 {
			t.Errorf("locked: %v", locked)
		}
	})
	t.Run("neither nftables nor eBPF", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeNode(t, func(p *Parts) { p.Firewall, p.HostNet = nil, nil })
			f.agent.start()
			f.setNodeID(3)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := f.agent.hosts.lock(ctx, pod); err == nil || !strings.Contains(err.Error(), "neither nftables nor eBPF") {
				t.Errorf("%v", err)
			}
		})
	})
}

// TestStorePod: a pod that is deleted or replaced while an interface is attached to it stays so in the cache.
func TestStorePod(t *testing.T) {
	object := func(uid types.UID) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: uid}, Spec: corev1.PodSpec{HostNetwork: true}}
	}
	for name, c := range map[string]struct {
		informer []*corev1.Pod // at each read, the last for good
		want     string        // UID
	}{
		"unchanged": {[]*corev1.Pod{object("a")}, "a"},
		"deleted":   {[]*corev1.Pod{object("a"), nil}, ""},
		"replaced":  {[]*corev1.Pod{object("a"), object("b")}, "b"},
		"unknown":   {[]*corev1.Pod{nil}, ""},
	} {
		f := newFakeNode(t)
		reads := 0
		m := podPortManager{hosts: f.agent.hosts, log: f.agent.log, pod: func(string, string) (*corev1.Pod, bool) {
			o := c.informer[min(reads, len(c.informer)-1)]
			reads++
			return o, o != nil
		}}
		pod, running := m.storePod("shop", "web")
		cached, ok := f.agent.cache.Pod("shop/web")
		if running != (c.want != "") || ok != running || running && (string(pod.UID) != c.want || string(cached.UID) != c.want) {
			t.Errorf("%s: returned %q, %t; cached %q, %t", name, pod.UID, running, cached.UID, ok)
		}
	}
}

// TestOpenPorts: eBPF and nftables get the open ports that a pod's annotation lists, and follow
// its changes. One that cannot be read opens none, nor do two pods with one address.
func TestOpenPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode(t)
		f.agent.start()
		f.setNodeID(3)
		eventually(t, "ready", func() bool { return f.agent.Ready() == nil })
		set := func(name, ports string) {
			f.events().setPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Annotations: map[string]string{
				network.AnnotationPodNetworks:      `{"default":{"ip_addresses":["10.244.2.7/24"],"mac_address":"0a:58:0a:f4:02:07","role":"infrastructure-locked"}}`,
				network.AnnotationOpenDefaultPorts: ports,
			}}})
		}
		opens := func(want ...string) func() bool {
			return func() bool {
				in := f.hosts()
				var got []string
				for _, l := range in.Locked {
					for _, p := range l.Open {
						got = append(got, p.String())
					}
				}
				var rules []string
				for _, p := range f.firewallInputs(in.Locked).Open {
					rules = append(rules, fmt.Sprintf("%s %s/%d", p.Addr, p.Protocol, p.Port))
				}
				_, open := f.agent.cache.IsLocked("shop/web")
				return len(in.Locked) > 0 && slices.Equal(got, want) && len(rules) == len(want) && open == (len(want) > 0)
			}
		}
		set("web", "- {protocol: tcp, port: 80}\n- {protocol: icmp}")
		eventually(t, "two ports", opens("icmp", "tcp/80"))
		if got := f.firewallInputs(f.hosts().Locked).Open; got[1] != (firewall.Port{Addr: netip.MustParseAddr("10.244.2.7"), Protocol: "tcp", Port: 80}) {
			t.Errorf("nftables opens %v", got)
		}
		set("web", "- {protocol: tcp, port: 81}")
		eventually(t, "another port", opens("tcp/81"))
		set("web", "- {protocol: tcp, port: 99999}")
		eventually(t, "no port", opens())
		set("web", "- {protocol: tcp, port: 81}")
		eventually(t, "the port again", opens("tcp/81"))
		set("other", "")
		eventually(t, "two pods with one address", func() bool {
			locked := f.hosts().Locked
			return len(locked) == 2 && len(locked[0].Open)+len(locked[1].Open) == 0
		})
	})
}
