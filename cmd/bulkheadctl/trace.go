// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"bulkhead/pkg/trace"
)

// traceFlags are the flags of bulkheadctl trace.
type traceFlags struct {
	network, protocol string
	raw               bool
	node              trace.Node
}

func (f *traceFlags) register(fs *flag.FlagSet) {
	fs.StringVar(&f.network, "network", "", "trace: the network on which the pod sends; \"default\" is the cluster default network; empty: the pod's primary network")
	fs.StringVar(&f.protocol, "protocol", "", "trace: tcp, udp or sctp with a port (tcp)")
	fs.BoolVar(&f.raw, "raw", false, "trace: also print the output of ovn-trace and ofproto/trace")
	fs.StringVar(&f.node.SB, "sb-address", "unix:/var/run/ovn/ovnsb_db.sock", "trace: OVN's southbound database")
	fs.StringVar(&f.node.OVS, "ovsdb-address", "unix:/var/run/openvswitch/db.sock", "trace and restore-uplink: Open vSwitch's database")
	fs.StringVar(&f.node.Target, "ovs-target", "ovs-vswitchd", "trace: Open vSwitch's control socket, or the name of its daemon")
}

// run traces a packet. args are the pod and the destination.
func (f *traceFlags) run(out io.Writer, args []string) error {
	if len(args) != 2 || strings.Count(args[0], "/") != 1 {
		return errors.New("use bulkheadctl trace [flags] NAMESPACE/POD ADDRESS[:PORT]")
	}
	packet, err := trace.ParsePacket(args[1], f.protocol)
	if err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	t, err := f.node.Pod(context.Background(), args[0], f.network, packet)
	if err != nil {
		return fmt.Errorf("trace pod %s: %w", args[0], err)
	}
	if err := t.Write(out); err != nil {
		return err
	}
	if f.raw {
		_, err = fmt.Fprintf(out, "\n%s", t.Raw)
	}
	return err
}
