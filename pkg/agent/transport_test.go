// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	nadfake "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned/fake"
	nadinformers "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"bulkhead/pkg/network"
)

// An agent with another transport of the cluster default network than the node was
// installed with configures nothing, sets the Node's condition and ends: at its start, and
// when the id comes later.
func TestTransport(t *testing.T) {
	annotated := func(transport string) map[string]string {
		return map[string]string{network.AnnotationNodeID: "3", network.AnnotationDefaultTransport: transport}
	}
	for _, tt := range []struct {
		name         string
		first, later map[string]string // annotations of the Node
		refused      bool
	}{
		{"restart", annotated(network.TransportNoOverlay), nil, true},
		{"first id", nil, annotated(network.TransportNoOverlay), true},
		{"as installed", annotated(network.TransportGeneve), nil, false},
		{"changed while it runs", annotated(network.TransportGeneve), annotated(network.TransportNoOverlay), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("KUBE_FEATURE_WatchListClient", "false") // the fakes do not support it
			synctest.Test(t, func(t *testing.T) {
				f := newFakeNode(t)
				name := f.agent.config.Kubernetes.NodeName
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: tt.first}}
				clients := fake.NewClientset(node)
				core := informers.NewSharedInformerFactory(clients, 0).Core().V1()
				list := &Informers{
					nads:       nadinformers.NewSharedInformerFactory(nadfake.NewSimpleClientset(), 0).K8sCniCncfIo().V1().NetworkAttachmentDefinitions().Informer(),
					namespaces: core.Namespaces().Informer(), // none exists
					node:       core.Nodes().Informer(), pods: core.Pods().Informer(), services: core.Services().Informer(),
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- f.agent.Watch(ctx, list, func() {}) }()
				if tt.later != nil {
					eventually(t, "synced", f.agent.queue.synced.Load)
					node = node.DeepCopy()
					node.Annotations = tt.later
					if _, err := clients.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				if !tt.refused {
					eventually(t, "the id", func() bool { return f.agent.cache.NodeID() == 3 })
					if tt.later != nil {
						eventually(t, "the changed annotation", func() bool {
							return f.agent.cache.Annotations()[network.AnnotationDefaultTransport] == network.TransportNoOverlay
						})
					}
					cancel()
				}
				err := <-done
				cancel()
				if errors.Is(err, network.ErrTransport) != tt.refused {
					t.Errorf("the agent ended with %v", err)
				}
				if got := f.conditionNow().Reason == "TransportChanged"; got != tt.refused {
					t.Errorf("condition %+v", f.conditionNow())
				}
				if tt.refused && f.agent.cache.NodeID() != 0 {
					t.Error("the agent knows its id")
				}
			})
		})
	}
}
