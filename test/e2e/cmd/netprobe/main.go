// SPDX-License-Identifier: Apache-2.0

// Command netprobe is what the story's pods run: a server that says its name
// over TCP (HTTP) and UDP, a client that tries many targets at once, and a
// watcher of a ping and a TCP stream that counts every loss. It opens plain
// sockets, as any program would: nothing in it knows of VRFs.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
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
		return fmt.Errorf("say what to do: serve, check or watch")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "serve":
		name := fs.String("name", hostname(), "what the server calls itself")
		listen := fs.String("listen", ":8080", "address for TCP and UDP")
		grpc := fs.String("grpc", "", "address of a gRPC health service; empty: none")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		if *grpc != "" {
			if err := serveGRPC(ctx, *grpc); err != nil {
				return err
			}
		}
		return serve(ctx, *name, *listen)
	case "check":
		timeout := fs.Duration("timeout", 3*time.Second, "for each target")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return checkAll(ctx, fs.Args(), *timeout)
	case "watch":
		ping := fs.String("ping", "", "address to ping")
		tcp := fs.String("tcp", "", "address and port of a server to stream from")
		every := fs.Duration("every", 20*time.Millisecond, "between pings")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return watch(ctx, *ping, *tcp, *every)
	default:
		return fmt.Errorf("unknown command %q: serve, check or watch", args[0])
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
	Who    string `json:"who,omitempty"` // what the server calls itself
	Detail string `json:"detail,omitempty"`
	Millis int64  `json:"millis"`
}

// checkAll tries each target (tcp:host:port, udp:host:port, icmp:host) at the
// same time and prints one JSON line each, in the order given.
func checkAll(ctx context.Context, targets []string, timeout time.Duration) error {
	results := make([]result, len(targets))
	var wg sync.WaitGroup
	for i, target := range targets {
		wg.Add(1)
		go func() {
			defer wg.Done()
			start := time.Now()
			who, err := check(ctx, target, timeout)
			results[i] = result{Target: target, OK: err == nil, Who: who, Millis: time.Since(start).Milliseconds()}
			if err != nil {
				results[i].Detail = err.Error()
			}
		}()
	}
	wg.Wait()
	enc := json.NewEncoder(os.Stdout)
	for _, r := range results {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func check(ctx context.Context, target string, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	proto, addr, ok := strings.Cut(target, ":")
	if !ok {
		return "", fmt.Errorf("target %q is not PROTOCOL:ADDRESS", target)
	}
	switch proto {
	case "tcp":
		return checkTCP(ctx, addr)
	case "udp":
		return checkUDP(ctx, addr)
	case "icmp":
		return "", checkICMP(ctx, addr)
	default:
		return "", fmt.Errorf("protocol %q is unknown: tcp, udp or icmp", proto)
	}
}
