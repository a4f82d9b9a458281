// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"fmt"
	"slices"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
)

// Fake is a Target in memory: the objects of Inputs, and ClusterUserDefinedNetworks. An
// operation fails as it would at the API server: creating what exists, changing what does
// not. Apply ends with the first failure.
type Fake struct {
	Inputs
	CUDNs []udnv1.ClusterUserDefinedNetwork
	// Fail makes an operation fail.
	Fail func(Op) error
	uids int
}

// Apply implements Target.
func (f *Fake) Apply(_ context.Context, ops []Op) error {
	for _, op := range ops {
		if f.Fail != nil {
			if err := f.Fail(op); err != nil {
				return &OpError{op, err}
			}
		}
		if err := f.do(op); err != nil {
			return &OpError{op, err}
		}
	}
	return nil
}

func (f *Fake) do(op Op) error {
	switch o := op.Object.(type) {
	case *frrv1.FRRConfiguration:
		return doFake(f, op, &f.Configurations, *withDefaults(o), func(x *frrv1.FRRConfiguration) client.Object { return x })
	case *udnv1.RouteAdvertisements:
		if op.Kind == SetStatus {
			i := slices.IndexFunc(f.Advertisements, func(x udnv1.RouteAdvertisements) bool { return x.Name == o.Name })
			if i < 0 {
				return nil // as Kube does: it was deleted meanwhile
			}
			f.Advertisements = slices.Clone(f.Advertisements)
			f.Advertisements[i].Status = *o.Status.DeepCopy()
			return nil
		}
		return doFake(f, op, &f.Advertisements, *o.DeepCopy(), func(x *udnv1.RouteAdvertisements) client.Object { return x })
	case *udnv1.ClusterUserDefinedNetwork:
		for i := range f.CUDNs {
			if c := &f.CUDNs[i]; c.Name == o.Name {
				*c = *c.DeepCopy()
				delete(c.Labels, LabelFabric)
				if op.Add {
					c.Labels = withAll(c.Labels, fabricLabels())
				}
				f.relabel(c)
			}
		}
		return nil
	}
	return fmt.Errorf("unknown object %T", op.Object)
}

// relabel keeps the networks' labels equal to those of their ClusterUserDefinedNetworks.
func (f *Fake) relabel(c *udnv1.ClusterUserDefinedNetwork) {
	for i := range f.Networks {
		if f.Networks[i].CUDN == c.Name {
			f.Networks[i].Labels = c.Labels
		}
	}
}

func doFake[T any](f *Fake, op Op, list *[]T, o T, object func(*T) client.Object) error {
	name := object(&o).GetName()
	i := slices.IndexFunc(*list, func(x T) bool { return object(&x).GetName() == name })
	switch {
	case op.Kind == Create && i < 0:
		f.uids++
		object(&o).SetUID(types.UID(fmt.Sprint("uid-", f.uids)))
		*list = append(slices.Clone(*list), o)
	case op.Kind == Create:
		return fmt.Errorf("already exists")
	case i < 0:
		return fmt.Errorf("not found")
	case op.Kind == Delete:
		*list = slices.Delete(slices.Clone(*list), i, i+1)
	case op.Kind == Update:
		*list = slices.Clone(*list)
		(*list)[i] = o
	}
	return nil
}
