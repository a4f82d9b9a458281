// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bulkhead/test/lab/internal/guest"
	"bulkhead/test/lab/internal/host"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var getOptions = metav1.GetOptions{}

// Lab is a running lab.
type Lab struct {
	state    host.State
	nodes    []*Node
	external *Node

	config  *rest.Config
	client  kubernetes.Interface
	dynamic dynamic.Interface
	err     error // why there are no clients

	lock *os.File // keeps other processes from replacing the lab; nil: none does
}

// Attach returns the running lab of the run directory.
func Attach() (*Lab, error) {
	state, err := host.ReadState(runDir())
	if err != nil {
		return nil, fmt.Errorf("attach to the lab in %s: %w", runDir(), err)
	}
	l := newLab(state)
	return l, l.err
}

func newLab(state host.State) *Lab {
	l := &Lab{state: state}
	for _, m := range state.Nodes {
		address := net.JoinHostPort(m.Management.Addr().String(), strconv.Itoa(guest.ExecPort))
		l.nodes = append(l.nodes, &Node{Name: m.Name, machine: m, token: state.Token, dial: func(ctx context.Context) (net.Conn, error) {
			return host.Dial(ctx, state.PID, "tcp", address)
		}})
	}
	l.external = &Node{Name: state.External.Name, machine: state.External, token: state.Token, dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", host.ExternalSocket(state.Run))
	}}
	l.config, l.err = clientcmd.BuildConfigFromFlags("", host.KubeconfigPath(state.Run))
	if l.err != nil {
		return l
	}
	l.config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		return host.Dial(ctx, state.PID, network, address)
	}
	l.config.QPS, l.config.Burst = -1, -1
	l.config.WarningHandler = rest.NoWarnings{} // tests use deprecated fields, too
	if l.client, l.err = kubernetes.NewForConfig(l.config); l.err != nil {
		return l
	}
	l.dynamic, l.err = dynamic.NewForConfig(l.config)
	return l
}

// Nodes returns the cluster's nodes, ordered by name.
func (l *Lab) Nodes() []*Node { return l.nodes }

// Node returns the node or external host of that name, or nil.
func (l *Lab) Node(name string) *Node {
	for _, n := range l.machines() {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// External returns the external host, which is on the underlay and not in the cluster.
func (l *Lab) External() *Node { return l.external }

// RESTConfig returns an administrator's client configuration that works from outside
// the lab's network.
func (l *Lab) RESTConfig() *rest.Config { return rest.CopyConfig(l.config) }

// Client returns a client with RESTConfig.
func (l *Lab) Client() kubernetes.Interface { return l.client }

// Families are the lab's IP families: "ipv4", "ipv6" or both.
func (l *Lab) Families() []string { return l.state.Families.List() }

// LogDir returns the directory of the daemons' logs and the nodes' consoles.
func (l *Lab) LogDir() string { return host.LogDir(l.state.Run) }

// Down stops the lab and keeps its logs.
func (l *Lab) Down(ctx context.Context) error {
	if err := stop(ctx, l.state); err != nil {
		return err
	}
	l.unlock()
	return keepLogs(l.state.Run)
}

// unlock lets other processes replace the lab.
func (l *Lab) unlock() {
	if l.lock != nil {
		l.lock.Close()
		l.lock = nil
	}
}

// errorTime is how long a condition may fail before Wait returns its error.
const errorTime = 20 * time.Second

// Wait calls cond until it returns true. When ctx ends, Wait returns an error with what
// and the last detail, by which cond says what is missing. Wait returns an error of cond that
// stays for errorTime: a busy node's first answer may come too late.
func (l *Lab) Wait(ctx context.Context, what string, cond func(context.Context) (ok bool, detail string, err error)) error {
	const unchecked = "not checked yet"
	detail := unchecked
	var failing time.Time // since when cond fails
	for {
		ok, now, err := cond(ctx)
		switch {
		case err != nil && ctx.Err() != nil && detail != unchecked:
			return fmt.Errorf("wait for %s: %w: %s", what, context.Cause(ctx), detail)
		case err != nil && failing.IsZero() && ctx.Err() == nil:
			failing = time.Now()
		case err != nil && (ctx.Err() != nil || time.Since(failing) >= errorTime):
			return fmt.Errorf("wait for %s: %w", what, err)
		case err != nil:
		case ok:
			return nil
		default:
			failing = time.Time{}
			if ctx.Err() == nil || detail == unchecked {
				detail = now // not the detail of a check that ctx interrupted
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %s", what, context.Cause(ctx), detail)
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// Pause stops a process of the lab until Resume: kube-apiserver, etcd, kube-scheduler,
// kube-controller-manager or a node.
func (l *Lab) Pause(name string) error { return host.Signal(l.state.Run, "pause", name) }

// Resume continues a paused process.
func (l *Lab) Resume(name string) error { return host.Signal(l.state.Run, "resume", name) }

// Kill kills a process of the lab, see Pause for the names. The lab restarts it. For a
// node this is a power failure.
func (l *Lab) Kill(name string) error { return host.Signal(l.state.Run, "kill", name) }

// CollectLogs copies the machines' logs, including those of pods, to LogDir/<machine>.
func (l *Lab) CollectLogs(ctx context.Context) error {
	var failed []string
	for _, n := range l.machines() {
		if err := l.collect(ctx, n); err != nil {
			failed = append(failed, err.Error())
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("collect logs: %s", strings.Join(failed, "; "))
	}
	return nil
}

// machines are the nodes and the external host.
func (l *Lab) machines() []*Node { return append(l.nodes[:len(l.nodes):len(l.nodes)], l.external) }

// Kubectl returns the path of a kubectl of the cluster's version and its environment.
// It must run inside InNetwork.
func (l *Lab) Kubectl() (program string, env []string) {
	return filepath.Join(l.state.Artifacts.Kubernetes, "kubectl"), append(os.Environ(), "KUBECONFIG="+host.KubeconfigPath(l.state.Run),
		// All labs have the same address, so that they must not share a discovery cache.
		"KUBECACHEDIR="+filepath.Join(l.state.Run, "kubectl"))
}

// Kubeconfig returns an administrator's kubeconfig, also for programs on nodes.
func (l *Lab) Kubeconfig() ([]byte, error) { return os.ReadFile(host.KubeconfigPath(l.state.Run)) }

// Multus returns the directory of Multus and the CNI plugins bridge and static, which no
// node has installed.
func (l *Lab) Multus() string { return l.state.Artifacts.Multus }

// FRRK8s returns the directory of the controller of frr-k8s, its CustomResourceDefinitions and
// the script that reloads FRR, which no node has by itself. FRR is on every node, and not
// started.
func (l *Lab) FRRK8s() string { return l.state.Artifacts.FRRK8s }

// Conformance returns the directory of Kubernetes' tests, e2e.test; "" in a lab that was
// started without them.
func (l *Lab) Conformance() string { return l.state.Artifacts.Conformance }

// InNetwork calls do on a thread in the lab's network namespace. Processes that do
// starts or executes reach the underlay and the API server.
func (l *Lab) InNetwork(do func() error) error { return host.InNetwork(l.state.PID, do) }
