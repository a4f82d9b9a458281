// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func speedChecks() []Check {
	return []Check{
		{Chapter: 8, Title: "pods of a tenant and of the default network become ready: their times (target: 2 ×)", Phase: phaseFaults, Needs: needs(fixturePlain, fixtureTenants), Run: podReadyRatio, Timeout: 10 * time.Minute},
	}
}

// podReadyRatio creates pods of both kinds on one node, in turn, and compares
// the medians from creation to Ready.
func podReadyRatio(ctx context.Context, w *World) (string, error) {
	const rounds = 3
	took := map[string][]time.Duration{}
	for i := range rounds {
		for _, namespace := range []string{"plain", "red-a"} {
			p := &pod{Namespace: namespace, Name: fmt.Sprintf("speed-%d", i), Node: w.Lab.Nodes()[0].Name}
			if namespace == "red-a" {
				p.Tenant = "red"
			}
			start := time.Now()
			if err := w.Lab.Apply(ctx, p.spec()); err != nil {
				return "", err
			}
			if err := w.ready(ctx, p); err != nil {
				return "", err
			}
			took[namespace] = append(took[namespace], time.Since(start))
			zero := int64(0)
			pods := w.Lab.Client().CoreV1().Pods(namespace)
			if err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
				return "", err
			}
		}
	}
	median := func(namespace string) time.Duration {
		slices.Sort(took[namespace])
		return took[namespace][rounds/2]
	}
	plain, red := median("plain"), median("red-a")
	figures := fmt.Sprintf("default %.1f s, tenant %.1f s, ratio %.2f", plain.Seconds(), red.Seconds(), red.Seconds()/plain.Seconds())
	switch {
	case red <= 2*plain:
		return figures + ": met", nil
	case w.JudgeSpeed:
		return "", fmt.Errorf("%s: missed, want at most 2", figures)
	}
	return figures + ": missed", nil
}
