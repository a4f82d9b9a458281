// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/lab"
)

// probeTime is how long a target may take to answer before it counts as
// unreachable: answers take milliseconds, even under emulation.
const probeTime = 5 * time.Second

func clusterChecks() []Check {
	return []Check{
		{Chapter: 1, Title: "every node is Ready, with Bulkhead as its CNI", Phase: phaseObjects, Run: nodesReady},
		{Chapter: 1, Title: "default network: pods on every node reach each other (TCP, UDP, ICMP)", Phase: phaseReach, Needs: needs(fixturePlain), Run: defaultReach},
		{Chapter: 1, Title: "default network: HTTP, TCP and exec probes by the real kubelet pass", Phase: phaseProbes, Needs: needs(fixturePlain), Run: func(ctx context.Context, w *World) (string, error) {
			return w.probesPass(ctx, "")
		}},
	}
}

func nodesReady(ctx context.Context, w *World) (string, error) {
	nodes, err := w.Lab.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	if len(nodes.Items) != len(w.Lab.Nodes()) {
		return "", fmt.Errorf("%d nodes in the API, %d machines", len(nodes.Items), len(w.Lab.Nodes()))
	}
	for _, n := range nodes.Items {
		ready := false
		for _, c := range n.Status.Conditions {
			ready = ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}
		if !ready {
			return "", fmt.Errorf("node %s is not Ready", n.Name)
		}
	}
	for _, n := range w.Lab.Nodes() {
		res, err := n.Run(ctx, "ls /etc/cni/net.d && ls /opt/cni/bin")
		if err != nil {
			return "", err
		}
		if !strings.Contains(res.Stdout, "bulkhead") || !strings.Contains(res.Stdout, "ovn-k8s-cni-overlay") {
			return "", fmt.Errorf("node %s: Bulkhead's CNI is not installed: %s", n.Name, res.Stdout)
		}
	}
	var names []string
	for _, n := range nodes.Items {
		names = append(names, n.Name+" kubelet "+n.Status.NodeInfo.KubeletVersion+" kernel "+n.Status.NodeInfo.KernelVersion)
	}
	return strings.Join(names, "; "), nil
}

func setUpPlain(ctx context.Context, w *World) error {
	if err := w.Lab.Apply(ctx, plainNamespace); err != nil {
		return err
	}
	var pods []*pod
	for i, n := range w.Lab.Nodes() {
		pods = append(pods, &pod{Namespace: "plain", Name: fmt.Sprintf("plain-%d", i+1), Node: n.Name})
	}
	return w.create(ctx, pods...)
}

func defaultReach(ctx context.Context, w *World) (string, error) {
	return w.mesh(ctx, w.tenant(""))
}

// patience is how long a pod may take to reach another: an emulated node
// pauses for seconds while the machine is busy.
const patience = 4 * time.Minute

// reach probes targets until all have answered, at most for patience after the last
// that did. want is the name of the server that must answer, by target. A wrong server
// fails at once. again counts the probes that were repeated.
func reach(ask func(targets []string) ([]probe, error), want map[string]string) (again int, err error) {
	if len(want) == 0 {
		return 0, errors.New("no targets to reach")
	}
	list := slices.Sorted(maps.Keys(want))
	for deadline := time.Now().Add(patience); len(list) > 0; {
		got, err := ask(list)
		if err != nil {
			return again, err
		}
		list = nil
		if slices.ContainsFunc(got, func(g probe) bool { return g.OK }) {
			deadline = time.Now().Add(patience)
		}
		for _, g := range got {
			switch {
			case !g.OK && time.Now().After(deadline):
				return again, fmt.Errorf("%s (%q) not reached within %s: %s", g.Target, want[g.Target], patience, g.Detail)
			case !g.OK:
				list = append(list, g.Target)
			case !strings.HasPrefix(g.Target, "icmp") && g.Who != want[g.Target]:
				return again, fmt.Errorf("%s reached %q instead of %q", g.Target, g.Who, want[g.Target])
			}
		}
		again += len(list)
	}
	return again, nil
}

// reach has the pod's container probe targets until all have answered.
func (w *World) reach(ctx context.Context, from *pod, container string, want map[string]string) (again int, err error) {
	return reach(func(list []string) ([]probe, error) { return w.ask(ctx, from, container, list) }, want)
}

// ask has the pod's container check targets that should answer.
func (w *World) ask(ctx context.Context, from *pod, container string, list []string) ([]probe, error) {
	return w.inTurn(list, func(few []string) ([]probe, error) { return w.check(ctx, from, container, probeTime, few...) })
}

// fromNode probes for reach from a node itself, outside every pod.
func (w *World) fromNode(ctx context.Context, node *lab.Node) func([]string) ([]probe, error) {
	return func(list []string) ([]probe, error) {
		return w.inTurn(list, func(few []string) ([]probe, error) { return nodeProbe(ctx, node, probeTime, few...) })
	}
}

// inTurn probes targets that should answer, a few at a time, and in turn with other checks: OVS
// on an emulated node needs about 10 ms for each packet that the kernel has no flow for, and a
// new connection through several routers and conntrack zones has a dozen. What has to
// wait is sent again, and makes the others wait longer.
func (w *World) inTurn(list []string, probes func(few []string) ([]probe, error)) ([]probe, error) {
	const fewTargets = 8
	var got []probe
	for few := range slices.Chunk(list, fewTargets) {
		w.asking <- struct{}{}
		some, err := probes(few)
		<-w.asking
		if err != nil {
			return nil, err
		}
		got = append(got, some...)
	}
	return got, nil
}

// mesh checks that each of the pods reaches all others by every protocol and
// IP family, and that the right pod answers.
func (w *World) mesh(ctx context.Context, pods []*pod) (string, error) {
	var tried, again atomic.Int32
	err := each(pods, func(from *pod) error {
		want := map[string]string{} // the answering pod, by target
		for _, to := range pods {
			if to != from {
				for _, t := range targets(to.Primary...) {
					want[t] = to.Namespace + "/" + to.Name
				}
			}
		}
		tried.Add(int32(len(want)))
		n, err := w.reach(ctx, from, "", want)
		again.Add(int32(n))
		if err != nil {
			return fmt.Errorf("%s: %w", from.Name, err)
		}
		return nil
	})
	figures := fmt.Sprintf("%d probes", tried.Load())
	if n := again.Load(); n > 0 {
		figures += fmt.Sprintf(", %d of them again", n)
	}
	return figures, err
}

// probesPass checks that kubelet's probes of a tenant's pods keep passing: the pods
// were started by the exec probe and never restarted, and they stay Ready until
// kubelet has counted two more passes of each pod's HTTP and TCP probe.
func (w *World) probesPass(ctx context.Context, tenant string) (string, error) {
	const passes = 2
	pods := w.tenant(tenant)
	if len(pods) == 0 {
		return "", fmt.Errorf("no pod of tenant %q to check", tenant)
	}
	// The checks before this one load the nodes: start when all pods are Ready.
	for _, p := range pods {
		if err := w.ready(ctx, p); err != nil {
			return "", err
		}
	}
	begun := time.Now()
	before, err := w.probeSuccesses(ctx, pods)
	if err != nil {
		return "", err
	}
	for {
		for _, p := range pods {
			obj, err := w.Lab.Client().CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			s := obj.Status.ContainerStatuses[0]
			if !s.Ready || s.RestartCount > 0 || s.Started == nil || !*s.Started {
				return "", fmt.Errorf("pod %s/%s: ready %v, %d restarts%s", p.Namespace, p.Name, s.Ready, s.RestartCount, w.podEvents(ctx, p))
			}
		}
		now, err := w.probeSuccesses(ctx, pods)
		if err != nil {
			return "", err
		}
		missing := ""
		for _, p := range pods {
			for _, kind := range []string{"Readiness", "Liveness"} {
				key := probeOf{p.Namespace, p.Name, kind}
				if now[key] < before[key]+passes {
					missing = fmt.Sprintf("%s probe of pod %s/%s passed %v times, %v before", kind, p.Namespace, p.Name, now[key], before[key])
				}
			}
		}
		if missing == "" {
			return fmt.Sprintf("%d pods, %d passes of each probe in %s", len(pods), passes, time.Since(begun).Round(time.Second)), nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s: %w", missing, ctx.Err())
		case <-time.After(time.Second):
		}
	}
}

// probeOf names a pod's probe: Readiness or Liveness.
type probeOf struct{ namespace, pod, kind string }

// probeSuccesses returns how often the probes of the pods have passed, as their
// nodes' kubelets count.
func (w *World) probeSuccesses(ctx context.Context, pods []*pod) (map[probeOf]float64, error) {
	out := map[probeOf]float64{}
	read := map[string]bool{}
	for _, p := range pods {
		if read[p.Node] {
			continue
		}
		read[p.Node] = true
		text, err := w.Lab.Client().CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", p.Node, "proxy/metrics/probes").DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the probe metrics of kubelet on %s: %w", p.Node, err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("parse the probe metrics of kubelet on %s: %w", p.Node, err)
		}
		for _, m := range families["prober_probe_total"].GetMetric() {
			label := map[string]string{}
			for _, l := range m.GetLabel() {
				label[l.GetName()] = l.GetValue()
			}
			if label["result"] == "successful" {
				out[probeOf{label["namespace"], label["pod"], label["probe_type"]}] += m.GetCounter().GetValue()
			}
		}
	}
	return out, nil
}
