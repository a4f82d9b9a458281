// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func removalChecks() []Check {
	return []Check{
		{9, "a network in use is not deleted, says so, and goes once it is free", deletionWaits, 8 * time.Minute},
		{9, "everything deleted: no link, address, rule, route, port, OVN row, NAD, pin or map row is left", nothingLeft, 10 * time.Minute},
	}
}

func deletionWaits(ctx context.Context, w *World) (string, error) {
	blue := w.dynamic.Resource(udns).Namespace("blue")
	if err := blue.Delete(ctx, "net", metav1.DeleteOptions{}); err != nil {
		return "", err
	}
	message := ""
	err := w.Lab.Wait(ctx, "blue's network to say that it is in use", func(ctx context.Context) (bool, string, error) {
		obj, err := blue.Get(ctx, "net", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		for _, c := range conditionsOf(obj) {
			if c["type"] == "NetworkCreated" && c["status"] == "False" {
				message, _ = c["message"].(string)
				return strings.Contains(message, "in use"), message, nil
			}
		}
		return false, fmt.Sprint(conditionsOf(obj)), nil
	})
	if err != nil {
		return "", err
	}
	// Still in full use.
	if _, err := w.mesh(ctx, w.tenant("blue")); err != nil {
		return "", fmt.Errorf("blue no longer works while its network's deletion waits: %w", err)
	}
	if err := w.deletePods(ctx, "blue"); err != nil {
		return "", err
	}
	err = w.Lab.Wait(ctx, "blue's network to be gone", func(ctx context.Context) (bool, string, error) {
		_, err := blue.Get(ctx, "net", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		return false, "still there", err
	})
	return message, err
}

func (w *World) deletePods(ctx context.Context, namespace string) error {
	zero := int64(0)
	pods := w.Lab.Client().CoreV1().Pods(namespace)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete the pods of %s: %w", namespace, err)
	}
	return w.Lab.Wait(ctx, "the pods of "+namespace+" to be gone", func(ctx context.Context) (bool, string, error) {
		left, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		return len(left.Items) == 0, fmt.Sprintf("%d left", len(left.Items)), nil
	})
}

func nothingLeft(ctx context.Context, w *World) (string, error) {
	if err := w.dynamic.Resource(cudns).Delete(ctx, "red", metav1.DeleteOptions{}); err != nil {
		return "", err
	}
	for _, ns := range []string{"red-a", "red-b", "blue", "plain"} {
		if err := w.Lab.Client().CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
			return "", err
		}
	}
	for _, ns := range []string{"red-a", "red-b", "blue", "plain"} {
		err := w.Lab.Wait(ctx, "namespace "+ns+" to be gone", func(ctx context.Context) (bool, string, error) {
			obj, err := w.Lab.Client().CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return true, "", nil
			}
			if err != nil {
				return false, "", err
			}
			return false, fmt.Sprint(obj.Status.Conditions), nil
		})
		if err != nil {
			return "", err
		}
	}
	left, err := w.dynamic.Resource(nads).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	if len(left.Items) > 0 {
		return "", fmt.Errorf("%d NADs are left", len(left.Items))
	}
	if err := w.asBefore(ctx, w.baseline); err != nil {
		return "", err
	}
	var figures []string
	for _, n := range w.Lab.Nodes() {
		figures = append(figures, fmt.Sprintf("%s: %d things compared", n.Name, len(w.baseline[n.Name])))
	}
	return strings.Join(figures, ", "), nil
}
