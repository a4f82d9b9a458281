// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"bulkhead/test/lab/internal/host"
)

//go:embed dns.yaml
var dnsManifest string

// installDNS applies CoreDNS, a pod per node but at most two, and waits until it is available.
func (l *Lab) installDNS(ctx context.Context, report func(string, ...any)) error {
	objects, err := parseManifest(dnsManifest)
	if err != nil {
		return fmt.Errorf("dns.yaml: %w", err)
	}
	var addresses []any
	for _, a := range host.DNSAddresses(l.state.Families) {
		addresses = append(addresses, a.String())
	}
	for _, o := range objects {
		switch o.GetKind() {
		case "Service":
			err = errors.Join(unstructured.SetNestedField(o.Object, addresses[0], "spec", "clusterIP"),
				unstructured.SetNestedSlice(o.Object, addresses, "spec", "clusterIPs"))
		case "Deployment":
			err = unstructured.SetNestedField(o.Object, min(2, int64(len(l.Nodes()))), "spec", "replicas")
		}
		if err != nil {
			return fmt.Errorf("dns.yaml: %w", err)
		}
	}
	if err := l.each(objects, "apply", apply(ctx)); err != nil {
		return err
	}
	if err := l.Wait(ctx, "CoreDNS to be available", func(ctx context.Context) (bool, string, error) {
		d, err := l.Client().AppsV1().Deployments("kube-system").Get(ctx, "coredns", getOptions)
		if err != nil {
			return false, "", err
		}
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.AvailableReplicas == *d.Spec.Replicas && s.UnavailableReplicas == 0,
			fmt.Sprintf("%d of %d pods", s.AvailableReplicas, *d.Spec.Replicas), nil
	}); err != nil {
		return err
	}
	report("CoreDNS answers")
	return nil
}
