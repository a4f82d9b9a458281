// SPDX-License-Identifier: Apache-2.0

// Command netprobe runs in the story's pods: a server that answers with its name
// over TCP (HTTP), UDP and SCTP, a client that checks many targets at once, by its arguments
// or on request, and a watcher that counts the losses of a ping and a TCP stream. It opens plain
// sockets, as any program would, and knows nothing of VRFs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "netprobe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: netprobe serve|check|answer|watch|sink|flood|poll")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "serve":
		name := fs.String("name", hostname(), "the name that the server answers with")
		listen := fs.String("listen", ":8080", "address for TCP and UDP")
		grpc := fs.String("grpc", "", "address of the gRPC health service; empty for none")
		sctp := fs.String("sctp", "", "address for SCTP, [::] for any of both families; empty for none")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		if *sctp != "" {
			if err := serveSCTP(ctx, *name, *sctp); err != nil {
				return err
			}
		}
		if *grpc != "" {
			if err := serveGRPC(ctx, *grpc); err != nil {
				return err
			}
		}
		return serve(ctx, *name, *listen)
	case "check":
		timeout := fs.Duration("timeout", 3*time.Second, "timeout of each target")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		results, err := checkAll(ctx, fs.Args(), *timeout)
		if err != nil {
			return err
		}
		enc := json.NewEncoder(os.Stdout)
		for _, r := range results {
			if err := enc.Encode(r); err != nil {
				return err
			}
		}
		return nil
	case "answer":
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return answer(ctx, os.Stdin, os.Stdout)
	case "watch":
		ping := fs.String("ping", "", "address to ping")
		tcp := fs.String("tcp", "", "address and port of a server to stream from")
		every := fs.Duration("every", 20*time.Millisecond, "interval between pings")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return watch(ctx, *ping, *tcp, *every)
	case "poll":
		owner := fs.String("owner", "", "what the names of the servers begin with that must not answer")
		timeout := fs.Duration("timeout", 2*time.Second, "timeout of each target")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return poll(ctx, *owner, fs.Args(), *timeout, os.Stdin, os.Stdout)
	case "sink":
		listen := fs.String("listen", ":8081", "address for TCP")
		echo := fs.Bool("echo", false, "send everything back")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return sink(ctx, *listen, *echo, os.Stdout)
	case "flood":
		to := fs.String("to", "", "address and port of a sink")
		d := fs.Duration("for", 5*time.Second, "how long to send")
		echo := fs.Bool("echo", false, "send single bytes to a sink that sends them back")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return flood(ctx, *to, *d, *echo)
	default:
		return fmt.Errorf("unknown command %q; usage: netprobe serve|check|answer|watch|sink|flood|poll", args[0])
	}
}

func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return h
}

// result is one line of check's output.
type result struct {
	Target string `json:"target"`
	OK     bool   `json:"ok"`
	Who    string `json:"who,omitempty"` // the server's name
	Detail string `json:"detail,omitempty"`
	Millis int64  `json:"millis"`
}

// checkAll checks all targets in parallel and returns a result per target, in the order
// given. Targets are tcp:address:port, udp:address:port, sctp:address:port, icmp:address, dns-tcp:address:port
// or dns-udp:address:port for a name server, client-tcp:address:port or
// client-udp:address:port for the client's address as the server sees it, large-udp:address:port for
// datagrams of several fragments both ways, and name:NAME for a name to resolve. A port number after tcp@ or udp@ is the source port. Without a target,
// or with a malformed one, it fails: that is not "unreachable".
func checkAll(ctx context.Context, targets []string, timeout time.Duration) ([]result, error) {
	if len(targets) == 0 {
		return nil, errors.New("no targets to check")
	}
	parsed := make([]target, len(targets))
	for i, text := range targets {
		var err error
		if parsed[i], err = parse(text); err != nil {
			return nil, fmt.Errorf("target %q: %w", text, err)
		}
	}
	results := make([]result, len(targets))
	var wg sync.WaitGroup
	for i, text := range targets {
		wg.Add(1)
		go func() {
			defer wg.Done()
			start := time.Now()
			who, err := check(ctx, parsed[i], timeout)
			results[i] = result{Target: text, OK: err == nil, Who: who, Millis: time.Since(start).Milliseconds()}
			if err != nil {
				results[i].Detail = err.Error()
			}
		}()
	}
	wg.Wait()
	return results, nil
}

// target is a parsed one.
type target struct {
	protocol, addr string
	source         int // port; 0: any
}

func parse(text string) (target, error) {
	protocol, addr, _ := strings.Cut(text, ":")
	protocol, source, given := strings.Cut(protocol, "@")
	t, err := target{protocol: protocol, addr: addr}, error(nil)
	if given {
		if protocol != "tcp" && protocol != "udp" {
			return t, fmt.Errorf("a source port with protocol %q, want tcp or udp", protocol)
		}
		port, err := strconv.ParseUint(source, 10, 16)
		if err != nil {
			return t, fmt.Errorf("source port: %w", err)
		}
		t.source = int(port)
	}
	switch protocol {
	case "tcp", "udp", "sctp", "dns-tcp", "dns-udp", "client-tcp", "client-udp", "large-udp":
		_, err = netip.ParseAddrPort(addr)
	case "icmp":
		_, err = netip.ParseAddr(addr)
	case "name":
		if addr == "" {
			err = errors.New("no name")
		}
	default:
		err = fmt.Errorf("unknown protocol %q, want tcp, udp, sctp, icmp, dns-tcp, dns-udp, client-tcp, client-udp, large-udp or name", protocol)
	}
	return t, err
}

// check checks a target and returns the server's name.
func check(ctx context.Context, t target, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch t.protocol {
	case "tcp":
		return checkTCP(ctx, t, "/")
	case "udp":
		return checkUDP(ctx, t, "who")
	case "sctp":
		return checkSCTP(ctx, t.addr)
	case "client-tcp":
		return checkTCP(ctx, t, "/"+askClient)
	case "client-udp":
		return checkUDP(ctx, t, askClient)
	case "large-udp":
		return checkLargeUDP(ctx, t)
	case "dns-tcp", "dns-udp":
		return checkDNS(ctx, strings.TrimPrefix(t.protocol, "dns-"), t.addr)
	case "name":
		return checkName(ctx, t.addr)
	default:
		return "", checkICMP(ctx, t.addr)
	}
}
