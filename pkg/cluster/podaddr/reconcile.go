// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"bulkhead/pkg/cluster/idlease"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// reasonAllocation is the reason of Events on pods without addresses.
const reasonAllocation = "ErrorAllocatingPod"

// Key is a key of the queue: a pod or, for its status, an IPAMClaim.
type Key struct {
	Claim           bool
	Namespace, Name string
}

func (k Key) String() string { return network.NADKey(k.Namespace, k.Name) }

func (k Key) name() types.NamespacedName {
	return types.NamespacedName{Namespace: k.Namespace, Name: k.Name}
}

// Reconciler reconciles pods' annotations and claims' statuses. It is
// level-driven.
type Reconciler struct {
	cache  client.Reader
	live   client.Reader // the API server itself
	lookup kube.Lookup
	target Target
	marks  idlease.HighWater
	events events.EventRecorder
	log    *slog.Logger

	hasClaims atomic.Bool // the CRD of IPAMClaims is installed, and they are watched
	discover  struct {
		sync.Mutex
		watch func() error // watches IPAMClaims if they can be; see WatchClaims
	}

	mu       sync.Mutex
	base     int64 // high-water mark of networks without a mark of their own
	tracker  *tracker
	reported kube.ProblemEvents[string] // by pod

	restore struct {
		sync.Mutex
		done    bool
		unnamed bool // a pod has addresses on a network whose name nothing tells, as its NAD is gone
	}
}

// cachePollInterval is the interval of reconciles of an object that the API
// server has and the cache lacks.
const cachePollInterval = time.Minute

// portsAhead is how many tunnel ids of a network are allocated between two writes
// of its high-water mark.
const portsAhead = 1024

// NewReconciler returns a reconciler. age is the minimum age of a released tunnel
// id before it is allocated again.
func NewReconciler(plan network.Plan, age time.Duration, cache, live client.Reader, target Target, m idlease.HighWater, now func() time.Time, recorder events.EventRecorder, log *slog.Logger) *Reconciler {
	return &Reconciler{
		cache: cache, live: live, lookup: kube.Lookup{Cache: cache, Plan: plan}, target: target, marks: m, events: recorder, log: log,
		tracker: newTracker(age, now),
	}
}

// Usage returns the usage of all networks. It is safe for concurrent use.
func (r *Reconciler) Usage() []Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tracker.usage()
}

// Reconcile reconciles one key.
func (r *Reconciler) Reconcile(ctx context.Context, k Key) (reconcile.Result, error) {
	if err := r.Restore(ctx); err != nil {
		return reconcile.Result{}, err
	}
	if k.Claim {
		return r.reconcileClaim(ctx, k)
	}
	obj := &corev1.Pod{}
	err := r.cache.Get(ctx, k.name(), obj)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("get pod %s: %w", k, err)
	}
	found := err == nil && !ended(obj)
	if wait, err := r.missingInCache(ctx, k, obj, found); err != nil || wait {
		return reconcile.Result{RequeueAfter: cachePollInterval}, err
	}
	if !found || obj.Spec.HostNetwork {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.tracker.releasePod(k.String())
		r.reported.Due(k.String(), "", r.tracker.now())
		return reconcile.Result{}, nil
	}
	return r.reconcilePod(ctx, k, obj)
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// missingInCache reports whether a pod that was restored from the API server
// still exists, although the cache lacks it. Its addresses are not free then.
func (r *Reconciler) missingInCache(ctx context.Context, k Key, cached *corev1.Pod, found bool) (bool, error) {
	r.mu.Lock()
	st := r.tracker.pods[k.String()]
	if st == nil || st.cached || found && cached.UID == st.uid {
		if st != nil {
			st.cached = true
		}
		r.mu.Unlock()
		return false, nil
	}
	r.mu.Unlock()
	obj := &corev1.Pod{}
	err := r.live.Get(ctx, k.name(), obj)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get pod %s: %w", k, err)
	}
	return obj.UID == st.uid && !ended(obj), nil
}

func (r *Reconciler) reconcilePod(ctx context.Context, k Key, obj *corev1.Pod) (result reconcile.Result, err error) {
	w := requestsOf(obj)
	r.mu.Lock()
	st := r.tracker.pod(k.String(), obj.UID)
	ours := slices.Concat(slices.Collect(maps.Keys(st.allocations)), slices.Collect(maps.Keys(st.previous)))
	if obj.Spec.NodeName != "" { // an unscheduled pod needs no network yet
		r.tracker.waiting.add(k.String(), w.topics()...)
	}
	r.mu.Unlock()
	if obj.Spec.NodeName == "" {
		return result, nil
	}
	in, have, err := r.inputs(ctx, obj, w, ours, nil)
	if err != nil {
		return result, err
	}
	claims, err := r.getClaims(ctx, in)
	if err != nil {
		return result, err
	}
	r.mu.Lock()
	r.tracker.attachClaims(&in, claims)
	want := r.tracker.build(in)
	marks := r.tracker.tunnelMarks(in)
	r.mu.Unlock()
	for name, mark := range marks {
		kind, ahead := idlease.AllPorts, r.base+portsAhead-mark
		if ahead < 0 {
			kind, ahead = idlease.Ports(name), portsAhead
		}
		if err := r.marks.Raise(ctx, kind, mark, ahead); err != nil {
			return result, fmt.Errorf("write the high-water mark of tunnel ids of network %s: %w", name, err)
		}
	}
	if r.report(obj, want.Problems) {
		result.RequeueAfter = kube.EventRepeat
	}
	have.Claims = map[string]Status{}
	for name, c := range claims {
		have.Claims[name] = StatusOf(c)
	}
	if ops := Diff(want, have); len(ops) > 0 {
		if err := r.target.Apply(ctx, ops); err != nil {
			return result, err // the caller logs it and retries
		}
		r.log.Info("pod addresses assigned", "pod", k.String(), "networks", len(want.Entries))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if st := r.tracker.pods[k.String()]; st != nil && st.uid == obj.UID {
		st.cached = true
		for key := range want.Entries {
			if _, ok := st.allocations[key]; ok {
				st.published[key] = true
			}
		}
	}
	return result, nil
}

// report sends an event with the problems of a pod when they have changed, and from time to time. It reports whether
// there are any.
func (r *Reconciler) report(obj *corev1.Pod, problems []Problem) bool {
	key, text := network.NADKey(obj.Namespace, obj.Name), ""
	for _, p := range problems {
		if p.Text == "" {
			continue
		}
		if text != "" {
			text += "; "
		}
		text += p.Text
	}
	problem := ""
	if text != "" {
		problem = string(obj.UID) + text
	}
	r.mu.Lock()
	due := r.reported.Due(key, problem, r.tracker.now())
	r.mu.Unlock()
	if due && obj.DeletionTimestamp == nil {
		r.log.Warn("pod lacks a network", "pod", key, "error", text)
		r.events.Eventf(obj, nil, corev1.EventTypeWarning, reasonAllocation, "Allocate", "%s", text)
	}
	return problem != ""
}

// reconcileClaim reconciles an IPAMClaim's status. If the claim was deleted, its
// addresses are released.
func (r *Reconciler) reconcileClaim(ctx context.Context, k Key) (reconcile.Result, error) {
	obj, behind, err := r.getClaim(ctx, k)
	if err != nil {
		return reconcile.Result{}, err
	}
	var result reconcile.Result
	if behind {
		result.RequeueAfter = cachePollInterval
	}
	r.mu.Lock()
	if obj == nil {
		r.tracker.claimDeleted(k.String(), "")
		r.mu.Unlock()
		return result, nil
	}
	c := r.tracker.syncClaim(obj)
	c.cached = c.cached || !behind
	want := c.Status()
	r.mu.Unlock()
	pod := Pod{Namespace: k.Namespace}
	ops := Diff(State{Pod: pod, Claims: map[string]Status{k.Name: want}}, State{Pod: pod, Claims: map[string]Status{k.Name: StatusOf(obj)}})
	return result, r.target.Apply(ctx, ops)
}

// getClaim returns an IPAMClaim, nil if it does not exist. behind tells that the
// cache lacks a claim that Restore has read; the claim is then read from the API
// server.
func (r *Reconciler) getClaim(ctx context.Context, k Key) (obj *ipamclaimv1.IPAMClaim, behind bool, err error) {
	if !r.hasClaims.Load() {
		return nil, false, nil
	}
	obj = &ipamclaimv1.IPAMClaim{}
	err = r.cache.Get(ctx, k.name(), obj)
	if client.IgnoreNotFound(err) != nil {
		return nil, false, fmt.Errorf("get IPAMClaim %s: %w", k, err)
	}
	if err != nil {
		obj = nil
	}
	r.mu.Lock()
	uid, known := r.tracker.claimUIDs[k.String()]
	c := r.tracker.claims[uid]
	behind = known && c != nil && !c.cached && (obj == nil || obj.UID != uid)
	r.mu.Unlock()
	if !behind {
		return obj, false, nil
	}
	obj = &ipamclaimv1.IPAMClaim{}
	err = r.live.Get(ctx, k.name(), obj)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("get IPAMClaim %s: %w", k, err)
	}
	return obj, true, nil
}
