// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/adversary/attack"
	"bulkhead/test/lab"
)

const (
	kubeletPort = 10250 // kubelet listens there on every node
	etcdPort    = 2379  // a server on the node, which the check starts and stops
	freePort    = 6443  // no server on this node
)

// greenBalancer leads to green-1. Each node answers health checks of it at a port of its own.
const greenBalancer = `
apiVersion: v1
kind: Service
metadata: {name: balancer, namespace: green}
spec: {ipFamilyPolicy: PreferDualStack, type: LoadBalancer, externalTrafficPolicy: Local, selector: {pod: green-1}, ports: [{port: 80, targetPort: 8080}]}
`

// listener is a host-network pod of amber whose probes name ports of the node's servers.
func (a *attackSetup) listener() (*pod, string) {
	p := &pod{Namespace: "amber", Name: "amber-listener", Node: a.near.Name, Tenant: "amber", HostNetwork: true}
	manifest := fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  nodeName: %s
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  volumes: [{name: tools, hostPath: {path: %s}}]
  containers:`, p.Name, p.Namespace, p.Node, toolsDir)
	for i, port := range []int{kubeletPort, etcdPort} {
		manifest += fmt.Sprintf(`
  - name: c%d
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    volumeMounts: [{name: tools, mountPath: /tools, readOnly: true}]
    command: [/bin/sleep, "100000"]
    readinessProbe: {tcpSocket: {port: %d, host: 127.0.0.1}, periodSeconds: 1, timeoutSeconds: 5}
`, i, port)
	}
	return p, manifest
}

// ordinary checks that an ordinary server in a tenant's host-network pod is reached
// by kubelet, the pod's other containers and the tenant's pods.
func (a *attackSetup) ordinary(ctx context.Context) (string, error) {
	host := a.pods["green-host"]
	obj, err := a.w.Lab.Client().CoreV1().Pods(host.Namespace).Get(ctx, host.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, s := range obj.Status.ContainerStatuses {
		// Ready: the HTTP probe passes; Started: gRPC; no restart: TCP.
		if !s.Ready || s.Started == nil || !*s.Started || s.RestartCount > 0 {
			return "", fmt.Errorf("container %s of %s is ready %t, started %v, restarted %d times%s", s.Name, host.Name, s.Ready, s.Started, s.RestartCount, a.w.podEvents(ctx, host))
		}
	}
	res, err := a.near.Run(ctx, fmt.Sprintf("ss -HlnM 'sport = :%d'", serverPort))
	if err != nil {
		return "", err
	}
	if !strings.Contains(res.Stdout, fmt.Sprint(serverPort)) {
		return "", fmt.Errorf("the server does not listen with MPTCP, as Go's do by default: %q %s", res.Stdout, res.Stderr)
	}
	n := 0
	try := func(from *pod, container string, to []netip.Addr) error {
		want := map[string]string{}
		for _, kind := range []string{"tcp", "udp"} {
			for _, t := range addrTargets(kind, to, serverPort) {
				want[t] = host.Name
			}
		}
		n += len(want)
		if _, err := a.w.reach(ctx, from, container, want); err != nil {
			return fmt.Errorf("%s %s: %w", from.Name, container, err)
		}
		return nil
	}
	local := a.localAddrs()
	err = errors.Join(try(host, "root", local), try(host, "nobody", local), try(host, "server", a.green.Nodes),
		try(a.pods["green-1"], "", a.green.Nodes), try(a.pods["green-2"], "", a.green.Nodes))
	return fmt.Sprintf("kubelet's HTTP, TCP and gRPC probes, %d targets", n), err
}

// localAddrs are loopback addresses and the node's, outside all networks.
func (a *attackSetup) localAddrs() []netip.Addr {
	return append(a.w.loopback(), addrs(a.near)...)
}

// capture checks a tenant's host-network pod that listens on ports of the node's
// servers and names them in its probes: only its own network reaches it.
func (a *attackSetup) capture(ctx context.Context) (string, error) {
	etcd, err := a.near.Start(ctx, fmt.Sprintf("exec %s/netprobe serve --name etcd --listen :%d", toolsDir, etcdPort))
	if err != nil {
		return "", err
	}
	defer etcd.Kill()
	err = a.w.Lab.Wait(ctx, "the node's server to listen", func(ctx context.Context) (bool, string, error) {
		got, err := nodeProbe(ctx, a.near, probeTime, fmt.Sprintf("tcp:127.0.0.1:%d", etcdPort))
		if err != nil {
			return false, "", err
		}
		return got[0].OK, got[0].Detail, nil
	})
	if err != nil {
		return "", err
	}
	if err := a.w.Lab.Apply(ctx, greenBalancer); err != nil {
		return "", err
	}
	defer func() { _ = a.w.Lab.Delete(context.WithoutCancel(ctx), greenBalancer) }()
	balancer, err := a.w.Lab.Client().CoreV1().Services("green").Get(ctx, "balancer", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	healthPort := int(balancer.Spec.HealthCheckNodePort)
	p, manifest := a.listener()
	if err := a.w.Lab.Apply(ctx, manifest); err != nil {
		return "", err
	}
	a.pods[p.Name] = p
	// Its probes reach the node's servers, as those of a pod without a network do.
	if err := a.w.ready(ctx, p); err != nil {
		return "", err
	}
	listener := actor{pod: p, container: "c0"}
	m := newRound(a.w)
	ports := []int{kubeletPort, etcdPort, freePort, healthPort}
	var listeners []attack.Listener
	// Two sockets share a UDP port of the node only if both are bound to devices.
	kinds := func(port int) []string {
		if port == etcdPort {
			return []string{"tcp"}
		}
		return []string{"tcp", "udp"}
	}
	for _, port := range ports {
		for _, kind := range kinds(port) {
			listeners = append(listeners, attack.Listener{Kind: kind, IPv6: true, At: fmt.Sprintf("[::]:%d", port)})
		}
	}
	// On a slow machine a pod may run some seconds before its sockets are bound to its network: those that share a
	// port with the node's servers cannot listen then.
	err = a.w.Lab.Wait(ctx, "the pod's server to share a port with the node's", func(ctx context.Context) (bool, string, error) {
		if err := m.listen(ctx, listener, listeners...); err != nil {
			return false, "", err
		}
		res, err := a.near.Run(ctx, fmt.Sprintf("ss -Hltn 'sport = :%d'", etcdPort))
		if err == nil && strings.Contains(res.Stdout, "udn-vrf") {
			return true, "", nil
		}
		_, endErr := m.end(ctx)
		return false, res.Stdout, errors.Join(err, endErr)
	})
	if err != nil {
		return "", err
	}
	err = a.w.Lab.Wait(ctx, "events to tell that ports of probes are held", func(ctx context.Context) (bool, string, error) {
		events, err := a.w.Lab.Client().CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=ProbePortHeld,involvedObject.name=" + p.Name})
		if err != nil {
			return false, "", err
		}
		logged := func(port int) bool {
			return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, fmt.Sprintf("port %d ", port)) })
		}
		return logged(kubeletPort) && logged(etcdPort), fmt.Sprintf("%d events", len(events.Items)), nil
	})
	if err != nil {
		return "", err
	}
	to := func(list []netip.Addr, ports ...int) []attack.Attempt {
		var out []attack.Attempt
		for _, x := range list {
			for _, port := range ports {
				for _, socket := range kinds(port) {
					out = append(out, attack.Attempt{Socket: socket, To: x.String(), Port: uint16(port)})
				}
			}
		}
		return out
	}
	others := []actor{a.admin(), {machine: a.near, kubelet: true}, {pod: a.pods["grey-host"], container: "root"},
		a.greenHost(), {pod: a.pods["green-1"]}, {pod: a.pods["grey-1"]}, {machine: a.far}}
	attempts := trials(others, to(append(a.localAddrs(), a.nodes[a.near.Name].addrs[a.amber.Name]...), ports...))
	// The administrator may enter a network, also by the node's address in it.
	if err := m.try(ctx, pointers(attempts)); err != nil {
		return "", err
	}
	// Load balancers learn of green's endpoint while amber's pod listens on their port.
	health := map[string]string{}
	for _, ip := range addrs(a.near) {
		health[fmt.Sprintf("%s/%d", ip, healthPort)] = healthAnswer(1)
	}
	for _, from := range []*lab.Node{a.w.Lab.External(), a.far} {
		if err := a.w.healthAnswers(ctx, from, health); err != nil {
			return "", err
		}
	}
	// A server that held a port may return: the port stays reserved for it.
	etcd.Kill()
	err = a.w.Lab.Wait(ctx, "the node's server to be gone", func(ctx context.Context) (bool, string, error) {
		res, err := a.near.Run(ctx, fmt.Sprintf("ss -Hltn 'sport = :%d' | grep -v udn-vrf | wc -l", etcdPort))
		return err == nil && strings.TrimSpace(res.Stdout) == "0", res.Stdout, err
	})
	if err != nil {
		return "", err
	}
	later := trials(others[:2], to(a.localAddrs(), etcdPort))
	if err := m.try(ctx, pointers(later)); err != nil {
		return "", err
	}
	attempts = append(attempts, later...)
	// Its own network reaches it on all these ports. These calls come last, so that
	// receiving them shows that all earlier ones have arrived or never will.
	own := trials([]actor{{pod: a.pods["amber-1"]}}, to(a.nodes[a.near.Name].addrs[a.amber.Name], ports...))
	var received map[int]bool
	for range 4 {
		if err := m.try(ctx, pointers(own)); err != nil {
			return "", err
		}
		if received, err = m.receivedSoFar(ctx, listener.String()); err != nil {
			return "", err
		}
		own = slices.DeleteFunc(own, func(t trial) bool { return received[t.attempt.ID] })
		if len(own) == 0 {
			break
		}
	}
	var errs []error
	for _, t := range own {
		errs = append(errs, fmt.Errorf("its own network's server does not receive from %s: %s (the sender's error: %q)", t.by, t.key(), m.sendErrors[t.attempt.ID]))
	}
	for _, t := range attempts {
		if received[t.attempt.ID] {
			errs = append(errs, fmt.Errorf("%s's call was captured: %s", t.by, t.key()))
		}
	}
	if _, err := m.end(ctx); err != nil {
		errs = append(errs, err)
	}
	delete(a.pods, p.Name)
	zero := int64(0)
	errs = append(errs, a.w.Lab.Client().CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	return fmt.Sprintf("%d calls, none captured", len(attempts)), errors.Join(errs...)
}
