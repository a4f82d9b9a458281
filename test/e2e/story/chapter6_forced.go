// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/lab"
)

// forcedDeletionConfines deletes a host-network pod of red with no grace period. It is gone from the
// API before kubelet has stopped its processes: here kubelet itself is stopped meanwhile. They reach red's pods
// and not the cluster default network's, as before.
func forcedDeletionConfines(ctx context.Context, w *World) (_ string, err error) {
	node := w.Lab.Nodes()[0]
	p, manifest := hostNetworkPod("red-a", "red-left", node.Name, "red", "")
	if err := w.Lab.Apply(ctx, manifest); err != nil {
		return "", err
	}
	pods := w.Lab.Client().CoreV1().Pods(p.Namespace)
	none := int64(0)
	remove := func(ctx context.Context) error {
		err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &none})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if err := w.ready(ctx, p); err != nil {
		return "", errors.Join(err, remove(context.WithoutCancel(ctx)))
	}
	obj, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	left := leftPod{node: node, cgroups: fmt.Sprintf("find /sys/fs/cgroup -path '*pod%s/*/cgroup.procs'", obj.UID)}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, node.Script(ctx, "kill -CONT $(pidof kubelet)"), remove(ctx), left.end(ctx), w.nodeReady(ctx, node))
	}()

	own, others := map[string]string{}, map[string]string{} // names of the servers, by target
	sibling := w.tenant("red")[0]
	for _, to := range w.tenant("red") {
		for _, t := range targets(to.Primary...) {
			own[t] = to.Namespace + "/" + to.Name
		}
	}
	for _, to := range w.tenant("") {
		for _, t := range targets(to.Default...) {
			others[t] = to.Namespace + "/" + to.Name
		}
	}
	if _, err := reach(w.fromNode(ctx, node), others); err != nil {
		return "", fmt.Errorf("a process of the node to pods of the default network: %w", err)
	}
	tried := 0
	for _, when := range []string{"before the deletion", "after the deletion", "after the agent's next resync"} {
		switch when {
		case "after the deletion":
			if err := node.Script(ctx, "kill -STOP $(pidof kubelet)"); err != nil {
				return "", fmt.Errorf("stop kubelet: %w", err)
			}
			if err := remove(ctx); err != nil {
				return "", err
			}
			if err := w.podsGone(ctx, p.Namespace, "metadata.name="+p.Name); err != nil {
				return "", err
			}
			if err := w.forgotten(ctx, node, p); err != nil {
				return "", err
			}
		case "after the agent's next resync":
			if err := w.resynced(ctx, node); err != nil {
				return "", err
			}
		}
		ask := func(list []string) ([]probe, error) {
			return w.inTurn(list, func(few []string) ([]probe, error) { return left.check(ctx, probeTime, few) })
		}
		if _, err := reach(ask, own); err != nil {
			return "", fmt.Errorf("a process of the pod %s: %w", when, err)
		}
		got, err := w.attempts(func(timeout time.Duration, list []string) ([]probe, error) { return left.check(ctx, timeout, list) }, slices.Sorted(maps.Keys(others)), serversOf(sibling, sibling.Primary))
		if err == nil {
			err = reachedAny("a process of the pod "+when, got)
		}
		if err != nil {
			return "", err
		}
		tried += len(got)
	}
	return fmt.Sprintf("%d denied attempts", tried), nil
}

// agentState is what these checks read of the agent's state.
type agentState struct {
	Networks []struct{ LastRun time.Time }
	HostPods []struct{ Pod string }
}

func readAgent(ctx context.Context, node *lab.Node) (agentState, error) {
	var s agentState
	err := nodeJSON(ctx, node, toolsDir+"/bulkheadctl status -o json", &s)
	if err == nil && len(s.Networks) == 0 {
		err = fmt.Errorf("the agent on %s has no networks", node.Name)
	}
	return s, err
}

// forgotten waits until the node's agent does not list a host-network pod.
func (w *World) forgotten(ctx context.Context, node *lab.Node, p *pod) error {
	return w.Lab.Wait(ctx, fmt.Sprintf("the agent on %s to forget pod %s", node.Name, p.Name), func(ctx context.Context) (bool, string, error) {
		s, err := readAgent(ctx, node)
		for _, h := range s.HostPods {
			if h.Pod == p.Namespace+"/"+p.Name {
				return false, "it is listed", err
			}
		}
		return err == nil, "", err
	})
}

// resynced waits until the node's agent has reconciled all networks again.
func (w *World) resynced(ctx context.Context, node *lab.Node) error {
	since, err := readAgent(ctx, node)
	if err != nil {
		return err
	}
	var last time.Time
	for _, n := range since.Networks {
		if n.LastRun.After(last) {
			last = n.LastRun
		}
	}
	return w.Lab.Wait(ctx, "a resync of the agent on "+node.Name, func(ctx context.Context) (bool, string, error) {
		s, err := readAgent(ctx, node)
		for _, n := range s.Networks {
			if !n.LastRun.IsZero() && !n.LastRun.After(last) {
				return false, fmt.Sprintf("a network was reconciled at %s", n.LastRun), err
			}
		}
		return err == nil, "", err
	})
}

// nodeReady waits for a node to be Ready.
func (w *World) nodeReady(ctx context.Context, n *lab.Node) error {
	return w.Lab.Wait(ctx, n.Name+" to be Ready", func(ctx context.Context) (bool, string, error) {
		obj, err := w.Lab.Client().CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		at := slices.IndexFunc(obj.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		if at < 0 {
			return false, "no such condition", nil
		}
		return obj.Status.Conditions[at].Status == corev1.ConditionTrue, obj.Status.Conditions[at].Message, nil
	})
}

// leftPod is a pod whose processes may run without it.
type leftPod struct {
	node    *lab.Node
	cgroups string // command that prints the cgroup.procs files of its containers
}

// check probes targets from a new process of the pod.
func (l leftPod) check(ctx context.Context, timeout time.Duration, list []string) ([]probe, error) {
	script := fmt.Sprintf("at=$(%s | head -n 1) && [ -n \"$at\" ] && echo $$ > $at && exec %s/netprobe check --timeout %s %s", l.cgroups, toolsDir, timeout, strings.Join(list, " "))
	res, err := l.node.Run(ctx, script)
	if err != nil {
		return nil, err
	}
	if res.ExitCode != 0 {
		return nil, fmt.Errorf("netprobe in the pod's cgroup on %s: exit %d: %s", l.node.Name, res.ExitCode, res.Stderr)
	}
	return parseProbes(res.Stdout, len(list))
}

// end kills the pod's processes and waits until kubelet has removed its cgroup.
func (l leftPod) end(ctx context.Context) error {
	for deadline := time.Now().Add(patience); ; {
		res, err := l.node.Run(ctx, fmt.Sprintf("for f in $(%s); do for p in $(cat $f); do kill -9 $p; done; done; %s | wc -l", l.cgroups, l.cgroups))
		if err != nil {
			return err
		}
		if strings.TrimSpace(res.Stdout) == "0" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the pod's cgroups are still there after %s: %s %s", patience, res.Stdout, res.Stderr)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}
