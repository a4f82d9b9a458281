// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/lab"
)

func hostPortChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "host ports of every network's pods answer hosts, nodes and pods, and take no port of the node", Phase: phaseReach, Needs: needs(fixturePlain, fixtureTenants, fixtureLayer2),
			Run: hostPortsReached, Group: groupNodePorts},
	}
}

// hostPorts are the tenants' pods and their host port.
var hostPorts = []struct {
	tenant, namespace string
	port              int
}{{"", "plain", 8180}, {"red", "red-a", 8181}, {"violet", "violet", 8182}}

// kubeletAnswer is what kubelet's server answers to netprobe, which does not use TLS.
const kubeletAnswer = "Client sent an HTTP request to an HTTPS server."

// hostPortPod returns a pod with its manifest, in which the ports of its server are the node's,
// too. No service selects it.
func hostPortPod(tenant, namespace, name, node string, hostPort int) (*pod, string) {
	p := &pod{Namespace: namespace, Name: name, Node: node, Tenant: tenant}
	manifest := strings.ReplaceAll(p.spec(), "containerPort: "+port, fmt.Sprintf("containerPort: %s, hostPort: %d", port, hostPort))
	return p, strings.ReplaceAll(manifest, "role: server", "role: host-port")
}

// hostPortTargets are TCP, UDP and SCTP to a port of a node's addresses.
func hostPortTargets(n *lab.Node, port int) (out []string) {
	for _, a := range n.Addresses() {
		at := netip.AddrPortFrom(a, uint16(port)).String()
		out = append(out, "tcp:"+at, "udp:"+at, "sctp:"+at)
	}
	return out
}

// hostPortsReached asks the nodes' ports of three networks' pods. A pod of another tenant wants
// kubelet's port, and one the port that red's pod has: they get nothing.
func hostPortsReached(ctx context.Context, w *World) (_ string, err error) {
	clients, err := w.perNode()
	if err != nil {
		return "", err
	}
	var pods []*pod
	var manifests []string
	want := map[string]string{}
	for _, h := range hostPorts {
		for _, n := range w.Lab.Nodes() {
			p, manifest := hostPortPod(h.tenant, h.namespace, "ports-"+n.Name, n.Name, h.port)
			pods, manifests = append(pods, p), append(manifests, manifest)
			for _, t := range hostPortTargets(n, h.port) {
				want[t] = p.Namespace + "/" + p.Name
			}
		}
	}
	first := w.Lab.Nodes()[0]
	greedy, manifest := hostPortPod("blue", "blue", "greedy", first.Name, kubeletPort)
	all := append(pods, greedy)
	manifests = append(manifests, manifest)
	second, secondManifest := hostPortPod("blue", "blue", "second", first.Name, hostPorts[1].port)
	defer func() {
		end := context.WithoutCancel(ctx)
		err = errors.Join(err, each(append(all, second), func(p *pod) error { return w.deletePod(end, p) }))
		if err == nil {
			err = w.Lab.Wait(end, "host ports of deleted pods to be closed", func(ctx context.Context) (bool, string, error) {
				got, err := nodeProbe(ctx, w.Lab.External(), 3*time.Second, hostPortTargets(first, hostPorts[1].port)...)
				if err != nil {
					return false, "", err
				}
				err = reachedAny("the external machine", got)
				return err == nil, fmt.Sprint(err), nil
			})
		}
	}()
	if err := w.Lab.Apply(ctx, strings.Join(manifests, "---\n")); err != nil {
		return "", err
	}
	for _, p := range all {
		if err := w.ready(ctx, p); err != nil {
			return "", err
		}
	}
	if err := w.Lab.Apply(ctx, secondManifest); err != nil {
		return "", err
	}
	if err := w.refusedByKubelet(ctx, second); err != nil {
		return "", err
	}
	// Kubelet, not the greedy pod, has its port.
	kubelet := map[string]string{}
	for _, t := range hostPortTargets(first, kubeletPort) {
		if strings.HasPrefix(t, "tcp:") {
			kubelet[t] = kubeletAnswer
		}
	}
	answers := 0
	ask := func(name string, want map[string]string, do func([]string) ([]probe, error)) error {
		if _, err := reach(do, want); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		answers += len(want)
		return nil
	}
	for _, m := range w.machines() {
		served := maps.Clone(want)
		if m == w.Lab.External() { // its kernel has no SCTP
			maps.DeleteFunc(served, func(t, _ string) bool { return strings.HasPrefix(t, "sctp:") })
		}
		if err := ask(m.Name, served, w.fromNode(ctx, m)); err != nil {
			return "", err
		}
		if _, err := reach(w.fromNode(ctx, m), kubelet); err != nil {
			return "", fmt.Errorf("%s to kubelet: %w", m.Name, err)
		}
	}
	for _, p := range clients {
		if err := ask(p.Name, want, w.fromPod(ctx, p)); err != nil {
			return "", err
		}
	}
	if out, err := w.exec(ctx, greedy, "netprobe", "/bin/true"); err != nil {
		return "", fmt.Errorf("kubelet is not reached any more: %w: %s", err, out)
	}
	return fmt.Sprintf("%d answers of %d pods", answers, len(pods)), w.Lab.Wait(ctx, "the event that kubelet's port is taken", func(ctx context.Context) (bool, string, error) {
		events, err := w.Lab.Client().CoreV1().Events(greedy.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + greedy.Name + ",reason=HostPortNotReached"})
		return err == nil && len(events.Items) > 0, "no such event", err
	})
}

// refusedByKubelet waits until a pod has failed.
func (w *World) refusedByKubelet(ctx context.Context, p *pod) error {
	return w.Lab.Wait(ctx, fmt.Sprintf("kubelet to refuse pod %s/%s", p.Namespace, p.Name), func(ctx context.Context) (bool, string, error) {
		obj, err := w.Lab.Client().CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return obj.Status.Phase == corev1.PodFailed, string(obj.Status.Phase) + " " + obj.Status.Reason, nil
	})
}
