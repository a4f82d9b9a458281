// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/lab"
)

// forcedDeletionConfines deletes a host-network pod of red with no grace period. It is gone from the
// API, but kubelet leaves its processes the grace period that the pod's author chose. They reach red's
// pods and not the cluster default network's, as before.
func forcedDeletionConfines(ctx context.Context, w *World) (_ string, err error) {
	const grace = 3600
	node := w.Lab.Nodes()[0]
	p, manifest := hostNetworkPod("red-a", "red-left", node.Name, "red", "")
	manifest = strings.Replace(manifest, "terminationGracePeriodSeconds: 0", fmt.Sprintf("terminationGracePeriodSeconds: %d", grace), 1)
	if err := w.Lab.Apply(ctx, manifest); err != nil {
		return "", err
	}
	pods := w.Lab.Client().CoreV1().Pods(p.Namespace)
	none := int64(0)
	remove := func(ctx context.Context) error {
		return pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &none})
	}
	if err := w.ready(ctx, p); err != nil {
		return "", errors.Join(err, remove(context.WithoutCancel(ctx)))
	}
	obj, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	left := leftPod{node: node, cgroups: fmt.Sprintf("find /sys/fs/cgroup -path '*pod%s/*' -name cgroup.procs", obj.UID)}
	defer func() { err = errors.Join(err, left.end(context.WithoutCancel(ctx))) }()

	want := map[string]bool{}
	for _, to := range w.tenant("red") {
		for _, t := range targets(to.Primary...) {
			want[t] = true
		}
	}
	var denied []string
	for _, to := range w.tenant("") {
		denied = append(denied, targets(to.Default...)...)
	}
	control, err := nodeProbe(ctx, node, probeTime, denied...)
	if err == nil {
		err = allReached("a process of the node", control)
	}
	if err != nil {
		return "", err
	}
	attempts := 0
	for _, when := range []string{"before the deletion", "after it", "and later"} {
		if when == "after it" {
			if err := remove(ctx); err != nil {
				return "", err
			}
			if err := w.podsGone(ctx, p.Namespace, "metadata.name="+p.Name); err != nil {
				return "", err
			}
		}
		var own []string
		for t := range want {
			own = append(own, t)
		}
		got, err := left.check(ctx, probeTime, own)
		if err == nil {
			err = allReached("a process of the pod, "+when, got)
		}
		if err != nil {
			return "", err
		}
		if got, err = left.check(ctx, 3*time.Second, denied); err == nil {
			err = reachedAny("a process of the pod, "+when+",", got)
		}
		if err != nil {
			return "", err
		}
		attempts += len(got)
	}
	return fmt.Sprintf("%d denied attempts", attempts), nil
}

// allReached returns an error if a probe failed.
func allReached(from string, got []probe) error {
	for _, g := range got {
		if !g.OK {
			return fmt.Errorf("%s does not reach %s: %s", from, g.Target, g.Detail)
		}
	}
	return nil
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
