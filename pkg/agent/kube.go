// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"bulkhead/pkg/network"
)

// FieldManager is the field manager of the agent's writes.
const FieldManager = "bulkhead-agent"

// callTimeout is the timeout of a request to the API server.
const callTimeout = 10 * time.Second

// KubeAPI is API over the Kubernetes API. The agent writes only its Node and
// events.
type KubeAPI struct {
	client kubernetes.Interface
	node   string
	events record.EventRecorder

	mu    sync.Mutex
	last  *Condition // as written or read last
	heart time.Time  // the condition's LastHeartbeatTime
}

// conditionHeartbeat is how often the agent writes the Node's condition although it has not changed, as kubelet does.
// A condition with an older heartbeat says nothing about the node. The heartbeat also restores a condition that
// somebody edited, or that a recreated Node lacks.
const conditionHeartbeat = 5 * time.Minute

// NewKubeAPI makes a KubeAPI for the node of that name. Its event broadcaster
// ends with ctx.
func NewKubeAPI(ctx context.Context, client kubernetes.Interface, node string) *KubeAPI {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &KubeAPI{client: client, node: node,
		events: b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: FieldManager, Host: node})}
}

// Annotate implements API.
func (k *KubeAPI) Annotate(ctx context.Context, annotations map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = k.client.CoreV1().Nodes().Patch(ctx, k.node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	return err
}

// SetCondition implements API. It writes if status, reason or message changed, and after conditionHeartbeat.
func (k *KubeAPI) SetCondition(ctx context.Context, c Condition) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last != nil && equalConditions(*k.last, c) && time.Since(k.heart) < conditionHeartbeat {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now := metav1.Now()
	since := now
	if k.last == nil {
		n, err := k.client.CoreV1().Nodes().Get(ctx, k.node, metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		for _, have := range n.Status.Conditions {
			if string(have.Type) != c.Type {
				continue
			}
			before := Condition{Type: c.Type, Status: string(have.Status), Reason: have.Reason, Message: have.Message}
			// A heartbeat in the future comes from a clock that was ahead.
			if age := now.Sub(have.LastHeartbeatTime.Time); equalConditions(before, c) && age >= 0 && age < conditionHeartbeat {
				before.Since = have.LastTransitionTime.Time
				k.last, k.heart = &before, have.LastHeartbeatTime.Time
				return nil
			}
			if before.Status == c.Status {
				since = have.LastTransitionTime
			}
		}
	} else if k.last.Status == c.Status {
		since = metav1.NewTime(k.last.Since)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeConditionType(c.Type), Status: corev1.ConditionStatus(c.Status), Reason: c.Reason, Message: c.Message,
		LastHeartbeatTime: now, LastTransitionTime: since,
	}}}})
	if err != nil {
		return err
	}
	// A strategic merge patch merges the list of conditions by type.
	if _, err := k.client.CoreV1().Nodes().Patch(ctx, k.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}, "status"); err != nil {
		return fmt.Errorf("patch status of node %s: %w", k.node, err)
	}
	c.Since = since.Time
	k.last, k.heart = &c, now.Time
	return nil
}

// equalConditions compares everything but the time.
func equalConditions(a, b Condition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// Event implements API.
func (k *KubeAPI) Event(warning bool, reason, message string) {
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	// Events of Nodes have the name as UID, as kubelet's have: kubectl describe
	// node selects events by it.
	ref := &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: k.node, UID: types.UID(k.node)}
	k.events.Event(ref, kind, reason, network.Shorten(message, network.MaxEvent))
}

// PodEvent implements API.
func (k *KubeAPI) PodEvent(pod Pod, reason, message string) {
	ref := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}
	k.events.Event(ref, corev1.EventTypeWarning, reason, network.Shorten(message, network.MaxEvent))
}
