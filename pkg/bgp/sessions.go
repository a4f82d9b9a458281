// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/config"
)

// ConditionBGP is the Node condition that is true while BGP sessions of the managed fabric are down, as
// frr-k8s reports them. No session of another kind counts: who configures it knows when it should be up.
const ConditionBGP corev1.NodeConditionType = "BulkheadBGPDegraded"

// Reasons of ConditionBGP.
const (
	ReasonSessionsDown   = "SessionsDown"
	ReasonEstablished    = "SessionsEstablished"
	ReasonSessionsAbsent = "SessionsNotReported"
)

// sessionGrace is how long a session may be down before it is reported: those of a node that restarts are
// down for a while.
const sessionGrace = 30 * time.Second

// established is the state of a session that is up (RFC 4271, section 8.2.2).
const established = "Established"

// maxMesh is the largest full mesh whose sessions are read. frr-k8s has an object for each, of both its nodes
// and in each IP family: a mesh of 500 nodes has half a million, which the cluster controller would hold in memory.
const maxMesh = 100

// tooMany reports whether a fabric of so many nodes has too many sessions to be read.
func tooMany(topology string, nodes int) bool { return topology == config.FullMesh && nodes > maxMesh }

// session is a session of a node with another node.
type session struct {
	peer  netip.Addr
	node  string // the peer's
	state string
}

// sessionsOf returns a node's sessions of the managed fabric: those in the default VRF with InternalIPs of
// other nodes.
func sessionsOf(node string, states []frrv1.BGPSessionState, nodes []Node) []session {
	peers := map[netip.Addr]string{}
	for _, n := range nodes {
		for _, a := range n.InternalIPs {
			if n.Name != node {
				peers[a] = n.Name
			}
		}
	}
	var out []session
	for i := range states {
		st := &states[i].Status
		// frr-k8s writes the colons of an IPv6 address as "-", which labels may have.
		peer, err := netip.ParseAddr(strings.ReplaceAll(st.Peer, "-", ":"))
		if err != nil || st.Node != node || cmp.Or(st.VRF, DefaultVRF) != DefaultVRF || peers[peer.Unmap()] == "" {
			continue
		}
		out = append(out, session{peer.Unmap(), peers[peer.Unmap()], st.BGPStatus})
	}
	slices.SortFunc(out, func(a, b session) int { return a.peer.Compare(b.peer) })
	return out
}

// mostSessions is how many sessions a message names.
const mostSessions = 5

// sessionCondition returns the condition of a node with these sessions. downSince is when each session
// that is down was first found down, by peer. next is how long until the next session is down for too long; 0: there is
// none.
func sessionCondition(sessions []session, downSince map[netip.Addr]time.Time, now time.Time) (c corev1.NodeCondition, next time.Duration) {
	var down []string
	for _, s := range sessions {
		if s.state == established {
			continue
		}
		if wait := sessionGrace - now.Sub(downSince[s.peer]); wait > 0 {
			if next == 0 || wait < next {
				next = wait
			}
			continue
		}
		down = append(down, fmt.Sprintf("%s at %s (%s)", s.node, s.peer, cmp.Or(s.state, "unknown")))
	}
	c.Type = ConditionBGP
	switch {
	case len(sessions) == 0:
		c.Status, c.Reason = corev1.ConditionUnknown, ReasonSessionsAbsent
		c.Message = "frr-k8s reports no BGP session of this node with another node: does its container frr-status run?"
	case len(down) > 0:
		c.Status, c.Reason = corev1.ConditionTrue, ReasonSessionsDown
		n := len(down)
		if n > mostSessions {
			down = append(down[:mostSessions], fmt.Sprintf("and %d more", n-mostSessions))
		}
		c.Message = fmt.Sprintf("%d of %d BGP sessions with other nodes are down: %s: run bulkheadctl bgp on both nodes", n, len(sessions), strings.Join(down, ", "))
	default:
		c.Status, c.Reason = corev1.ConditionFalse, ReasonEstablished
		// The message does not change while sessions have been down for less than sessionGrace.
		c.Message = fmt.Sprintf("No BGP session with another node has been down for %s.", sessionGrace)
	}
	return c, next
}

// updateDown adds the sessions that are down now to downSince, and removes the others. A new leader has no downSince. If
// reported is set, the Node's condition already says that sessions are down: a new leader takes them as down for
// sessionGrace.
func updateDown(downSince map[netip.Addr]time.Time, sessions []session, now time.Time, reported bool) map[netip.Addr]time.Time {
	out := map[netip.Addr]time.Time{}
	first := now
	if downSince == nil && reported {
		first = now.Add(-sessionGrace)
	}
	for _, s := range sessions {
		if s.state == established {
			continue
		}
		since, known := downSince[s.peer]
		if !known {
			since = first
		}
		out[s.peer] = since
	}
	return out
}

// findCondition returns the condition that a Node has; the zero value if it has none.
func findCondition(n *corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == ConditionBGP {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// TrimSession keeps what sessionsOf reads of a BGPSessionState: a full mesh has one for each pair of nodes.
func TrimSession(s *frrv1.BGPSessionState) *frrv1.BGPSessionState {
	return &frrv1.BGPSessionState{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion}, Status: s.Status}
}
