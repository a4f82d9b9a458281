// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/config"
)

func TestSessionCondition(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	nodes := []Node{
		{Name: "a", InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}},
		{Name: "b", InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}},
	}
	state := func(node, vrf, peer, bgp string) frrv1.BGPSessionState {
		return frrv1.BGPSessionState{Status: frrv1.BGPSessionStateStatus{Node: node, VRF: vrf, Peer: peer, BGPStatus: bgp}}
	}
	states := func(v4, v6 string) []frrv1.BGPSessionState {
		return []frrv1.BGPSessionState{
			state("a", "default", "2001-0db8-0000-0000-0000-0000-0000-0002", v6), state("a", "", "192.0.2.2", v4),
			// None of these is a session of node a with another node.
			state("a", "default", "192.0.2.1", "Idle"), state("a", "default", "192.0.2.99", "Idle"), state("a", "lite1", "192.0.2.2", "Idle"),
			state("a", "default", "eth1", "Idle"), state("b", "default", "192.0.2.1", "Idle"),
		}
	}
	var down map[netip.Addr]time.Time
	for _, step := range []struct {
		after           time.Duration // since the start
		v4, v6          string
		status          corev1.ConditionStatus
		reason, message string
		next            time.Duration
	}{
		{0, "Established", "Established", corev1.ConditionFalse, ReasonEstablished, "", 0},
		{1 * time.Second, "Active", "Established", corev1.ConditionFalse, ReasonEstablished, "", 30 * time.Second},
		{11 * time.Second, "Connect", "", corev1.ConditionFalse, ReasonEstablished, "", 20 * time.Second},
		{31 * time.Second, "Active", "Idle", corev1.ConditionTrue, ReasonSessionsDown, "1 of 2 BGP sessions with other nodes are down: b at 192.0.2.2 (Active):", 10 * time.Second},
		{41 * time.Second, "Active", "", corev1.ConditionTrue, ReasonSessionsDown, "2 of 2 BGP sessions with other nodes are down: b at 192.0.2.2 (Active), b at 2001:db8::2 (unknown):", 0},
		{42 * time.Second, "Established", "Established", corev1.ConditionFalse, ReasonEstablished, "", 0},
		{43 * time.Second, "Established", "Active", corev1.ConditionFalse, ReasonEstablished, "", 30 * time.Second}, // counted anew
	} {
		now := start.Add(step.after)
		sessions := sessionsOf("a", states(step.v4, step.v6), nodes)
		down = updateDown(down, sessions, now, false)
		c, next := sessionCondition(sessions, down, now)
		if len(sessions) != 2 || c.Status != step.status || c.Reason != step.reason || !strings.Contains(c.Message, step.message) || next != step.next {
			t.Errorf("after %s: %d sessions, %+v, next in %s", step.after, len(sessions), c, next)
		}
	}
	if c, _ := sessionCondition(sessionsOf("a", nil, nodes), nil, start); c.Status != corev1.ConditionUnknown || c.Reason != ReasonSessionsAbsent {
		t.Errorf("without sessions: %+v", c)
	}
	// A new leader, whose Node says that sessions are down: they are down for long, until they are up.
	sessions := sessionsOf("a", states("Active", "Established"), nodes)
	down = updateDown(nil, sessions, start, true)
	if c, next := sessionCondition(sessions, down, start); c.Status != corev1.ConditionTrue || next != 0 {
		t.Errorf("a new leader: %+v, next in %s", c, next)
	}
	if c, _ := sessionCondition(sessions, updateDown(nil, sessions, start, false), start); c.Status != corev1.ConditionFalse {
		t.Errorf("a new leader, and a session that was up: %+v", c)
	}
	if tooMany(config.FullMesh, maxMesh) || !tooMany(config.FullMesh, maxMesh+1) || tooMany(config.RouteReflectors, 5000) {
		t.Error("a full mesh is read up to a size, and route reflectors always")
	}
	var many []session
	for i := range 100 {
		many = append(many, session{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), fmt.Sprint("n", i), "Idle"})
	}
	if c, _ := sessionCondition(many, updateDown(nil, many, start, false), start.Add(time.Minute)); !strings.Contains(c.Message, "100 of 100") || !strings.Contains(c.Message, "and 95 more") || len(c.Message) > 300 {
		t.Errorf("many sessions: %q", c.Message)
	}
}
