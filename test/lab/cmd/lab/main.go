// SPDX-License-Identifier: Apache-2.0

// Command lab starts, stops and accesses the lab.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/test/lab"
	"bulkhead/test/lab/internal/build"
	"bulkhead/test/lab/internal/guest"
	"bulkhead/test/lab/internal/host"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const usage = `usage: lab COMMAND

  up [--nodes=2] [--families=ipv4|ipv6|dual] [--gateway=shared|local] [--bgp] [--transport=geneve|no-overlay] [--agent-uplink] [--kvm=auto|on|off] [--install=true] [--conformance] [--keep]
                        build what is missing, start a lab, wait until it is ready
  down                  stop the lab
  status                show the nodes and the external host
  shell NODE            open a terminal on a node, or on "external"
  run NODE -- CMD ...   run a command on a node, or on "external"
  kubectl ARGS ...      run the cluster's kubectl
  logs                  fetch the machines' logs, print the log directory
  pause|resume|kill X   stop, continue or kill a process of the lab (kube-apiserver, node1 ...)
  build                 only fill the caches
  env                   fill the caches without the product, print their paths as environment variables for tests
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return 2, fmt.Errorf("no command; %s", strings.TrimSpace(usage))
	}
	command, args := args[0], args[1:]
	switch command {
	case "up", "build", "env":
		o, err := options(command, args)
		if err != nil {
			return 2, err
		}
		switch command {
		case "build":
			_, err := lab.Build(ctx, o, os.Stdout)
			return 0, err
		case "env":
			o.Install = false
			caches, err := lab.Build(ctx, o, os.Stderr)
			if err == nil {
				fmt.Printf("BULKHEAD_K8S_BIN=%s BULKHEAD_ROOTFS=%s\n", caches.Kubernetes, caches.RootFS)
			}
			return 0, err
		}
		_, err = lab.Up(ctx, o, os.Stdout)
		return 0, err
	case "-h", "--help", "help":
		fmt.Print(usage)
		return 0, nil

	// Commands by which the lab runs itself.
	case "serve":
		slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
		return 0, host.Serve(first(args))
	case "external":
		var e guest.External
		if err := json.Unmarshal([]byte(first(args)), &e); err != nil {
			return 1, fmt.Errorf("read the external host's configuration: %w", err)
		}
		return 0, guest.ExternalInit(e, "/proc/self/exe")
	case "external-server":
		return 0, guest.ExternalServer(first(args))
	case "store":
		if len(args) < 3 {
			return 2, errors.New("lab store takes ROOTFS WORK OUT and at least one IMAGE")
		}
		return 0, build.Store(ctx, args[0], args[1], args[2], args[3:])
	}

	l, err := lab.Attach()
	if command == "down" && errors.Is(err, host.ErrNoLab) {
		fmt.Println("no lab is running")
		return 0, nil
	}
	if err != nil {
		return 1, err
	}
	switch command {
	case "down":
		return 0, l.Down(ctx)
	case "status":
		return 0, status(ctx, l)
	case "shell", "run":
		return onNode(ctx, l, command, args)
	case "kubectl":
		program, env := l.Kubectl()
		return 1, l.InNetwork(func() error { return syscall.Exec(program, append([]string{"kubectl"}, args...), env) })
	case "logs":
		err := l.CollectLogs(ctx)
		fmt.Println(l.LogDir())
		return 0, err
	case "pause":
		return 0, l.Pause(first(args))
	case "resume":
		return 0, l.Resume(first(args))
	case "kill":
		return 0, l.Kill(first(args))
	}
	return 2, fmt.Errorf("unknown command %q\n\n%s", command, usage)
}

func options(command string, args []string) (lab.Options, error) {
	var o lab.Options
	flags := flag.NewFlagSet("lab "+command, flag.ContinueOnError)
	flags.IntVar(&o.Nodes, "nodes", 2, "number of nodes, 1 to 4")
	flags.StringVar(&o.Families, "families", "ipv4", "ipv4, ipv6 or dual")
	flags.StringVar(&o.Gateway, "gateway", "shared", "gateway mode: shared or local")
	flags.BoolVar(&o.BGP, "bgp", false, "with FRR on each node and frr-k8s")
	flags.StringVar(&o.Transport, "transport", network.TransportGeneve, "transport of the cluster default network: geneve or no-overlay, which turns on --bgp")
	flags.BoolVar(&o.AgentUplink, "agent-uplink", false, "leave the node's card to the product, which moves it to the external bridge")
	flags.StringVar(&o.KVM, "kvm", "auto", "auto, on or off")
	flags.BoolVar(&o.Install, "install", true, "install the product from deploy/")
	flags.BoolVar(&o.Conformance, "conformance", false, "with Kubernetes' own tests and the images of their pods")
	flags.BoolVar(&o.Keep, "keep", false, "keep a lab that does not become ready, for debugging")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("lab %s: unexpected %q", command, flags.Arg(0))
	}
	if o.Nodes == 0 { // lab.Options takes 0 for the default
		return o, errors.New("--nodes is 1 to 4, not 0")
	}
	return o, nil
}

// first returns the first argument, or "".
func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func onNode(ctx context.Context, l *lab.Lab, command string, args []string) (int, error) {
	n := l.Node(first(args))
	if n == nil {
		return 2, fmt.Errorf("lab %s: the lab has no machine %q; see lab status", command, first(args))
	}
	if command == "shell" {
		return n.Shell(ctx)
	}
	args = args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return 2, errors.New("lab run takes NODE -- COMMAND and its arguments")
	}
	return n.Exec(ctx, args, os.Stdin, os.Stdout, os.Stderr)
}

func status(ctx context.Context, l *lab.Lab) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	list, err := l.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the cluster's nodes: %w", err)
	}
	state := map[string]string{}
	for _, n := range list.Items {
		state[n.Name] = "registered"
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				state[n.Name] = map[bool]string{true: "Ready", false: "NotReady: " + c.Message}[c.Status == corev1.ConditionTrue]
			}
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	for _, n := range append(l.Nodes(), l.External()) {
		s := state[n.Name]
		if n == l.External() {
			s = "not in the cluster"
		} else if s == "" {
			s = "not registered"
		}
		var addresses []string
		for _, a := range n.Addresses() {
			addresses = append(addresses, a.String())
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", n.Name, strings.Join(addresses, " "), s)
	}
	fmt.Fprintf(w, "logs\t%s\n", l.LogDir())
	return w.Flush()
}
