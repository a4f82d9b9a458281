// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"regexp"
	"slices"
	"strings"
)

// Bridges is the path of a packet through Open vSwitch.
type Bridges struct {
	Names   []string // in order, each once
	Ports   []string // by which it leaves; "tunnel" for a tunnel
	Last    string   // the last flow
	Actions string   // the datapath's, for the last part of the way
	Partial bool     // the trace ends before the packet's path does: after a choice by hash
}

var (
	bridgeLine  = regexp.MustCompile(`^ *bridge\("([^"]+)"\)$`)
	ofFlowLine  = regexp.MustCompile(`^ *(\d+\. .*priority \d+.*)$`)
	actionsLine = regexp.MustCompile(`^Datapath actions: (.*)$`)
	portName    = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
)

// notPorts are actions without arguments, which look like the name of a port.
var notPorts = []string{"drop", "pop_vlan", "pop_eth", "ct_clear", "pop_nsh"}

// ParseBridges parses the output of ofproto/trace --names.
func ParseBridges(text string) Bridges {
	var b Bridges
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := bridgeLine.FindStringSubmatch(line); m != nil {
			if !slices.Contains(b.Names, m[1]) {
				b.Names = append(b.Names, m[1])
			}
		} else if m := ofFlowLine.FindStringSubmatch(line); m != nil {
			b.Last = m[1]
		} else if m := actionsLine.FindStringSubmatch(line); m != nil {
			b.Actions, b.Partial = m[1], false
			for _, a := range split(m[1]) {
				switch {
				case strings.Contains(a, "tnl_push("), strings.HasPrefix(a, "genev_sys"):
					b.Ports = append(b.Ports, "tunnel")
				case strings.HasPrefix(a, "recirc("):
					b.Partial = true // unless its resumption follows
				case portName.MatchString(a) && !slices.Contains(notPorts, a):
					b.Ports = append(b.Ports, a)
				}
			}
		}
	}
	return b
}

// split splits a list at the commas outside parentheses.
func split(list string) []string {
	var out []string
	depth, start := 0, 0
	for i, c := range list {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, list[start:i])
				start = i + 1
			}
		}
	}
	return append(out, list[start:])
}

// String says where the packet ends.
func (b Bridges) String() string {
	switch {
	case len(b.Ports) > 0:
		return "sent by " + strings.Join(b.Ports, ", ")
	case b.Partial:
		return "not followed to its end, after " + b.Last + ": actions " + b.Actions
	}
	if strings.Contains(b.Last, "dl_dst=00:00:00:00:00:00") {
		return "not sent: the next hop's MAC is unknown, so its neighbour is asked first; the last flow is " + b.Last
	}
	return "not sent; the last flow is " + b.Last
}
