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
		{Chapter: 9, Title: "a network in use is not deleted, reports so, and is deleted once it is free", Phase: phaseDeletion, Needs: needs(fixtureBusy), Run: deletionWaits, Timeout: 8 * time.Minute, Group: groupRemoval},
	}
}

// setUpBusy creates a network of a namespace of its own, with a pod on each node.
func setUpBusy(ctx context.Context, w *World) error {
	if err := w.Lab.Apply(ctx, w.tenantManifest("indigo", 33)); err != nil {
		return err
	}
	nodes := w.Lab.Nodes()
	return w.create(ctx, &pod{Namespace: "indigo", Name: "indigo-1", Node: nodes[0].Name, Tenant: "indigo"},
		&pod{Namespace: "indigo", Name: "indigo-2", Node: nodes[len(nodes)-1].Name, Tenant: "indigo"})
}

func deletionWaits(ctx context.Context, w *World) (string, error) {
	network := w.dynamic.Resource(udns).Namespace("indigo")
	if err := network.Delete(ctx, "net", metav1.DeleteOptions{}); err != nil {
		return "", err
	}
	message := ""
	err := w.Lab.Wait(ctx, "the network to report that it is in use", func(ctx context.Context) (bool, string, error) {
		obj, err := network.Get(ctx, "net", metav1.GetOptions{})
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
	if _, err := w.mesh(ctx, w.tenant("indigo")); err != nil {
		return "", fmt.Errorf("the network does not work any more while its deletion waits: %w", err)
	}
	if err := w.deletePods(ctx, "indigo"); err != nil {
		return "", err
	}
	err = w.Lab.Wait(ctx, "the network to be gone", func(ctx context.Context) (bool, string, error) {
		_, err := network.Get(ctx, "net", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		return false, "still there", err
	})
	return message, err
}
