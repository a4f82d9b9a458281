// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"bulkhead/pkg/cluster/endpointmirror"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

func addEndpointMirror(ctx context.Context, mgr manager.Manager, check *transportCheck, cfg config.Config, log *slog.Logger) error {
	if err := endpointmirror.AddIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	target := &endpointmirror.Kube{Cache: mgr.GetCache(), Client: mgr.GetClient(), Now: time.Now, Log: log}
	r := endpointmirror.NewReconciler(mgr.GetCache(), cfg.Plan, target, log)
	c, err := newController(mgr, check, "endpointmirror", cfg.Workers, r, func(s endpointmirror.Source) []any {
		return []any{"endpointslice", s.String()}
	})
	if err != nil {
		return err
	}
	return r.Watch(c, mgr.GetCache())
}

// Labels and annotations of EndpointSlices that the endpoint mirror reads.
var (
	sliceLabels      = []string{discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy, network.LabelMirrorService}
	sliceAnnotations = []string{network.AnnotationSource, network.AnnotationMirrorOn}
)

// trimSlice removes the fields of an EndpointSlice that the endpoint mirror does not
// read. The cache holds the slices of the whole cluster, so endpoints share equal
// values in memory.
func trimSlice(in any) (any, error) {
	s, ok := in.(*discoveryv1.EndpointSlice)
	if !ok {
		return in, nil
	}
	small := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion, DeletionTimestamp: s.DeletionTimestamp,
			Labels: pick(s.Labels, sliceLabels), Annotations: pick(s.Annotations, sliceAnnotations),
		},
		AddressType: s.AddressType, Endpoints: s.Endpoints, Ports: s.Ports,
	}
	if ref := metav1.GetControllerOf(s); ref != nil {
		small.OwnerReferences = []metav1.OwnerReference{{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: ref.UID, Controller: ref.Controller}}
	}
	nodes := map[string]*string{}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.DeprecatedTopology = nil // never set by this version of the API
		for _, c := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
			*c = shared(*c)
		}
		for _, p := range []**string{&e.NodeName, &e.Zone} {
			if *p != nil {
				if nodes[**p] == nil {
					nodes[**p] = *p
				}
				*p = nodes[**p]
			}
		}
		if t := e.TargetRef; t != nil {
			e.TargetRef = &corev1.ObjectReference{Kind: t.Kind, Namespace: t.Namespace, Name: t.Name, UID: t.UID}
			if t.Namespace == s.Namespace {
				e.TargetRef.Namespace = s.Namespace
			}
			if t.Kind == "Pod" {
				e.TargetRef.Kind = "Pod"
			}
		}
	}
	return small, nil
}

var sharedTrue, sharedFalse = true, false

func shared(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return &sharedTrue
	}
	return &sharedFalse
}

func pick(all map[string]string, keys []string) map[string]string {
	var out map[string]string
	for _, k := range keys {
		if v, ok := all[k]; ok {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = v
		}
	}
	return out
}
