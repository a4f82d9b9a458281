// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Node is where a trace runs: on the pod's node.
type Node struct {
	SB     string // address of the southbound database
	OVS    string // address of the Open vSwitch database
	Target string // ovs-appctl's target: ovs-vswitchd, or its control socket
	// Run runs a program and returns its output; nil runs it on this machine.
	Run func(ctx context.Context, program string, args ...string) (string, error)
}

// lookups is the number of look-ups of a connection for which a trace says that it is
// new: more than a packet meets. By default a trace takes them as established.
const lookups = 30

// Trace is a packet's path.
type Trace struct {
	Packet  Packet
	From    Port
	Logical Logical
	Bridges *Bridges // nil: the pod has no interface on this node
	Ports   []Port   // of the node's southbound database
	Raw     string   // the output of ovn-trace and ofproto/trace
}

// Pod traces a packet of a pod (namespace/name), on network if that is not empty.
// Connections are taken as new, and load balancers choose any endpoint.
func (n Node) Pod(ctx context.Context, pod, network string, p Packet) (Trace, error) {
	t := Trace{Packet: p}
	var err error
	if t.Ports, err = ReadPorts(ctx, n.SB); err != nil {
		return t, err
	}
	if t.From, err = FindPod(t.Ports, pod, network); err != nil {
		return t, err
	}
	m, err := p.microflow(t.From, t.Ports)
	if err != nil {
		return t, err
	}
	args := []string{"--db=" + n.SB, "--no-leader-only"}
	bridgeArgs := []string{"-t", n.Target, "ofproto/trace", "--names"}
	for range lookups {
		args = append(args, "--ct=new,trk")
		bridgeArgs = append(bridgeArgs, "--ct-next", "new,trk")
	}
	if t.Raw, err = n.run(ctx, "ovn-trace", append(args, t.From.Datapath, m.logical())...); err != nil {
		return t, err
	}
	if t.Logical, err = Parse(t.Raw); err != nil {
		return t, err
	}
	link, err := n.run(ctx, "ovs-vsctl", "--db="+n.OVS, "--bare", "--columns=name", "find", "Interface", "external_ids:iface-id="+t.From.Name)
	if err != nil {
		return t, err
	}
	if link = strings.TrimSpace(link); link == "" {
		return t, nil
	}
	raw, err := n.run(ctx, "ovs-appctl", append(bridgeArgs, "br-int", m.openFlow(link))...)
	if err != nil {
		return t, err
	}
	t.Raw += "\n" + raw
	b := ParseBridges(raw)
	t.Bridges = &b
	return t, nil
}

func (n Node) run(ctx context.Context, program string, args ...string) (string, error) {
	if n.Run != nil {
		return n.Run(ctx, program, args...)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%s is not installed here: run the trace where OVN and Open vSwitch run: %w", program, err)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
