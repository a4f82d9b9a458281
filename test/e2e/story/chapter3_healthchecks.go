// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/lab"
)

func healthChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "load balancers' health checks: each node says how many endpoints it has, of every network's services", Phase: phaseReach,
			Needs: needs(fixtureServices), Run: healthChecksAnswered, Group: groupNodePorts},
	}
}

// healthScript asks each ADDRESS/PORT, and prints it with the first line of the answer and the last. The
// external machine has no HTTP client.
const healthScript = `bash -s %s <<'END'
for t in "$@"; do
  if { exec 3<>"/dev/tcp/$t"; } 2>/dev/null; then
    printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3; mapfile -t lines <&3; exec 3>&-
    echo "$t ${lines[0]%%$'\r'}|${lines[-1]}"
  else
    echo "$t closed"
  fi
done
END`

// healthChecksAnswered asks each node, from the external machine and from the nodes, for the health of each
// network's service balancer, of one without endpoints, and of that one again when it is deleted.
func healthChecksAnswered(ctx context.Context, w *World) (string, error) {
	const empty = `
apiVersion: v1
kind: Service
metadata: {name: nobody, namespace: red-a}
spec: {ipFamilyPolicy: PreferDualStack, type: LoadBalancer, externalTrafficPolicy: Local, selector: {role: nobody}, ports: [{port: 80, protocol: TCP}]}
`
	if err := w.Lab.Apply(ctx, empty); err != nil {
		return "", err
	}
	defer func() { _ = w.Lab.Delete(context.WithoutCancel(ctx), empty) }()
	want := map[string]string{} // by address/port
	add := func(namespace, name string, answer func(n *lab.Node) string) error {
		s, err := w.Lab.Client().CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s.Spec.HealthCheckNodePort == 0 {
			return fmt.Errorf("service %s/%s has no health check port", namespace, name)
		}
		for _, n := range w.Lab.Nodes() {
			for _, a := range addrs(n) {
				want[fmt.Sprintf("%s/%d", a, s.Spec.HealthCheckNodePort)] = answer(n)
			}
		}
		return nil
	}
	for _, s := range storyServices {
		endpoints := map[string]int{} // by node
		for _, p := range w.endpoints(s.namespace, s.tenant) {
			endpoints[p.Node]++
		}
		if err := add(s.namespace, "balancer", func(n *lab.Node) string { return healthAnswer(endpoints[n.Name]) }); err != nil {
			return "", err
		}
	}
	if err := add("red-a", "nobody", func(*lab.Node) string { return healthAnswer(0) }); err != nil {
		return "", err
	}
	for _, n := range w.Lab.Nodes() {
		for _, a := range addrs(n) {
			want[a.String()+"/10256"] = "HTTP/1.0 200 OK|ok" // the node serves Services: kube-proxy's port
		}
	}
	var answers atomic.Int32
	ask := func() error {
		return each(w.machines(), func(from *lab.Node) error {
			err := w.healthAnswers(ctx, from, want)
			if err == nil {
				answers.Add(int32(len(want)))
			}
			return err
		})
	}
	if err := ask(); err != nil {
		return "", err
	}
	if err := add("red-a", "nobody", func(*lab.Node) string { return "closed" }); err != nil {
		return "", err
	}
	if err := w.Lab.Delete(ctx, empty); err != nil {
		return "", err
	}
	err := ask()
	return fmt.Sprintf("%d answers", answers.Load()), err
}

// healthAnswers waits until from receives the answers of health checks that it should, by address/port.
func (w *World) healthAnswers(ctx context.Context, from *lab.Node, want map[string]string) error {
	return w.Lab.Wait(ctx, "health checks from "+from.Name, func(ctx context.Context) (bool, string, error) {
		res, err := from.Run(ctx, fmt.Sprintf(healthScript, strings.Join(slices.Sorted(maps.Keys(want)), " ")))
		if err != nil {
			return false, "", err
		}
		var wrong []string
		for line := range strings.Lines(res.Stdout) {
			at, got, _ := strings.Cut(strings.TrimSpace(line), " ")
			if got != want[at] {
				wrong = append(wrong, fmt.Sprintf("%s: %s, want %s", at, got, want[at]))
			}
		}
		if n := strings.Count(res.Stdout, "\n"); n != len(want) {
			wrong = append(wrong, fmt.Sprintf("%d answers, want %d: %s", n, len(want), res.Stderr))
		}
		return len(wrong) == 0, strings.Join(wrong, "; "), nil
	})
}

// healthAnswer is what a node with so many endpoints of a service answers.
func healthAnswer(endpoints int) string {
	status := "200 OK"
	if endpoints == 0 {
		status = "503 Service Unavailable"
	}
	return fmt.Sprintf(`HTTP/1.0 %s|{"localEndpoints":%d,"serviceProxyHealthy":true}`, status, endpoints)
}
