// SPDX-License-Identifier: Apache-2.0

package nad

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"bulkhead/pkg/cluster/nadusers"
	"bulkhead/pkg/cluster/netid"
	"bulkhead/pkg/cluster/udn"
	"bulkhead/pkg/config"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Reconciler brings hand-written NADs to what they should be.
type Reconciler struct {
	cfg        config.Config
	cache      client.Reader // with the indexes of AddIndexes and udn.AddIndexes
	target     Target
	networkIDs *netid.Allocator
	restore    func(context.Context) error // fills the ledger from the API, once
	log        *slog.Logger

	waiting nadusers.Waiting[Key]
	enqueue func(Key) // set before the first Reconcile

	mu   sync.Mutex
	said map[Key]string // the last event of each
	name map[Key]string // the network of each that has an id, for when it is gone
}

// conflict is how long the cache is given to catch up with a write.
const conflict = 100 * time.Millisecond

// backstop is how often a deletion that waits for pods looks again. Events
// normally end the wait; this covers one that was lost.
const backstop = time.Minute

// NewReconciler makes a reconciler.
func NewReconciler(cfg config.Config, cache client.Reader, target Target, l *netid.Allocator, restore func(context.Context) error, log *slog.Logger) *Reconciler {
	return &Reconciler{cfg: cfg, cache: cache, target: target, networkIDs: l, restore: restore, log: log, said: map[Key]string{}, name: map[Key]string{}}
}

// Reconcile brings one NAD to what it should be.
func (r *Reconciler) Reconcile(ctx context.Context, key Key) (reconcile.Result, error) {
	if err := r.restore(ctx); err != nil {
		return reconcile.Result{}, err
	}
	in, err := r.inputs(ctx, key)
	if err != nil {
		return reconcile.Result{}, err
	}
	if in.NAD == nil {
		return r.gone(ctx, key)
	}
	have := Have(*in.NAD)
	want := Build(in, have)
	said := r.saying(key, want)
	err = r.target.Apply(ctx, Diff(*in.NAD, want, have, said))
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflict}, nil // the cache is behind
	}
	if err != nil {
		return reconcile.Result{}, err // logged and tried again by the caller
	}
	if !want.Finalizer {
		return r.gone(ctx, key)
	}
	if have.Network != "" && have.Network != want.Network {
		if err := r.release(ctx, key, have.Network); err != nil {
			return reconcile.Result{}, err
		}
	}
	r.remember(key, want.Network)
	if len(in.Users) > 0 {
		return reconcile.Result{RequeueAfter: backstop}, nil
	}
	return reconcile.Result{}, nil
}

// remember notes the network that a NAD has an id of, for when it is gone.
func (r *Reconciler) remember(key Key, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name != "" {
		r.name[key] = name
	}
}

// saying remembers what is told now, and returns what was told before.
func (r *Reconciler) saying(key Key, want State) (before string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.said[key]
	if want.Problem == "" {
		delete(r.said, key)
	} else {
		r.said[key] = want.Problem
	}
	return before
}

// gone gives back what a NAD held: its namespace, and its network's id. The
// latter stays while pods use a NAD that was taken away by force.
func (r *Reconciler) gone(ctx context.Context, key Key) (reconcile.Result, error) {
	r.networkIDs.Keep(key.holder(), func(string) bool { return false })
	r.mu.Lock()
	name := r.name[key]
	delete(r.said, key)
	r.mu.Unlock()
	if name != "" {
		r.waiting.Add(key.String(), key) // before the look, so that no pod leaves unseen
		users, err := nadusers.List(ctx, r.cache, key.String())
		if err != nil {
			return reconcile.Result{}, err
		}
		if len(users) > 0 {
			r.log.Warn("the network's id is kept: pods use a NetworkAttachmentDefinition that is gone", "network", name, "nad", key.String(), "pods", users)
			return reconcile.Result{RequeueAfter: backstop}, nil
		}
	}
	r.waiting.Done(key.String())
	r.mu.Lock()
	delete(r.name, key)
	r.mu.Unlock()
	return reconcile.Result{}, r.release(ctx, key, name)
}

// release gives a network's id back if the NAD was the last that described it.
func (r *Reconciler) release(ctx context.Context, key Key, name string) error {
	if name == "" || network.IsUDNName(name) { // the latter was never ours to give
		return nil
	}
	others, err := r.siblings(ctx, key, name)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(others, func(o NAD) bool { return o.ID != "" }) {
		r.networkIDs.ReleaseID(name)
	}
	for _, o := range others {
		r.enqueue(o.Key)
	}
	return nil
}

// inputs gathers what Build decides by, and takes what a usable NAD needs: an
// id and, for a primary network, its namespace.
func (r *Reconciler) inputs(ctx context.Context, key Key) (Inputs, error) {
	var in Inputs
	obj := &nadv1.NetworkAttachmentDefinition{}
	err := r.cache.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, obj)
	if apierrors.IsNotFound(err) {
		return in, nil
	}
	if err != nil {
		return in, fmt.Errorf("get NetworkAttachmentDefinition %s: %w", key, err)
	}
	if _, theirs := udn.OwnerOf(obj); theirs {
		return in, nil
	}
	n := nadOf(obj)
	in.NAD = &n
	r.remember(key, n.Network)
	in.Conf, err = network.ParseNetConf(n.Config)
	in.Ours = !errors.Is(err, network.ErrForeign)
	if !in.Ours || n.Deleting {
		if Have(n).Finalizer {
			r.waiting.Add(key.String(), key) // before the look, so that no pod leaves unseen
			in.Users, err = nadusers.List(ctx, r.cache, key.String())
			return in, err
		}
		return in, nil
	}
	if !network.IsUDNName(n.Network) {
		in.ID = r.networkIDs.HasID(n.Network)
	}
	if err != nil {
		in.Error = err.Error()
		return in, nil
	}
	domain, err := Check(key, in.Conf, r.cfg.Plan)
	if err != nil {
		in.Error = err.Error()
		return in, nil
	}
	return in, r.claim(ctx, &in, domain)
}

// claim is the part of validation that other objects decide.
func (r *Reconciler) claim(ctx context.Context, in *Inputs, domain network.Network) error {
	key, has := in.NAD.Key, in.NAD.ID != "" && in.NAD.ID == idText(in.ID)
	if has && in.NAD.Network != in.Conf.Name {
		r.waiting.Add(key.String(), key) // before the look, as above
		users, err := nadusers.List(ctx, r.cache, key.String())
		if err != nil {
			return err
		}
		if len(users) > 0 {
			in.Users = users
			in.Error = fmt.Sprintf("name was %q and is %q, but the network is in use by the following pods: %v: write the former name, or delete the pods", in.NAD.Network, in.Conf.Name, users)
			return nil
		}
		r.waiting.Done(key.String())
	}
	others, err := r.siblings(ctx, key, in.Conf.Name)
	if err != nil {
		return err
	}
	for _, o := range others {
		conf, err := network.ParseNetConf(o.Config)
		if err == nil && o.ID != "" && !SameNetwork(conf, in.Conf) {
			in.Error = fmt.Sprintf("network %s is described otherwise by NetworkAttachmentDefinition %s: make the two the same, or choose another name", in.Conf.Name, o.Key)
			return nil
		}
	}
	if !has {
		full, err := r.full(ctx, key)
		if err != nil {
			return err
		}
		if full {
			in.Error = "the namespace has as many networks as it may have: delete one, or raise max-networks-per-namespace"
			return nil
		}
	}
	if !domain.IsPrimary() {
		r.networkIDs.Keep(key.holder(), func(string) bool { return false })
	} else {
		labelled, err := r.labelled(ctx, key.Namespace)
		if err != nil {
			return err
		}
		if !labelled {
			in.Error = "role primary needs a namespace with the label " + network.LabelPrimaryUDN + ", which can be given only when a namespace is created: create the namespace anew with the label"
			return nil
		}
		older := nadusers.OlderKey(key.Namespace)
		r.waiting.Add(older, key) // before the look, as above
		pods, err := nadusers.Older(ctx, r.cache, key.Namespace)
		if err != nil {
			return err
		}
		if len(pods) > 0 && !has {
			in.Error = network.OlderPods(key.Namespace, pods).Error()
			return nil
		}
		r.waiting.Done(older)
	}
	// The id first: a namespace that was claimed and given back for want of an id
	// would wake all who want it, this NAD among them, for ever.
	before, had := in.ID, r.networkIDs.HasID(in.Conf.Name) != 0
	in.ID, err = r.networkIDs.ID(ctx, in.Conf.Name, func() { r.enqueue(key) })
	if errors.Is(err, netid.ErrFull) {
		in.Error = err.Error()
		return nil
	}
	if err != nil {
		return err
	}
	if !domain.IsPrimary() {
		return nil
	}
	if holder, ok := r.networkIDs.Claim(key.Namespace, key.holder()); !ok {
		in.Error = "primary network already exist in namespace " + key.Namespace + ": " + holder + ": a namespace has one primary network, remove the other"
		if !had {
			r.networkIDs.CancelID(in.Conf.Name)
		}
		in.ID = before
	}
	return nil
}

func nadOf(obj *nadv1.NetworkAttachmentDefinition) NAD {
	return NAD{
		Key: Key{obj.Namespace, obj.Name}, UID: obj.UID, ResourceVersion: obj.ResourceVersion, Deleting: obj.DeletionTimestamp != nil,
		Config: obj.Spec.Config, ID: obj.Annotations[network.AnnotationNetworkID], Network: obj.Annotations[network.AnnotationNetworkName],
		Finalizers: obj.Finalizers,
	}
}

// siblings are the other NADs that describe the network.
func (r *Reconciler) siblings(ctx context.Context, key Key, name string) ([]NAD, error) {
	var l nadv1.NetworkAttachmentDefinitionList
	if err := r.cache.List(ctx, &l, client.MatchingFields{indexNetwork: name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list NetworkAttachmentDefinitions of network %s: %w", name, err)
	}
	var out []NAD
	for i := range l.Items {
		if n := nadOf(&l.Items[i]); n.Key != key {
			out = append(out, n)
		}
	}
	return out, nil
}

// full tells whether a namespace has as many networks as it may have, without
// the NAD in question.
func (r *Reconciler) full(ctx context.Context, key Key) (bool, error) {
	var l nadv1.NetworkAttachmentDefinitionList
	if err := r.cache.List(ctx, &l, client.InNamespace(key.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list NetworkAttachmentDefinitions of namespace %s: %w", key.Namespace, err)
	}
	n := 0
	for i := range l.Items {
		if l.Items[i].Name != key.Name && l.Items[i].Annotations[network.AnnotationNetworkID] != "" {
			n++
		}
	}
	return n >= r.cfg.MaxNetworksPerNS, nil
}

func (r *Reconciler) labelled(ctx context.Context, namespace string) (bool, error) {
	ns := kube.Metadata("Namespace")
	err := r.cache.Get(ctx, client.ObjectKey{Name: namespace}, ns)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get namespace %s: %w", namespace, err)
	}
	_, ok := ns.Labels[network.LabelPrimaryUDN]
	return ok, nil
}
