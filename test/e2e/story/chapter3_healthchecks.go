// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func healthChecks() []Check {
	return []Check{
		{Chapter: 3, Title: "load balancers' health checks: each node says how many endpoints it has, of every network's services", Phase: phaseReach,
			Needs: needs(fixtureServices), Run: healthChecksAnswered, Group: groupNodePorts},
	}
}

// healthAnswer prints the first line and the last of an HTTP answer. The external machine has no HTTP client.
const healthAnswer = `bash -c 'exec 3<>/dev/tcp/%s/%d && printf "GET / HTTP/1.0\r\n\r\n" >&3 && cat <&3' | tr -d '\r' | sed -n '1p;$p'`

// healthChecksAnswered asks each node, from the external machine and from the nodes, for the health of each
// network's service balancer, of one without endpoints, and of one that is deleted again.
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
	var answers atomic.Int32
	type question struct {
		namespace, name string
		endpoints       map[string]int // by node
	}
	questions := []question{{"red-a", "nobody", nil}}
	for _, s := range storyServices {
		q := question{s.namespace, "balancer", map[string]int{}}
		for _, p := range w.endpoints(s.namespace, s.tenant) {
			q.endpoints[p.Node]++
		}
		questions = append(questions, q)
	}
	ask := func(q question, port int32, gone bool) error {
		for _, from := range w.machines() {
			for _, n := range w.Lab.Nodes() {
				for _, a := range addrs(n) {
					want := fmt.Sprintf(`HTTP/1.0 200 OK|{"localEndpoints":%d,"serviceProxyHealthy":true}`, q.endpoints[n.Name])
					switch {
					case gone:
						want = ""
					case q.endpoints[n.Name] == 0:
						want = strings.Replace(want, "200 OK", "503 Service Unavailable", 1)
					}
					err := w.Lab.Wait(ctx, fmt.Sprintf("the health check of %s/%s from %s at %s to be %q", q.namespace, q.name, from.Name, netip.AddrPortFrom(a, uint16(port)), want), func(ctx context.Context) (bool, string, error) {
						res, err := from.Run(ctx, fmt.Sprintf(healthAnswer, a, port))
						got := strings.ReplaceAll(strings.TrimSpace(res.Stdout), "\n", "|")
						return got == want, got + res.Stderr, err
					})
					if err != nil {
						return err
					}
					answers.Add(1)
				}
			}
		}
		return nil
	}
	var nobody int32 // its port; only one question sets it
	err := each(questions, func(q question) error {
		s, err := w.Lab.Client().CoreV1().Services(q.namespace).Get(ctx, q.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s.Spec.HealthCheckNodePort == 0 {
			return fmt.Errorf("service %s/%s has no health check port", q.namespace, q.name)
		}
		if q.name == "nobody" {
			nobody = s.Spec.HealthCheckNodePort
		}
		return ask(q, s.Spec.HealthCheckNodePort, false)
	})
	if err != nil {
		return "", err
	}
	if err := w.Lab.Delete(ctx, empty); err != nil {
		return "", err
	}
	err = ask(questions[0], nobody, true)
	return fmt.Sprintf("%d answers", answers.Load()), err
}
