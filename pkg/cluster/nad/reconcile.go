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

// Reconciler reconciles hand-written NADs.
type Reconciler struct {
	cfg        config.Config
	cache      client.Reader // with the indexes of AddIndexes and udn.AddIndexes
	target     Target
	networkIDs *netid.Allocator
	restore    func(context.Context) error // fills networkIDs from the API, once
	log        *slog.Logger

	waiters nadusers.Waiters[Key]
	enqueue func(Key) // set before the first Reconcile

	now func() time.Time

	mu       sync.Mutex
	problems kube.ProblemEvents[Key]
	networks map[Key]string // the network of each NAD that has an id, for its release after the NAD is deleted
}

// conflictRetry is the delay after a conflict, in which the cache catches up.
const conflictRetry = 100 * time.Millisecond

// usersResync is the interval of retries while pods use a NAD. Pod events normally
// end the wait; this covers a lost one.
const usersResync = time.Minute

// NewReconciler returns a reconciler.
func NewReconciler(cfg config.Config, cache client.Reader, target Target, ids *netid.Allocator, restore func(context.Context) error, log *slog.Logger) *Reconciler {
	return &Reconciler{cfg: cfg, cache: cache, target: target, networkIDs: ids, restore: restore, log: log, now: time.Now, networks: map[Key]string{}}
}

// Reconcile reconciles one NAD.
func (r *Reconciler) Reconcile(ctx context.Context, key Key) (reconcile.Result, error) {
	if err := r.restore(ctx); err != nil {
		return reconcile.Result{}, err
	}
	in, err := r.inputs(ctx, key)
	if err != nil {
		return reconcile.Result{}, err
	}
	if in.NAD == nil {
		r.waiters.Forget(key)
		return r.cleanUp(ctx, key)
	}
	have := Have(*in.NAD)
	want := Build(in, have)
	r.mu.Lock()
	report := r.problems.Due(key, want.Problem, r.now())
	r.mu.Unlock()
	err = r.target.Apply(ctx, Diff(*in.NAD, want, have, report))
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil // the cache is stale
	}
	if err != nil {
		return reconcile.Result{}, err // the caller logs and retries
	}
	if !want.Finalizer {
		return r.cleanUp(ctx, key)
	}
	if have.Network != "" && have.Network != want.Network {
		if err := r.releaseID(ctx, key, have.Network); err != nil {
			return reconcile.Result{}, err
		}
	}
	r.recordNetwork(key, want.Network)
	switch {
	case len(in.Users) > 0:
		return reconcile.Result{RequeueAfter: usersResync}, nil
	case want.Problem != "":
		return reconcile.Result{RequeueAfter: kube.EventRepeat}, nil
	}
	return reconcile.Result{}, nil
}

// recordNetwork records the network of a NAD that has an id.
func (r *Reconciler) recordNetwork(key Key, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name != "" {
		r.networks[key] = name
	}
}

// cleanUp releases what a NAD held that is deleted or not ours any more: its claim on
// the namespace, and its network id. The id is kept while pods use a deleted NAD
// whose finalizer somebody else removed.
func (r *Reconciler) cleanUp(ctx context.Context, key Key) (reconcile.Result, error) {
	r.networkIDs.ReleaseClaims(key.holder(), func(string) bool { return false })
	r.mu.Lock()
	name := r.networks[key]
	r.problems.Due(key, "", r.now())
	r.mu.Unlock()
	if name != "" {
		r.waiters.Add(key.String(), key) // before List, so that no pod's deletion is missed
		users, err := nadusers.List(ctx, r.cache, key.String())
		if err != nil {
			return reconcile.Result{}, err
		}
		if len(users) > 0 {
			r.log.Warn("network id is kept: pods still use the deleted NetworkAttachmentDefinition", "network", name, "nad", key.String(), "pods", users)
			return reconcile.Result{RequeueAfter: usersResync}, nil
		}
	}
	r.waiters.Remove(key.String(), key)
	r.mu.Lock()
	delete(r.networks, key)
	r.mu.Unlock()
	return reconcile.Result{}, r.releaseID(ctx, key, name)
}

// releaseID releases a network's id if the NAD was the last one that has it.
func (r *Reconciler) releaseID(ctx context.Context, key Key, name string) error {
	if name == "" || network.IsUDNName(name) { // package udn allocates the ids of the latter
		return nil
	}
	others, err := r.siblings(ctx, key, name)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(others, func(o NAD) bool { return o.ID != "" && (o.Network == "" || o.Network == name) }) {
		r.networkIDs.ReleaseID(name)
	}
	for _, o := range others {
		r.enqueue(o.Key)
	}
	return nil
}

// inputs reads the inputs of Build. It allocates the network id of a valid NAD
// and, for a primary network, claims the namespace.
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
	if _, rendered := udn.OwnerOf(obj); rendered {
		return in, nil
	}
	n := nadOf(obj)
	in.NAD = &n
	r.recordNetwork(key, n.Network)
	in.Conf, err = network.ParseNetConf(n.Config)
	in.Ours = !errors.Is(err, network.ErrForeign)
	if !in.Ours || n.Deleting {
		if Have(n).Finalizer {
			r.waiters.Add(key.String(), key) // before List, as in cleanUp
			in.Users, err = nadusers.List(ctx, r.cache, key.String())
			return in, err
		}
		return in, nil
	}
	if !network.IsUDNName(n.Network) {
		in.ID = r.networkIDs.IDOf(n.Network)
	}
	if err != nil {
		in.Error = err.Error()
		return in, nil
	}
	nw, err := Check(key, in.Conf, r.cfg.Plan)
	if err != nil {
		in.Error = err.Error()
		return in, nil
	}
	return in, r.claim(ctx, &in, nw)
}

// claim validates the NAD against other objects, then allocates its id and claims
// its namespace.
func (r *Reconciler) claim(ctx context.Context, in *Inputs, nw network.Network) error {
	key, has := in.NAD.Key, in.NAD.ID != "" && in.NAD.ID == idText(in.ID)
	if has && in.NAD.Network != in.Conf.Name {
		r.waiters.Add(key.String(), key) // before List, as in cleanUp
		users, err := nadusers.List(ctx, r.cache, key.String())
		if err != nil {
			return err
		}
		if len(users) > 0 {
			in.Users = users
			in.Error = fmt.Sprintf("name changed from %q to %q, but the network is in use by the following pods: %v: restore the former name, or delete the pods", in.NAD.Network, in.Conf.Name, users)
			return nil
		}
		r.waiters.Remove(key.String(), key)
	}
	others, err := r.siblings(ctx, key, in.Conf.Name)
	if err != nil {
		return err
	}
	for _, o := range others {
		conf, err := network.ParseNetConf(o.Config)
		if err == nil && o.ID != "" && conf.Name == in.Conf.Name && !SameNetwork(conf, in.Conf) {
			in.Error = fmt.Sprintf("network %s has another configuration in NetworkAttachmentDefinition %s: make the two the same, or choose another name", in.Conf.Name, o.Key)
			return nil
		}
	}
	if !has {
		full, err := r.namespaceFull(ctx, key)
		if err != nil {
			return err
		}
		if full {
			in.Error = "the namespace has the maximum number of networks: delete one, or raise max-networks-per-namespace"
			return nil
		}
	}
	if !nw.IsPrimary() {
		r.networkIDs.ReleaseClaims(key.holder(), func(string) bool { return false })
	} else {
		labeled, err := r.hasPrimaryLabel(ctx, key.Namespace)
		if err != nil {
			return err
		}
		if !labeled {
			in.Error = "role primary needs a namespace with the label " + network.LabelPrimaryUDN + ", which can be set only when a namespace is created: recreate the namespace with the label"
			return nil
		}
		older := nadusers.WithoutPrimaryKey(key.Namespace)
		r.waiters.Add(older, key) // before List, as in cleanUp
		pods, err := nadusers.ListWithoutPrimary(ctx, r.cache, key.Namespace)
		if err != nil {
			return err
		}
		if len(pods) > 0 && !has {
			in.Error = network.OlderPods(key.Namespace, pods).Error()
			return nil
		}
		r.waiters.Remove(older, key)
	}
	// Allocate the id before claiming the namespace: if no id is free, releasing the claim
	// would enqueue all NADs that want the namespace, this one included, in a loop.
	before, allocated := in.ID, r.networkIDs.IDOf(in.Conf.Name) != 0
	in.ID, err = r.networkIDs.AllocateID(ctx, in.Conf.Name, func() { r.enqueue(key) })
	if errors.Is(err, netid.ErrFull) {
		in.Error = err.Error()
		return nil
	}
	if err != nil {
		return err
	}
	if nw.IsPrimary() {
		if holder, ok := r.networkIDs.Claim(key.Namespace, key.holder()); !ok {
			in.Error = "primary network already exist in namespace " + key.Namespace + ": " + holder + ": a namespace has one primary network, remove the other"
			if !allocated {
				r.networkIDs.CancelID(in.Conf.Name)
			}
			in.ID = before
			return nil
		}
	}
	if in.NAD.Network == "" {
		r.recordNetwork(key, in.Conf.Name) // if the NAD is deleted before its id is written, cleanUp releases the id
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

// siblings returns the other NADs that configure the network or have its id.
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

// namespaceFull tells whether a namespace has the maximum number of networks
// without the NAD in question.
func (r *Reconciler) namespaceFull(ctx context.Context, key Key) (bool, error) {
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

// hasPrimaryLabel reports whether a namespace has the label for primary networks. It fails, and is
// retried, while the cache has a NAD and not its namespace.
func (r *Reconciler) hasPrimaryLabel(ctx context.Context, namespace string) (bool, error) {
	ns := kube.Metadata("Namespace")
	if err := r.cache.Get(ctx, client.ObjectKey{Name: namespace}, ns); err != nil {
		return false, fmt.Errorf("get namespace %s: %w", namespace, err)
	}
	_, ok := ns.Labels[network.LabelPrimaryUDN]
	return ok, nil
}
