// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/cache"
)

// Informer is a shared informer with its transform and event handlers.
type Informer struct {
	cache.SharedIndexInformer
	Transform cache.TransformFunc // drops the fields that the process does not read
	OnChange  func(old, obj any)  // old is nil for a new object
	OnDelete  func(obj any)       // obj is the last known state; nil func: ignored
}

// RunInformers starts informers, which end with ctx. It returns when their
// handlers have handled the objects of the first lists, however long the API
// server is unreachable.
func RunInformers(ctx context.Context, informers ...Informer) error {
	var synced []cache.InformerSynced
	for _, i := range informers {
		if err := i.SetTransform(i.Transform); err != nil {
			return fmt.Errorf("set up an informer: %w", err)
		}
		registration, err := i.AddEventHandler(i.handler())
		if err != nil {
			return fmt.Errorf("set up an informer: %w", err)
		}
		synced = append(synced, registration.HasSynced)
	}
	for _, i := range informers {
		go i.RunWithContext(ctx)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("wait for the API server: %w", ctx.Err())
	}
	return nil
}

func (i Informer) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { i.OnChange(nil, obj) },
		UpdateFunc: i.OnChange,
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if i.OnDelete != nil {
				i.OnDelete(obj)
			}
		},
	}
}
