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

// reasonAllocation is the reason of Events on pods that got no addresses.
const reasonAllocation = "ErrorAllocatingPod"

// Key is what is looked at: a pod or, for its status, an IPAMClaim.
type Key struct {
	Claim           bool
	Namespace, Name string
}

func (k Key) String() string { return network.NADKey(k.Namespace, k.Name) }

func (k Key) name() types.NamespacedName {
	return types.NamespacedName{Namespace: k.Namespace, Name: k.Name}
}

// Reconciler brings one pod's annotation, or one claim's status, to what it
// should be. It is level-driven: a key is all it is told.
type Reconciler struct {
	cache  client.Reader
	live   client.Reader // the API server itself
	lookup kube.Lookup
	target Target
	marks  idlease.HighWater
	events events.EventRecorder
	log    *slog.Logger

	hasClaims atomic.Bool // the cluster has the kind

	mu   sync.Mutex
	base int64 // the mark of networks that have none of their own
	book *book
	told map[string]string // what was said last about each pod that lacks something

	restore struct {
		sync.Mutex
		done bool
	}
}

// backstop is how often a pod is looked at that the API server has and the
// cache does not show.
const backstop = time.Minute

// portsAhead is how many tunnel ids of a network may be given before its mark is
// written again.
const portsAhead = 1024

// NewReconciler makes a reconciler. age is how old a tunnel id must be that is
// given again.
func NewReconciler(plan network.Plan, age time.Duration, cache, live client.Reader, target Target, m idlease.HighWater, now func() time.Time, recorder events.EventRecorder, log *slog.Logger) *Reconciler {
	return &Reconciler{
		cache: cache, live: live, lookup: kube.Lookup{Cache: cache, Plan: plan}, target: target, marks: m, events: recorder, log: log,
		book: newBook(age, now), told: map[string]string{},
	}
}

// Usage is how much of each network is held. It is safe for concurrent use.
func (r *Reconciler) Usage() []Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.book.usage()
}

// Reconcile brings k to what it should be.
func (r *Reconciler) Reconcile(ctx context.Context, k Key) (reconcile.Result, error) {
	if err := r.Restore(ctx); err != nil {
		return reconcile.Result{}, err
	}
	if k.Claim {
		return r.claim(ctx, k)
	}
	obj := &corev1.Pod{}
	err := r.cache.Get(ctx, k.name(), obj)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("get pod %s: %w", k, err)
	}
	found := err == nil && !ended(obj)
	if wait, err := r.unseen(ctx, k, obj, found); err != nil || wait {
		return reconcile.Result{RequeueAfter: backstop}, err
	}
	if !found || obj.Spec.HostNetwork {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.book.release(k.String())
		delete(r.told, k.String())
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, r.pod(ctx, k, obj)
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// unseen tells whether a pod that was restored from the API server is there
// although the cache does not show it yet: then what it holds is not free.
func (r *Reconciler) unseen(ctx context.Context, k Key, cached *corev1.Pod, found bool) (bool, error) {
	r.mu.Lock()
	st := r.book.pods[k.String()]
	if st == nil || st.seen || found && cached.UID == st.uid {
		if st != nil {
			st.seen = true
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

func (r *Reconciler) pod(ctx context.Context, k Key, obj *corev1.Pod) error {
	w := wishesOf(obj)
	r.mu.Lock()
	st := r.book.pod(k.String(), obj.UID)
	ours := slices.Concat(slices.Collect(maps.Keys(st.grants)), slices.Collect(maps.Keys(st.had)))
	if obj.Spec.NodeName != "" { // a pod that has no node yet uses no network
		r.book.waits.expect(k.String(), w.topics()...)
	}
	r.mu.Unlock()
	if obj.Spec.NodeName == "" {
		return nil
	}
	in, have, err := r.inputs(ctx, obj, w, ours)
	if err != nil {
		return err
	}
	claims, err := r.claimsOf(ctx, in)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.book.attachClaims(&in, claims)
	want := r.book.build(in)
	given := r.book.given(in)
	r.mu.Unlock()
	for name, mark := range given {
		kind, ahead := idlease.AllPorts, r.base+portsAhead-mark
		if ahead < 0 {
			kind, ahead = idlease.Ports(name), portsAhead
		}
		if err := r.marks.Raise(ctx, kind, mark, ahead); err != nil {
			return fmt.Errorf("note how many tunnel ids network %s has given: %w", name, err)
		}
	}
	r.report(obj, want.Problems)
	have.Claims = map[string]Status{}
	for name, c := range claims {
		have.Claims[name] = StatusOf(c)
	}
	if ops := Diff(want, have); len(ops) > 0 {
		if err := r.target.Apply(ctx, ops); err != nil {
			return err // logged and tried again by the caller
		}
		r.log.Info("pod has its addresses", "pod", k.String(), "networks", len(want.Entries))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if st := r.book.pods[k.String()]; st != nil && st.uid == obj.UID {
		st.seen = true
		for key := range want.Entries {
			if _, ok := st.grants[key]; ok {
				st.settled[key] = true
			}
		}
	}
	return nil
}

// report tells what a pod lacks, and why, when that has changed.
func (r *Reconciler) report(obj *corev1.Pod, problems []Problem) {
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
	r.mu.Lock()
	said := r.told[key]
	if text == "" {
		delete(r.told, key)
	} else {
		r.told[key] = string(obj.UID) + text
	}
	r.mu.Unlock()
	if text == "" || said == string(obj.UID)+text || obj.DeletionTimestamp != nil {
		return
	}
	r.log.Warn("pod lacks a network", "pod", key, "why", text)
	const limit = 1000 // of the API, in bytes, less what cutting costs
	if len(text) > limit {
		text = text[:limit] + "…"
	}
	r.events.Eventf(obj, nil, corev1.EventTypeWarning, reasonAllocation, "Allocate", "%s", text)
}

// claim brings an IPAMClaim's status to what it should be, or takes back what
// it held.
func (r *Reconciler) claim(ctx context.Context, k Key) (reconcile.Result, error) {
	obj, behind, err := r.claimNow(ctx, k)
	if err != nil {
		return reconcile.Result{}, err
	}
	var again reconcile.Result
	if behind {
		again.RequeueAfter = backstop
	}
	r.mu.Lock()
	if obj == nil {
		r.book.claimGone(k.String(), "")
		r.mu.Unlock()
		return again, nil
	}
	c := r.book.claim(obj)
	c.seen = c.seen || !behind
	want := c.Status()
	r.mu.Unlock()
	of := Pod{Namespace: k.Namespace}
	ops := Diff(State{Pod: of, Claims: map[string]Status{k.Name: want}}, State{Pod: of, Claims: map[string]Status{k.Name: StatusOf(obj)}})
	return again, r.target.Apply(ctx, ops)
}

// claimNow is an IPAMClaim, nil where there is none. behind tells that the
// cache does not have yet what the API server had when this process became the
// leader: then the API server is asked.
func (r *Reconciler) claimNow(ctx context.Context, k Key) (obj *ipamclaimv1.IPAMClaim, behind bool, err error) {
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
	uid, known := r.book.claimUIDs[k.String()]
	c := r.book.claims[uid]
	behind = known && c != nil && !c.seen && (obj == nil || obj.UID != uid)
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
