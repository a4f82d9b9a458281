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
}

// Attach returns the lab that runs in this user's run directory.
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
	if l.client, l.err = kubernetes.NewForConfig(l.config); l.err != nil {
		return l
	}
	l.dynamic, l.err = dynamic.NewForConfig(l.config)
	return l
}

// Nodes returns the cluster's nodes in order of their names.
func (l *Lab) Nodes() []*Node { return l.nodes }

// Node returns a node, or the external host, by its name; nil if there is none.
func (l *Lab) Node(name string) *Node {
	for _, n := range l.machines() {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// External returns the external host: on the underlay, no part of the cluster.
func (l *Lab) External() *Node { return l.external }

// RESTConfig reaches the API server, as its administrator, from this machine.
func (l *Lab) RESTConfig() *rest.Config { return rest.CopyConfig(l.config) }

// Client is a client made of RESTConfig.
func (l *Lab) Client() kubernetes.Interface { return l.client }

// Dual tells whether the lab has IPv6 beside IPv4.
func (l *Lab) Dual() bool { return l.state.Dual }

// LogDir holds the logs of every daemon and the consoles of the nodes.
func (l *Lab) LogDir() string { return host.LogDir(l.state.Run) }

// Down ends the lab and everything in it. The logs stay.
func (l *Lab) Down(ctx context.Context) error {
	if err := stop(ctx, l.state); err != nil {
		return err
	}
	return keepLogs(l.state.Run)
}

// Wait calls cond until it holds; detail says what it still lacks. The error at
// the end of ctx names what was waited for and the last detail. An error of
// cond ends the wait at once.
func (l *Lab) Wait(ctx context.Context, what string, cond func(context.Context) (ok bool, detail string, err error)) error {
	detail := "not looked at yet"
	for {
		ok, now, err := cond(ctx)
		if err != nil && ctx.Err() != nil && detail != "not looked at yet" {
			return fmt.Errorf("wait for %s: %w: %s", what, context.Cause(ctx), detail)
		}
		if err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		if ctx.Err() == nil || detail == "not looked at yet" {
			detail = now // and not that the last look was cut short
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %s", what, context.Cause(ctx), detail)
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// Pause stops a process of the lab (kube-apiserver, etcd, kube-scheduler,
// kube-controller-manager, or a node) without ending it; Resume lets it go on.
func (l *Lab) Pause(name string) error {
	return host.Command(l.state.Run, host.Order{Do: "pause", Name: name})
}

// Resume lets a paused process go on.
func (l *Lab) Resume(name string) error {
	return host.Command(l.state.Run, host.Order{Do: "resume", Name: name})
}

// Kill ends a process of the lab as Pause names it; the lab starts it again: of
// a node, that is a power failure.
func (l *Lab) Kill(name string) error {
	return host.Command(l.state.Run, host.Order{Do: "kill", Name: name})
}

// CollectLogs copies the logs inside the machines, those of pods included, to
// LogDir/<machine>.
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

// Kubectl returns the kubectl of the cluster's version with the environment it
// needs; it runs only where InNetwork has led.
func (l *Lab) Kubectl() (program string, env []string) {
	return filepath.Join(l.state.Artifacts.Kubernetes, "kubectl"), append(os.Environ(), "KUBECONFIG="+host.KubeconfigPath(l.state.Run),
		// Every lab has the same address: another's kinds of objects are not this one's.
		"KUBECACHEDIR="+filepath.Join(l.state.Run, "kubectl"))
}

// InNetwork calls do on a thread inside the lab's network namespace: processes
// it starts, or becomes, see the underlay and the API server.
func (l *Lab) InNetwork(do func() error) error { return host.InNetwork(l.state.PID, do) }
