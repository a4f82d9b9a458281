// SPDX-License-Identifier: Apache-2.0

// Command bulkheadctl shows the networks and the agent of this node, traces packets
// of the node's pods, and gives the node's uplink back when Bulkhead is removed. It uses
// the agent's socket, OVN's southbound database and Open vSwitch, so it needs root on the
// node and no access to the API server. Installed as kubectl-bulkhead, it is a kubectl plugin.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

const usage = `bulkheadctl shows the networks and the agent of this node.

  bulkheadctl status     the node: facts, kernel features, kubelet, counters, problems
  bulkheadctl networks   every network: id, subnets, VRF, table, port, addresses, pods, state
  bulkheadctl trace [flags] NAMESPACE/POD ADDRESS[:PORT]
                         the stages of OVN and Open vSwitch that a packet of a pod of this node
                         would pass, and where it would end; it needs ovn-trace and ovs-appctl
  bulkheadctl bgp [flags]
                         what this node announces by BGP, its sessions, what it has learned, whether
                         the kernel and OVN have it, and what differs; it runs FRR's vtysh
  bulkheadctl restore-uplink [flags]
                         give the interface that the agent has moved into the external bridge its
                         addresses and routes back, and delete the bridge if the agent created it;
                         pods of this node lose the way out

Flags, after the command:
`

func main() {
	err := run(os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bulkheadctl:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	command := ""
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		command, args = args[0], args[1:]
	}
	fs := flag.NewFlagSet("bulkheadctl", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), usage)
		fs.PrintDefaults()
	}
	socket := fs.String("socket", "/var/run/bulkhead/agent.sock", "the agent's state socket")
	format := fs.String("o", "table", "output of status, networks and bgp: table or json")
	var tr traceFlags
	tr.register(fs)
	var bgp bgpFlags
	bgp.register(fs)
	var up uplinkFlags
	up.register(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *format != "table" && (*format != "json" || command == "trace" || command == "restore-uplink") {
		return fmt.Errorf("-o %q: use table, or json with status, networks and bgp", *format)
	}
	if command == "trace" {
		return tr.run(out, fs.Args())
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q (see bulkheadctl --help)", fs.Arg(0))
	}
	if command == "restore-uplink" {
		return up.run(out, os.Stderr, tr.node.OVS)
	}
	switch command {
	case "status", "networks", "bgp":
	case "":
		fs.Usage()
		return flag.ErrHelp
	default:
		return fmt.Errorf("unknown command %q: use status, networks, bgp, trace or restore-uplink", command)
	}
	raw, err := fetch(*socket)
	if err != nil {
		return err
	}
	var st state
	if err := json.Unmarshal(raw, &st); err != nil {
		return fmt.Errorf("parse the agent's state: %w", err)
	}
	switch {
	case command == "bgp":
		return bgp.run(out, st, *format == "json")
	case *format == "json" && command == "status":
		_, err = out.Write(raw)
		return err
	case *format == "json":
		return writeNetworksJSON(out, raw)
	case command == "status":
		return writeStatus(out, st)
	default:
		return writeNetworks(out, st)
	}
}

// fetch reads the agent's state, which takes the agent seconds on a busy node: it runs nft.
func fetch(socket string) ([]byte, error) {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := client.Get("http://agent/debug/state")
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED): // an agent that has ended leaves its socket
		return nil, fmt.Errorf("no agent listens on %s: check that the agent runs on this node; until it has found Open vSwitch, its /readyz names what it waits for: %w", socket, err)
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("only root may open %s: run bulkheadctl as root: %w", socket, err)
	case err != nil:
		return nil, fmt.Errorf("read the agent's state: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read the agent's state: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read the agent's state: %s: %s", resp.Status, body)
	}
	return body, nil
}

// writeNetworksJSON writes the state's networks unchanged.
func writeNetworksJSON(out io.Writer, raw []byte) error {
	var st struct {
		Networks json.RawMessage `json:"networks"`
	}
	if err := json.Unmarshal(raw, &st); err != nil {
		return fmt.Errorf("parse the agent's state: %w", err)
	}
	_, err := fmt.Fprintf(out, "%s\n", st.Networks)
	return err
}
