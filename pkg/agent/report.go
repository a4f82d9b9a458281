// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/pkg/vrf"
)

// ConditionDegraded is the Node condition that is true while something of
// Bulkhead does not work on the node.
const ConditionDegraded = "BulkheadDegraded"

// Condition is a Node condition.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"` // True or False, as in Kubernetes
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"since,omitzero"`
}

// True reports whether the condition's status is True.
func (c Condition) True() bool { return c.Status == conditionTrue }

const conditionTrue, conditionFalse = "True", "False"

// Problem is something that an operator should know.
type Problem struct {
	Reason  string `json:"reason"` // CamelCase
	Message string `json:"message"`
	pod     string // set if the pod's author can fix it: the event is the pod's
}

// persistent is how long a network must fail before the agent reports it to the
// cluster: most failures are gone a moment later.
const persistent = 10 * time.Second

// informational reasons are reported, but do not degrade the node.
var informational = []string{"KubeletByProcess", "CgroupMissing", "EarlySockets", reasonFirewall, reasonConntrackSmall}

// podReasons are reasons that a pod's author causes and can fix. They are
// events of the pod, and do not degrade the node: a tenant must not be able to.
var podReasons = []string{"ProbePortShared", "ProbePortHeld", "ProbePortsTooMany", "NetworkUnknown", "VRFMissing", reasonHostPort}

// reporter reports problems: as the Node condition, as events, and as the
// annotation that holds the node's failed networks.
type reporter struct {
	plan      network.Plan
	node      *nodeReconciler
	features  func() []Feature
	cache     *Cache
	queue     *Queue
	failures  *Failures
	networks  *networkReconciler
	hosts     *hostReconciler
	conflicts *conflictReconciler
	conntrack *conntrackReader
	hostNet   HostNet // nil: no eBPF
	api       API

	// Of the last report; only reconcile uses them, of which there is one at a time.
	pace     pace
	written  Condition
	reported map[Problem]bool // as events
}

// problems returns everything that does not work, in a fixed order, including
// what only waits, e.g. a node without an id.
func (r *reporter) problems() []Problem {
	var out []Problem
	for _, f := range r.features() {
		if !f.OK {
			m := f.Name + ": " + f.Reason
			if f.Costs != "" {
				m += "; " + f.Costs
			}
			out = append(out, Problem{Reason: "FeatureMissing", Message: m})
		}
	}
	if !r.queue.synced.Load() {
		out = append(out, Problem{Reason: "NotSynced", Message: "the agent has not read all that it needs from the API server yet: see its log"})
	} else if r.cache.NodeID() == 0 {
		out = append(out, Problem{Reason: "NodeIDMissing", Message: "this node has no id yet: the cluster controller assigns it (annotation " + network.AnnotationNodeID + ")"})
	}
	networks := r.networks.results()
	keys, components := r.failures.current()
	for k, f := range keys {
		if k.kind != kindReport {
			out = append(out, Problem{Reason: reasonOf(f.err, k), Message: f.err.Error()})
		}
	}
	for _, message := range components {
		out = append(out, Problem{Reason: "NodeNotConfigured", Message: message})
	}
	for id, n := range networks {
		if tooLong, _ := n.waitingTooLong(time.Now()); tooLong {
			for _, link := range n.kernel.Waiting {
				out = append(out, Problem{Reason: "LinkMissing", Message: fmt.Sprintf("network %s (id %d) waits for link %s", n.network.Name, id, link)})
			}
		}
	}
	if node := r.node.Node(); node.MTU != 0 && node.MTU < r.plan.UnderlayMTU {
		out = append(out, Problem{Reason: "UnderlayMTU", Message: fmt.Sprintf("%s has MTU %d, and [default] underlay-mtu is %d: longer packets between nodes are lost. Raise the MTU of its ports, or set underlay-mtu to the lowest of all nodes",
			node.Bridge, node.MTU, r.plan.UnderlayMTU)})
	}
	if others := r.cache.Annotations()[network.AnnotationSystemIDShared]; others != "" {
		out = append(out, Problem{Reason: "SystemIDShared", Message: fmt.Sprintf("Open vSwitch's system-id %s is also that of %s: other nodes have a tunnel to one of these nodes only. On a machine that was cloned, remove /etc/openvswitch/system-id.conf and Open vSwitch's conf.db, and restart Open vSwitch; if a machine is gone, delete its Node",
			r.node.Node().Chassis, strings.ReplaceAll(others, ",", ", "))})
	}
	out = append(out, r.hostNetworkProblems()...)
	out = append(out, r.hosts.hostPortProblems()...)
	out = append(out, r.conflicts.problems()...)
	out = append(out, r.conntrack.problems()...)
	slices.SortFunc(out, func(a, b Problem) int {
		return strings.Compare(a.Reason+a.Message, b.Reason+b.Message)
	})
	return slices.Compact(out)
}

func (r *reporter) hostNetworkProblems() []Problem {
	if r.hostNet == nil {
		return nil
	}
	var out []Problem
	st := r.hostNet.Status()
	for _, p := range st.Problems {
		problem := Problem{Reason: p.Reason, Message: p.Message}
		if p.Pod != "" {
			problem.Message = "pod " + p.Pod + ": " + p.Message
		}
		if slices.Contains(podReasons, p.Reason) {
			problem.pod = p.Pod
		}
		out = append(out, problem)
	}
	for uid, n := range st.EarlySockets {
		name := "with uid " + uid
		if p, ok := r.cache.PodByUID(uid); ok {
			name = p.Key()
		}
		out = append(out, Problem{Reason: "EarlySockets", Message: fmt.Sprintf("pod %s opened %d sockets before it was bound to its network: restart the pod", name, n)})
	}
	return out
}

func reasonOf(err error, k key) string {
	switch {
	case k.kind == kindNetwork && errors.Is(err, vrf.ErrNoVRF):
		return "VRFUnavailable"
	case k.kind == kindNetwork:
		return "NetworkNotConfigured"
	case k.kind == kindPorts:
		return "ManagementPortsNotConfigured"
	case k.kind == kindHosts:
		return "HostNetworkNotConfigured"
	default: // the node, everything, or what other programs configure
		return "NodeNotConfigured"
	}
}

// condition summarises problems.
func condition(problems []Problem) Condition {
	c := Condition{Type: ConditionDegraded, Status: conditionFalse, Reason: "AllWell", Message: "Everything works as it should."}
	var lines []string
	for _, p := range problems {
		if !p.degrades() {
			continue
		}
		if !c.True() {
			c.Status, c.Reason = conditionTrue, p.Reason
		} else if c.Reason != p.Reason {
			c.Reason = "SeveralProblems"
		}
		lines = append(lines, strings.ReplaceAll(p.Message, "\n", "; "))
	}
	if !c.True() {
		return c
	}
	const most = 10
	if n := len(lines); n > most {
		lines = append(lines[:most], fmt.Sprintf("and %d more", n-most))
	}
	c.Message = network.Shorten(strings.Join(lines, "; "), 2048)
	return c
}

func (p Problem) degrades() bool {
	return !slices.Contains(informational, p.Reason) && !slices.Contains(podReasons, p.Reason)
}

// reconcile writes the Node condition and the failures if they changed, and events for new problems. While they keep
// changing it writes seldom: one fault affects many networks one after another, often on all nodes at once, and each
// write of a Node goes to everybody that watches it.
func (r *reporter) reconcile(ctx context.Context) error {
	problems := r.problems()
	c := condition(problems)
	failures, err := r.failuresToWrite()
	if err != nil {
		return err
	}
	degrading, others := r.newProblems(problems)
	r.sendEvents(others) // tenants cause some of them, and must not delay the condition
	if !equalConditions(r.written, c) || failures != nil || len(degrading) > 0 {
		if wait := r.pace.next(time.Now()); wait > 0 {
			r.queue.keys.AddAfter(key{kind: kindReport}, wait)
			return nil
		}
	}
	if err := r.api.SetCondition(ctx, c); err != nil {
		return fmt.Errorf("set condition %s: %w", c.Type, err)
	}
	r.written = c
	r.sendEvents(degrading)
	r.markReported(problems)
	if failures == nil {
		return nil
	}
	if err := r.api.Annotate(ctx, failures); err != nil {
		return fmt.Errorf("write annotation %s: %w", network.AnnotationAgentFailures, err)
	}
	r.cache.SetWrittenAnnotations(failures)
	return nil
}

// networkFailures are the networks that have failed to be configured, or to be
// removed, for a while, and why. next is how long until the next failure counts; 0:
// there is none.
func (r *reporter) networkFailures() (out network.Failures, next time.Duration) {
	now, out := time.Now(), network.Failures{}
	networks := r.networks.results()
	keys, _ := r.failures.current()
	for k, f := range keys {
		if k.kind != kindNetwork {
			continue
		}
		if wait := persistent - now.Sub(f.since); wait > 0 {
			if next == 0 || wait < next {
				next = wait
			}
			continue
		}
		// The message leaves out the network's name: the reader knows the network,
		// and networks that fail for the same reason share one message.
		message := f.err.Error()
		var network *networkError
		switch {
		case errors.Is(f.err, vrf.ErrNoVRF):
			message = vrf.ErrNoVRF.Error()
		case errors.As(f.err, &network):
			message = network.cause.Error()
		}
		out[k.id] = message
	}
	for id, n := range networks {
		tooLong, left := n.waitingTooLong(now)
		if _, ok := out[id]; !ok && tooLong {
			out[id] = "a link that it needs is missing: its management port, or the external bridge"
		}
		if left > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	return out, next
}

// failuresToWrite returns the annotation with the failed networks if the Node has another one, or else nil.
func (r *reporter) failuresToWrite() (map[string]string, error) {
	if !r.queue.synced.Load() {
		return nil, nil // the Node's annotations are unknown
	}
	failures, next := r.networkFailures()
	if next > 0 {
		r.queue.keys.AddAfter(key{kind: kindReport}, next)
	}
	value, err := failures.Render()
	if err != nil {
		return nil, fmt.Errorf("render annotation %s: %w", network.AnnotationAgentFailures, err)
	}
	if r.cache.Annotations()[network.AnnotationAgentFailures] == value {
		return nil, nil
	}
	return map[string]string{network.AnnotationAgentFailures: value}, nil
}
