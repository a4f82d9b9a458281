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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func replacedChecks() []Check {
	return []Check{
		{Chapter: 4, Title: "a pod that is deleted by force and whose processes stay has no connection once another has its name", Phase: phaseHost, Needs: needs(fixtureTenants), Run: replacedPodIsCut, Group: groupHostNetwork},
	}
}

// stubbornPod is a pod whose process ignores that it should end.
func stubbornPod(p *pod) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 3600
  automountServiceAccountToken: false
  containers:
  - name: stubborn
    image: docker.io/lab/busybox:1
    imagePullPolicy: Never
    command: [/bin/sh, -c, "trap '' TERM; while :; do sleep 3600; done"]
`, p.Name, p.Namespace, p.Node)
}

// replacedPodIsCut deletes a pod of red by force, which leaves its process running, and has another pod take its name
// on the same node. The first reached its network and the node before. Then it reaches neither, though
// its interfaces were the node's neighbours, and the second reaches both.
func replacedPodIsCut(ctx context.Context, w *World) (_ string, err error) {
	const serverPort = 8097
	node := w.Lab.Nodes()[0]
	server, err := node.Start(ctx, fmt.Sprintf("exec %s/netprobe serve --name %s --listen :%d", toolsDir, node.Name, serverPort))
	if err != nil {
		return "", err
	}
	defer server.Kill()
	p := &pod{Namespace: "red-a", Name: "red-twin", Node: node.Name, Tenant: "red"}
	if err := w.Lab.Apply(ctx, stubbornPod(p)); err != nil {
		return "", err
	}
	pods := w.Lab.Client().CoreV1().Pods(p.Namespace)
	remove := func(ctx context.Context) error {
		none := int64(0)
		if err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return w.podsGone(ctx, p.Namespace, "metadata.name="+p.Name)
	}
	if err := w.ready(ctx, p); err != nil {
		return "", errors.Join(err, remove(context.WithoutCancel(ctx)))
	}
	obj, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	old := leftPod{node: node, cgroups: fmt.Sprintf("find /sys/fs/cgroup -path '*pod%s/*/cgroup.procs'", obj.UID), network: true}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, remove(ctx), old.end(ctx))
	}()

	want := map[string]string{} // names of the servers, by target
	for _, to := range w.tenant("red") {
		if to.Name == p.Name {
			continue
		}
		for _, t := range targets(to.Primary...) {
			want[t] = to.Namespace + "/" + to.Name
		}
	}
	for _, kind := range []string{"tcp", "udp"} {
		for _, t := range addrTargets(kind, addrs(node), serverPort) {
			want[t] = node.Name
		}
	}
	ask := func(list []string) ([]probe, error) {
		return w.inTurn(list, func(few []string) ([]probe, error) { return old.check(ctx, probeTime, few) })
	}
	if _, err := reach(ask, want); err != nil {
		return "", fmt.Errorf("the pod before its deletion: %w", err)
	}
	if err := remove(ctx); err != nil {
		return "", err
	}
	second := *p
	if err := w.Lab.Apply(ctx, second.spec()); err != nil {
		return "", err
	}
	if err := w.ready(ctx, &second); err != nil {
		return "", err
	}
	attempts := 0
	for _, when := range []string{"at once", "after the agent's next resync"} {
		if attempts > 0 {
			if err := w.resynced(ctx, node); err != nil {
				return "", err
			}
		}
		got, err := old.check(ctx, 3*time.Second, slices.Sorted(maps.Keys(want)))
		if err == nil {
			err = reachedAny("the first pod, "+when, got)
		}
		if err != nil {
			return "", err
		}
		attempts += len(got)
		if _, err := w.reach(ctx, &second, "", want); err != nil {
			return "", fmt.Errorf("the pod that has the name now, %s: %w", when, err)
		}
	}
	res, err := node.Run(ctx, old.inside("ip -o link"))
	if err != nil {
		return "", err
	}
	if strings.Contains(res.Stdout, "ovn-udn1") || !strings.Contains(res.Stdout, "lo:") {
		return "", fmt.Errorf("the first pod still has interfaces: %s %s", res.Stdout, res.Stderr)
	}
	return fmt.Sprintf("%d targets reached before, %d denied attempts", len(want), attempts), nil
}
