// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// SessionKey is the name of a Node, or "" for all that frr-k8s reports sessions of.
type SessionKey string

// SessionReconciler reconciles ConditionBGP of Nodes. It is level-driven.
type SessionReconciler struct {
	Topology  string // Fabric.Topology; without a fabric, Nodes have no condition
	Namespace string // of frr-k8s
	Cache     cache.Cache
	Client    client.Client
	Events    events.EventRecorder
	Now       func() time.Time
	Log       *slog.Logger

	controller controller.TypedController[SessionKey] // set by Watch
	mu         sync.Mutex
	watching   bool // BGPSessionStates, which exist once frr-k8s is installed
	// downSince is when sessions were found down first, by Node and peer.
	downSince map[string]map[netip.Addr]time.Time
}

// indexSessionNode indexes BGPSessionStates by Node.
const indexSessionNode = "node"

// retryWatch is how soon to look for the CustomResourceDefinition again, after the one of
// FRRConfigurations appeared.
const retryWatch = 10 * time.Second

type sessionQueue = workqueue.TypedRateLimitingInterface[SessionKey]

// Watch adds c's sources. BGPSessionStates are added once the API has them.
func (r *SessionReconciler) Watch(c controller.TypedController[SessionKey]) error {
	r.controller = c
	onNode := handler.TypedFuncs[*corev1.Node, SessionKey]{
		CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[*corev1.Node], q sessionQueue) { q.Add("") },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*corev1.Node], q sessionQueue) {
			if !sameNode(e.ObjectOld, e.ObjectNew) {
				q.Add("")
			}
			if findCondition(e.ObjectOld) != findCondition(e.ObjectNew) { // somebody may have changed it
				q.Add(SessionKey(e.ObjectNew.Name))
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*corev1.Node], q sessionQueue) {
			q.Add(SessionKey(e.Object.Name))
			q.Add("")
		},
	}
	onCRD := handler.TypedFuncs[*metav1.PartialObjectMetadata, SessionKey]{
		CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[*metav1.PartialObjectMetadata], q sessionQueue) {
			q.Add("")
		},
	}
	for _, s := range []source.TypedSource[SessionKey]{source.TypedKind(r.Cache, &corev1.Node{}, onNode), source.TypedKind(r.Cache, CRD(), onCRD)} {
		if err := c.Watch(s); err != nil {
			return fmt.Errorf("watch %T: %w", s, err)
		}
	}
	return nil
}

// watchSessions starts the watch of BGPSessionStates if frr-k8s is installed and it is not running, and ends it
// if there are too many. wait means that the API does not have them yet.
func (r *SessionReconciler) watchSessions(ctx context.Context, nodes int) (running, wait bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tooMany(r.Topology, nodes) {
		if r.watching {
			if err := r.Cache.RemoveInformer(ctx, &frrv1.BGPSessionState{}); err != nil {
				return false, false, fmt.Errorf("end the watch of BGPSessionStates: %w", err)
			}
			r.watching = false
		}
		return false, false, nil
	}
	if r.watching {
		return true, false, nil
	}
	if err := r.Cache.Get(ctx, client.ObjectKey{Name: frrCRD}, CRD()); apierrors.IsNotFound(err) {
		return false, false, nil // its event follows
	} else if err != nil {
		return false, false, fmt.Errorf("get CustomResourceDefinition %s: %w", frrCRD, err)
	}
	kind := schema.GroupKind{Group: frrv1.GroupVersion.Group, Kind: "BGPSessionState"}
	if _, err := r.Client.RESTMapper().RESTMapping(kind, frrv1.GroupVersion.Version); apimeta.IsNoMatchError(err) {
		return false, true, nil
	} else if err != nil {
		return false, false, fmt.Errorf("find the resource of BGPSessionStates: %w", err)
	}
	byNode := func(o client.Object) []string { return []string{o.(*frrv1.BGPSessionState).Status.Node} }
	if err := r.Cache.IndexField(ctx, &frrv1.BGPSessionState{}, indexSessionNode, byNode); err != nil {
		return false, false, fmt.Errorf("index BGPSessionStates by node: %w", err)
	}
	onState := handler.TypedFuncs[*frrv1.BGPSessionState, SessionKey]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*frrv1.BGPSessionState], q sessionQueue) {
			q.Add(SessionKey(e.Object.Status.Node))
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*frrv1.BGPSessionState], q sessionQueue) {
			if e.ObjectOld.Status != e.ObjectNew.Status {
				q.Add(SessionKey(e.ObjectNew.Status.Node))
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*frrv1.BGPSessionState], q sessionQueue) {
			q.Add(SessionKey(e.Object.Status.Node))
		},
	}
	if err := r.controller.Watch(source.TypedKind(r.Cache, &frrv1.BGPSessionState{}, onState)); err != nil {
		return false, false, fmt.Errorf("watch BGPSessionStates: %w", err)
	}
	r.watching = true
	return true, false, nil
}

// Reconcile reconciles the condition of one Node, or of all.
func (r *SessionReconciler) Reconcile(ctx context.Context, key SessionKey) (reconcile.Result, error) {
	var list corev1.NodeList
	if err := r.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list Nodes: %w", err)
	}
	running := false
	if r.Topology != "" {
		var wait bool
		var err error
		running, wait, err = r.watchSessions(ctx, len(list.Items))
		if wait {
			return reconcile.Result{RequeueAfter: retryWatch}, nil
		}
		if err != nil {
			return reconcile.Result{}, err
		}
	}
	var nodes []Node
	for i := range list.Items {
		nodes = append(nodes, nodeOf(&list.Items[i]))
	}
	next := time.Duration(0)
	found := false
	for i := range list.Items {
		if n := &list.Items[i]; key == "" || SessionKey(n.Name) == key {
			found = true
			wait, err := r.reconcileNode(ctx, n, nodes, running)
			if err != nil {
				return reconcile.Result{}, err
			}
			if wait > 0 && (next == 0 || wait < next) {
				next = wait
			}
		}
	}
	if !found {
		r.mu.Lock()
		delete(r.downSince, string(key))
		r.mu.Unlock()
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

// reconcileNode writes a Node's condition if it has changed, and an event when sessions are down. If sessions are
// not read, it removes the condition.
func (r *SessionReconciler) reconcileNode(ctx context.Context, n *corev1.Node, nodes []Node, read bool) (next time.Duration, err error) {
	have := findCondition(n)
	if !read {
		if have.Type == "" {
			return 0, nil
		}
		return 0, r.patchCondition(ctx, n, map[string]any{"type": ConditionBGP, "$patch": "delete"})
	}
	var states frrv1.BGPSessionStateList
	if err := r.Cache.List(ctx, &states, client.InNamespace(r.Namespace), client.MatchingFields{indexSessionNode: n.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list BGPSessionStates of node %s: %w", n.Name, err)
	}
	sessions, now := sessionsOf(n.Name, states.Items, nodes), r.Now()
	r.mu.Lock()
	if r.downSince == nil {
		r.downSince = map[string]map[netip.Addr]time.Time{}
	}
	r.downSince[n.Name] = updateDown(r.downSince[n.Name], sessions, now, have.Status == corev1.ConditionTrue)
	want, next := sessionCondition(sessions, r.downSince[n.Name], now)
	r.mu.Unlock()
	switch {
	case have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message:
		return next, nil
	case have.Type == "" && want.Status == corev1.ConditionUnknown:
		return next, nil // frr-k8s may not be on this node yet
	}
	want.LastHeartbeatTime, want.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	if have.Status == want.Status {
		want.LastTransitionTime = have.LastTransitionTime
	}
	if err := r.patchCondition(ctx, n, want); err != nil {
		return 0, err
	}
	if want.Status == corev1.ConditionTrue {
		r.Log.Warn("BGP sessions are down", "node", n.Name, "reason", want.Message)
		r.Events.Eventf(n, nil, corev1.EventTypeWarning, want.Reason, "Report", "%s", want.Message)
	} else if have.Status == corev1.ConditionTrue {
		r.Log.Info("BGP sessions are no longer down", "node", n.Name)
	}
	return next, nil
}

// patchCondition patches a Node's condition, unless the Node is gone.
func (r *SessionReconciler) patchCondition(ctx context.Context, n *corev1.Node, condition any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID}, "status": map[string]any{"conditions": []any{condition}}})
	if err != nil {
		return fmt.Errorf("render patch: %w", err)
	}
	err = r.Client.Status().Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}, client.RawPatch(types.StrategicMergePatchType, body))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("set condition %s of node %s: %w", ConditionBGP, n.Name, err)
	}
	return nil
}
