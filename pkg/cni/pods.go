// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"bulkhead/pkg/network"
)

// InformerPods is Pods over the agent's informer.
type InformerPods struct {
	store cache.Store

	mu      sync.Mutex
	waiters map[string]map[chan struct{}]struct{} // by namespace/name
}

// NewInformerPods adds an event handler to the informer of this node's pods.
func NewInformerPods(informer cache.SharedInformer) (*InformerPods, error) {
	p := &InformerPods{store: informer.GetStore(), waiters: map[string]map[chan struct{}]struct{}{}}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    p.event,
		UpdateFunc: func(_, obj any) { p.event(obj) },
		DeleteFunc: p.event,
	})
	if err != nil {
		return nil, fmt.Errorf("watch pods for CNI: %w", err)
	}
	return p, nil
}

func (p *InformerPods) event(obj any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for ch := range p.waiters[key] {
		select {
		case ch <- struct{}{}:
		default: // the waiter has not read the previous notification yet
		}
	}
}

// Get implements Pods.
func (p *InformerPods) Get(namespace, name string) (*corev1.Pod, bool) {
	obj, ok, err := p.store.GetByKey(namespace + "/" + name)
	if !ok || err != nil {
		return nil, false
	}
	pod, ok := obj.(*corev1.Pod)
	return pod, ok
}

// Changed implements Pods.
func (p *InformerPods) Changed(namespace, name string) (<-chan struct{}, func()) {
	key := namespace + "/" + name
	ch := make(chan struct{}, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiters[key] == nil {
		p.waiters[key] = map[chan struct{}]struct{}{}
	}
	p.waiters[key][ch] = struct{}{}
	return ch, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiters[key], ch)
		if len(p.waiters[key]) == 0 {
			delete(p.waiters, key)
		}
	}
}

// APIStatus writes network-status annotations to the API server.
type APIStatus struct{ Client kubernetes.Interface }

// WriteStatus implements StatusWriter with one PATCH. The API server refuses it
// if the name belongs to another pod by now, as the patch carries the uid.
func (a APIStatus) WriteStatus(ctx context.Context, namespace, pod, uid, status string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": uid, "annotations": map[string]string{network.AnnotationNetworkStatus: status},
	}})
	if err != nil {
		return fmt.Errorf("render patch of pod %s/%s: %w", namespace, pod, err)
	}
	if _, err := a.Client.CoreV1().Pods(namespace).Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patch pod %s/%s: %w", namespace, pod, err)
	}
	return nil
}
