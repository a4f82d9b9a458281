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

// ConditionDegraded is on the Node while something of Bulkhead does not work
// there as it should.
const ConditionDegraded = "BulkheadDegraded"

// Condition is a Node condition.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"` // True or False, as everywhere in Kubernetes
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"since,omitzero"`
}

// True tells whether the condition holds.
func (c Condition) True() bool { return c.Status == conditionTrue }

const conditionTrue, conditionFalse = "True", "False"

// Problem is something an operator should know.
type Problem struct {
	Reason  string `json:"reason"` // CamelCase
	Message string `json:"message"`
	pod     string // whose author can mend it: it is told there
}

// Problems are what does not work as it should, in a fixed order. What is only
// a matter of waiting, such as a node without an id, is among them.
func (a *Agent) Problems() []Problem {
	var out []Problem
	for _, f := range a.Features {
		if !f.OK {
			m := f.Name + ": " + f.Reason
			if f.Costs != "" {
				m += "; " + f.Costs
			}
			out = append(out, Problem{Reason: "FeatureMissing", Message: m})
		}
	}
	if a.started.Load() && a.Store.NodeID() == 0 {
		out = append(out, Problem{Reason: "NodeIDMissing", Message: "this node has no id yet: the cluster controller gives it (annotation " + network.AnnotationNodeID + ")"})
	}
	a.mu.Lock()
	for k, msg := range a.failing {
		if k.kind != theReport {
			out = append(out, Problem{Reason: reasonOf(a.nets[k.id].err, k), Message: msg})
		}
	}
	for _, msg := range a.outside {
		if msg != "" {
			out = append(out, Problem{Reason: "NodeNotConfigured", Message: msg})
		}
	}
	for id, st := range a.nets {
		for _, w := range st.result.Waiting {
			if a.Now().Sub(st.at) > waitTooLong {
				out = append(out, Problem{Reason: "LinkMissing", Message: fmt.Sprintf("network %s (id %d) waits for link %s", st.net.Name, id, w)})
			}
		}
	}
	a.mu.Unlock()
	if a.HostNet != nil {
		st := a.HostNet.Status()
		for _, p := range st.Problems {
			m := p.Message
			if p.Pod != "" {
				m = "pod " + p.Pod + ": " + m
			}
			problem := Problem{Reason: p.Reason, Message: m}
			if slices.Contains(ofThePod, p.Reason) {
				problem.pod = p.Pod
			}
			out = append(out, problem)
		}
		for uid, n := range st.EarlySockets {
			out = append(out, Problem{Reason: "EarlySockets", Message: fmt.Sprintf("pod with uid %s had %d sockets before it was bound to its network: restart it", uid, n)})
		}
	}
	slices.SortFunc(out, func(a, b Problem) int {
		return strings.Compare(a.Reason+a.Message, b.Reason+b.Message)
	})
	return slices.Compact(out)
}

// waitTooLong is when a link that is waited for becomes worth telling.
const waitTooLong = 30 * time.Second

func reasonOf(err error, k key) string {
	switch {
	case k.kind == aNetwork && errors.Is(err, vrf.ErrNoVRF):
		return "VRFUnavailable"
	case k.kind == aNetwork:
		return "NetworkNotConfigured"
	case k.kind == thePorts:
		return "ManagementPortsNotConfigured"
	case k.kind == theHosts:
		return "HostNetworkNotConfigured"
	case k.kind == theNode:
		return "NodeNotConfigured"
	default:
		return "Failed"
	}
}

// lasting is how long a network must fail before the cluster is told: most of
// what fails is done a moment later.
const lasting = 10 * time.Second

// NetworkFailures are the networks that have not been built, or not been
// removed, for a while, and why.
func (a *Agent) NetworkFailures() network.Failures {
	now, out := a.Now(), network.Failures{}
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, msg := range a.failing {
		if k.kind != aNetwork || now.Sub(a.since[k]) < lasting {
			continue
		}
		// The reader knows the network; without its name, many fail for one reason.
		switch st, ok := a.nets[k.id]; {
		case ok && errors.Is(st.err, vrf.ErrNoVRF):
			msg = vrf.ErrNoVRF.Error()
		case ok && st.err != nil:
			msg = st.err.Error()
		}
		out[k.id] = msg
	}
	for id, st := range a.nets {
		if _, ok := out[id]; !ok && len(st.result.Waiting) > 0 && now.Sub(st.at) > waitTooLong {
			out[id] = "a link that it needs is missing: its management port, or the external bridge"
		}
	}
	return out
}

// tellFailures writes them on the Node, where that says something else.
func (a *Agent) tellFailures(ctx context.Context) error {
	if !a.started.Load() {
		return nil // what the API server has is not known yet
	}
	value, err := a.NetworkFailures().Render()
	if err != nil {
		return fmt.Errorf("render annotation %s: %w", network.AnnotationAgentFailures, err)
	}
	if a.Store.Annotations()[network.AnnotationAgentFailures] == value {
		return nil
	}
	said := map[string]string{network.AnnotationAgentFailures: value}
	if err := a.API.Annotate(ctx, said); err != nil {
		return fmt.Errorf("tell which networks fail: %w", err)
	}
	a.Store.Annotated(said)
	return nil
}

// informational reasons are told, but do not make the node degraded.
var informational = []string{"KubeletByProcess", "CgroupMissing", "EarlySockets"}

// ofThePod are reasons that a pod's author makes and can mend: events of the
// pod, and no state of the node that a tenant could bring about.
var ofThePod = []string{"ProbePortShared", "ProbePortHeld", "NetworkUnknown"}

// conditionOf sums problems up.
func conditionOf(problems []Problem) Condition {
	c := Condition{Type: ConditionDegraded, Status: conditionFalse, Reason: "AllWell", Message: "Everything works as it should."}
	var lines []string
	for _, p := range problems {
		if slices.Contains(informational, p.Reason) || slices.Contains(ofThePod, p.Reason) {
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
	c.Message = strings.Join(lines, "; ")
	if len(c.Message) > 2048 {
		c.Message = c.Message[:2048] + "…"
	}
	return c
}

// report writes the Node condition when it changes, and an event for each
// problem that is new.
func (a *Agent) report(ctx context.Context) error {
	problems := a.Problems()
	c := conditionOf(problems)
	if err := a.API.SetCondition(ctx, c); err != nil {
		return fmt.Errorf("set condition %s: %w", c.Type, err)
	}
	a.mu.Lock()
	seen := map[string]string{}
	var fresh []Problem
	for _, p := range problems {
		id := p.Reason + "\x00" + p.Message
		seen[id] = p.Message
		if _, ok := a.reported[id]; !ok {
			fresh = append(fresh, p)
		}
	}
	a.reported = seen
	a.mu.Unlock()
	for _, p := range fresh {
		if pod, ok := a.Store.Pod(p.pod); ok {
			a.API.PodEvent(pod, p.Reason, p.Message)
			continue
		}
		a.API.Event(!slices.Contains(slices.Concat(informational, ofThePod), p.Reason), p.Reason, p.Message)
	}
	return a.tellFailures(ctx)
}
