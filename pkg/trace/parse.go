// SPDX-License-Identifier: Apache-2.0

// Package trace follows a packet of a pod through a node's OVN and Open vSwitch, as
// ovn-trace(8) and ofproto/trace (ovs-vswitchd(8)) compute it, and says in words which
// stages it passes and where it ends. Nothing is sent.
package trace

import (
	"fmt"
	"regexp"
	"strings"
)

// Stage is one passage of a packet through a logical switch or router.
type Stage struct {
	Datapath string   // the switch's or router's name
	Router   bool     // a router
	In, Out  string   // logical ports; Out is empty if the packet does not leave
	Notes    []string // what happens to it: routes, policies, translations, ACLs
}

// End is where a packet ends. Port is empty if it is dropped.
type End struct {
	Port     string // the last logical port
	PortType string // OVN's: "" for an interface, localnet, remote, ...
	Reason   string // dropped: by what
}

// Logical is the path of a packet through the logical network. A packet that is
// flooded has several ends.
type Logical struct {
	Stages []Stage
	Ends   []End
}

var (
	pipelineLine  = regexp.MustCompile(`^ *(ingress|egress)\(dp="([^"]*)", inport="([^"]*)"(?:, outport="([^"]*)")?\)$`)
	flowLine      = regexp.MustCompile(`^ *\d+\. (l[sr]_(?:in|out)_\w+)(?: \([^)]*\))?: (.*), priority (\d+)(?:, uuid \w+)?$`)
	noMatchLine   = regexp.MustCompile(`^ *\d+\. (l[sr]_(?:in|out)_\w+)(?: \([^)]*\))?: no match`)
	outputLine    = regexp.MustCompile(`^ */\* output to "([^"]*)", type "([^"]*)" \*/$`)
	translateLine = regexp.MustCompile(`^ *ct_([sd])nat\(ip[46]\.(?:src|dst)=([^)]*)`)
	// sideLine begins a packet that the pipeline makes, beside the one that is traced:
	// a neighbour request, an error message.
	sideLine = regexp.MustCompile(`^ *(arp|nd_ns|nd_na|icmp4|icmp4_error|icmp6|icmp6_error|tcp_reset|sctp_abort|reject)$`)
)

// flow is a logical flow that matched, with its actions.
type flow struct {
	table, match, priority string
	actions                []string
}

func (f flow) String() string {
	return fmt.Sprintf("%s, priority %s: %s", f.table, f.priority, f.match)
}

// parser reads the detailed output of ovn-trace.
type parser struct {
	out   Logical
	flow  flow
	last  flow // the last that matched
	acl   flow // the last ACL's that matched
	open  bool // the current pipeline has neither sent the packet on nor dropped it
	begun bool // a pipeline
	aside int  // indentation from which lines belong to another packet; 0: none
}

// Parse parses the output of ovn-trace --detailed, which is its default.
func Parse(text string) (Logical, error) {
	p := &parser{}
	for line := range strings.Lines(text) {
		p.line(strings.TrimRight(line, "\n"))
	}
	p.finish()
	if !p.begun {
		return Logical{}, fmt.Errorf("no pipeline in the output of ovn-trace: %.200q", text)
	}
	return p.out, nil
}

func indentation(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

func (p *parser) line(line string) {
	if strings.TrimSpace(line) == "" {
		return
	}
	if p.aside > 0 {
		if indentation(line) >= p.aside || strings.Trim(line, " -") == "" {
			return
		}
		p.aside = 0
	}
	if sideLine.MatchString(line) {
		p.aside = indentation(line) + 1
		return
	}
	if m := pipelineLine.FindStringSubmatch(line); m != nil {
		p.pipeline(m[1] == "ingress", m[2], m[3], m[4])
		return
	}
	if m := flowLine.FindStringSubmatch(line); m != nil {
		p.endFlow()
		p.flow = flow{table: m[1], match: m[2], priority: m[3]}
		return
	}
	if m := noMatchLine.FindStringSubmatch(line); m != nil {
		p.endFlow()
		p.drop("no flow of " + m[1] + " matches")
		return
	}
	if m := outputLine.FindStringSubmatch(line); m != nil {
		p.endFlow()
		p.stage().Out, p.open = m[1], false
		p.out.Ends = append(p.out.Ends, End{Port: m[1], PortType: m[2]})
		return
	}
	if m := translateLine.FindStringSubmatch(line); m != nil {
		p.endFlow()
		p.note(map[string]string{"s": "source", "d": "destination"}[m[1]] + " becomes " + m[2])
		return
	}
	if action, ok := strings.CutSuffix(strings.TrimSpace(line), ";"); ok {
		p.flow.actions = append(p.flow.actions, action)
	}
}

// stage returns the current stage.
func (p *parser) stage() *Stage {
	if len(p.out.Stages) == 0 {
		p.out.Stages = append(p.out.Stages, Stage{})
	}
	return &p.out.Stages[len(p.out.Stages)-1]
}

func (p *parser) note(n string) { p.stage().Notes = append(p.stage().Notes, n) }

// pipeline begins an ingress or egress pipeline. An ingress pipeline follows another
// datapath's egress pipeline: that one's output was not the end.
func (p *parser) pipeline(ingress bool, datapath, in, out string) {
	p.endFlow()
	p.begun = true
	if ingress {
		p.finish()
		if n := len(p.out.Ends); n > 0 && p.out.Ends[n-1].Port != "" {
			p.out.Ends = p.out.Ends[:n-1]
		}
		p.out.Stages = append(p.out.Stages, Stage{Datapath: datapath, In: in})
	} else {
		p.stage().Out = out
	}
	p.open = true
}

// finish ends a pipeline that neither sent the packet on nor said that it drops it:
// ovn-trace prints "drop" only where a flow has that action.
func (p *parser) finish() {
	p.endFlow()
	if p.open {
		p.drop(p.lastReason())
	}
}

func (p *parser) lastReason() string {
	if p.acl.table != "" {
		return p.acl.String()
	}
	return p.last.String()
}

func (p *parser) drop(reason string) {
	p.open = false
	p.stage().Out = ""
	p.out.Ends = append(p.out.Ends, End{Reason: reason})
}

// endFlow notes what the flow before did.
func (p *parser) endFlow() {
	f := p.flow
	actions := f.actions
	p.flow = flow{}
	if f.table == "" {
		return
	}
	p.last = f
	if strings.HasPrefix(f.table, "lr_") {
		p.stage().Router = true
	}
	values := map[string]string{}
	for _, a := range actions {
		if key, value, ok := strings.Cut(a, " = "); ok {
			values[key] = strings.Trim(value, `"`)
		}
	}
	nextHop := values["reg0"]
	if nextHop == "" {
		nextHop = values["xxreg0"]
	}
	for _, a := range actions {
		switch {
		case a == "drop":
			reason := f.String()
			if strings.Contains(f.table, "_acl_action") && p.acl.table != "" {
				reason = p.acl.String()
			}
			p.drop(reason)
			return
		case strings.HasPrefix(a, "ct_lb"):
			if _, backends, ok := strings.Cut(a, "backends="); ok {
				p.note("load balancer of " + f.match + ": one of " + strings.Trim(backends, "()"))
			}
		}
	}
	switch {
	case strings.HasSuffix(f.table, "_acl_eval") && len(f.priority) < 4: // not an ACL: northd adds 1000 to their priorities
	case strings.HasSuffix(f.table, "_acl_eval"):
		p.acl = f
		p.note("ACL " + f.String())
	case strings.HasSuffix(f.table, "_acl_action"):
		if values["reg8[17]"] == "" || f.priority == "0" {
			p.acl = flow{}
		}
	case f.table == "lr_in_ip_routing" && values["outport"] != "":
		p.note(route(f.match, nextHop, values["outport"]))
	case f.table == "lr_in_policy" && values["outport"] != "":
		p.note("policy " + f.match + " sends it to " + nextHop + " by " + values["outport"])
	case f.table == "lr_in_policy" && f.priority != "0":
		p.note("policy allows " + f.match)
	}
}

// route describes a route by the match of its flow.
func route(match, nextHop, port string) string {
	match = strings.TrimPrefix(match, "reg7 == 0 && ")
	if strings.HasPrefix(nextHop, "ip4.dst") || strings.HasPrefix(nextHop, "ip6.dst") {
		return "route " + match + ": on link at " + port
	}
	return "route " + match + ": to " + nextHop + " by " + port
}
