// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	udnv1 "bulkhead/api/v1"
)

// A network that is being deleted has pods yet, and keeps its routes in the managed fabric.
func TestManagedNetworks(t *testing.T) {
	now := metav1.Now()
	cudn := func(name string, routing udnv1.RoutingOption, deleted *metav1.Time) udnv1.ClusterUserDefinedNetwork {
		c := udnv1.ClusterUserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Name: name, DeletionTimestamp: deleted}}
		if routing != "" {
			c.Spec.Network.NoOverlayOptions = &udnv1.NoOverlayOptions{Routing: routing}
		}
		return c
	}
	got := managedNetworks([]udnv1.ClusterUserDefinedNetwork{cudn("overlay", "", nil), cudn("managed", udnv1.RoutingManaged, nil),
		cudn("unmanaged", udnv1.RoutingUnmanaged, nil), cudn("deleted", udnv1.RoutingManaged, &now)})
	if !slices.Equal(got, []string{"managed", "deleted"}) {
		t.Errorf("networks %q", got)
	}
}

// Until the networks' ids are restored, nothing is read or written: no network would be advertised.
func TestReconcileRestoresFirst(t *testing.T) {
	failed := errors.New("the list of NetworkAttachmentDefinitions is not complete")
	// Without a cache and a target, a call of either would panic.
	r := NewReconciler(Options{Restore: func(context.Context) error { return failed }, Advertised: func(map[string][]string) { t.Error("advertised networks are reported") }}, nil, nil, nil)
	if _, err := r.Reconcile(context.Background(), all); !errors.Is(err, failed) {
		t.Errorf("error %v, want %v", err, failed)
	}
}
