// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"io"
	"strings"
)

// Write writes the trace in words.
func (t Trace) Write(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Pod %s on network %s, port %s, sends to %s.\n\nOVN:\n", t.From.Pod, t.From.Network, t.From.Name, t.Packet)
	for i, s := range t.Logical.Stages {
		kind := "switch"
		if s.Router {
			kind = "router"
		}
		fmt.Fprintf(&b, "%3d  %s %s: in by %s", i+1, kind, s.Datapath, s.In)
		if s.Out != "" {
			fmt.Fprintf(&b, ", out by %s", s.Out)
		}
		b.WriteString("\n")
		for _, n := range s.Notes {
			fmt.Fprintf(&b, "     - %s\n", n)
		}
	}
	for _, e := range t.Logical.Ends {
		fmt.Fprintf(&b, "  => %s\n", t.describe(e))
	}
	b.WriteString("\nOpen vSwitch:\n")
	if t.Bridges == nil {
		b.WriteString("  => the pod has no interface on this node\n")
	} else {
		fmt.Fprintf(&b, "     bridges %s\n  => %s\n", strings.Join(t.Bridges.Names, ", "), t.Bridges)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// describe says where the packet ends.
func (t Trace) describe(e End) string {
	if e.Port == "" {
		return "dropped: " + e.Reason
	}
	p := Port{}
	for _, q := range t.Ports {
		if q.Name == e.Port {
			p = q
		}
	}
	by := fmt.Sprintf(" (port %s)", e.Port)
	switch {
	case p.Pod != "" && e.PortType == "remote":
		return "pod " + p.Pod + " on another node, through the tunnel" + by
	case p.Pod != "":
		return "pod " + p.Pod + by
	case e.PortType == "remote":
		return "node " + p.Node + ", through the tunnel" + by
	case e.PortType == "localnet":
		return "the bridge of the network outside" + by
	case e.PortType == "" && p.Node != "":
		return "the node itself, by the network's management port" + by
	}
	return "port " + e.Port
}
