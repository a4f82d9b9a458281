// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/cluster/nadusers"
	"bulkhead/pkg/cluster/netid"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// inputs reads the inputs of Build.
func (r *Reconciler) inputs(ctx context.Context, o Owner, have State) (Inputs, error) {
	in := Inputs{Owner: o, Users: map[string][]string{}, VRFs: r.advertised.of(o.Network())}
	req, err := r.request(ctx, o)
	if err != nil {
		return in, err
	}
	in.Request = req
	in.Removed = req != nil && req.Deleting && !have.Finalizer && len(have.NADs) == 0
	if req != nil && !req.Deleting {
		if err := r.network(ctx, &in, have); err != nil {
			return in, err
		}
	}
	selected := map[string]bool{}
	for _, ns := range in.Namespaces {
		selected[ns.Name] = req.admits(ns)
	}
	for ns, nad := range have.NADs {
		keep := selected[ns] && nad.Phase == Present && (req == nil || nad.OwnerUID == req.UID)
		if keep {
			r.waiters.Remove(nad.Key(), o)
			continue
		}
		// Before List, so that no pod's deletion is missed.
		r.waiters.Add(nad.Key(), o)
		users, err := nadusers.List(ctx, r.cache, nad.Key())
		if err != nil {
			return in, err
		}
		if len(users) == 0 {
			r.waiters.Remove(nad.Key(), o)
		}
		in.Users[ns] = users
	}
	return in, nil
}

// request returns o's request, nil if o does not exist.
func (r *Reconciler) request(ctx context.Context, o Owner) (*Request, error) {
	obj, _, err := r.target.owner(ctx, o)
	if err != nil || obj == nil {
		return nil, err
	}
	if c, ok := obj.(*udnv1.ClusterUserDefinedNetwork); ok {
		return FromCUDN(c), nil
	}
	return FromUDN(obj.(*udnv1.UserDefinedNetwork)), nil
}

// network reads the inputs of a request that is not being deleted: its
// configuration and namespaces. It claims the namespaces and allocates the id.
func (r *Reconciler) network(ctx context.Context, in *Inputs, have State) error {
	req := in.Request
	in.ID = r.networkIDs.IDOf(in.Owner.Network())
	conf, nw, err := req.NetConf(r.cfg.Plan)
	if err == nil && in.ID == 0 {
		// A network that exists when underlay-mtu is lowered keeps working: its nodes report what
		// they carry.
		err = r.cfg.Plan.CheckMTU(nw)
	}
	if err != nil {
		in.Invalid = err.Error()
	}
	in.Conf = conf
	names, err := r.namespaces(ctx, req)
	if err != nil {
		if !errors.Is(err, errSelector) {
			return err
		}
		// An invalid selector deletes no NAD.
		in.Invalid = err.Error()
		return nil
	}
	for _, meta := range names {
		ns, err := r.namespace(ctx, req, meta, have)
		if err != nil {
			return err
		}
		in.Namespaces = append(in.Namespaces, ns)
	}
	if in.Invalid == "" {
		if err := r.claim(ctx, in, have); err != nil {
			return err
		}
	}
	in.NoFabric = req.NoOverlay != nil && req.NoOverlay.Routing == udnv1.RoutingManaged && r.cfg.BGP.Topology == ""
	if req.Transport == udnv1.TransportOptionNoOverlay {
		if in.Advertised, err = r.advertisements(ctx, req); err != nil {
			return err
		}
	}
	if in.ID != 0 {
		if in.WithoutSubnet, err = r.nodes.withoutSubnet(ctx, r.cache, nw.HostCapacity()); err != nil {
			return err
		}
		in.Failing = r.failures.nodesOf(in.ID)
	}
	return nil
}

// namespaceLeaves reports whether a namespace is being deleted or is gone: it accepts no events.
func (r *Reconciler) namespaceLeaves(ctx context.Context, name string) (bool, error) {
	ns := kube.Metadata("Namespace")
	err := r.cache.Get(ctx, client.ObjectKey{Name: name}, ns)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return ns.DeletionTimestamp != nil, nil
}

// unknownNamespace reports whether the cache does not have the namespace of a new UserDefinedNetwork yet, or it is
// being deleted: nothing can be said of the network then. The namespace's event enqueues it.
func (in Inputs) unknownNamespace(have State) bool {
	return in.Request != nil && !in.Request.Deleting && !in.Owner.Cluster() && len(in.Namespaces) == 0 && len(have.NADs) == 0
}

// claim allocates what a network needs before its NADs are created: an id and, for
// a primary network, the claim on each namespace.
func (r *Reconciler) claim(ctx context.Context, in *Inputs, have State) error {
	admissible := func(ns *Namespace) bool {
		nad, exists := have.NADs[ns.Name]
		if exists && nad.OwnerUID != "" && nad.OwnerUID != in.Request.UID {
			return false // of a deleted owner: it goes once no pod uses it, and the claim waits until then
		}
		return in.Request.admits(*ns) && ns.Foreign == "" && ns.Primary == "" && (exists || !ns.Full && ns.WithoutPrimary == nil)
	}
	if in.ID == 0 && slices.ContainsFunc(in.Namespaces, func(ns Namespace) bool { return admissible(&ns) }) {
		var err error
		in.ID, err = r.networkIDs.AllocateID(ctx, in.Owner.Network(), func() { r.enqueue(in.Owner) })
		if errors.Is(err, netid.ErrFull) {
			in.Invalid = err.Error()
			return nil
		}
		if err != nil {
			return err
		}
		in.NewID = true
	}
	claimed := false
	for i := range in.Namespaces {
		ns := &in.Namespaces[i]
		if !admissible(ns) {
			continue
		}
		if in.Request.Primary() {
			if holder, ok := r.networkIDs.Claim(ns.Name, in.Owner.String()); !ok {
				ns.Primary = holder
				continue
			}
		}
		claimed = true
	}
	switch {
	case claimed:
	case in.NewID:
		r.networkIDs.CancelID(in.Owner.Network()) // no namespace admits the network
		in.ID, in.NewID = 0, false
	case in.ID != 0 && len(have.NADs) == 0:
		in.ID, in.Idle = 0, true
	}
	return nil
}

// noneExists reports whether the API server has none of the NADs. A request that got no answer may have created one that
// the cache lacks.
func (r *Reconciler) noneExists(ctx context.Context, nads map[string]NAD) (bool, error) {
	for _, nad := range nads {
		err := r.live.Get(ctx, client.ObjectKey{Namespace: nad.Namespace, Name: nad.Name}, &nadv1.NetworkAttachmentDefinition{})
		if err == nil {
			return false, nil
		}
		if !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("get NetworkAttachmentDefinition %s: %w", nad.Key(), err)
		}
	}
	return true, nil
}

// releaseID releases o's id, unless pods still use a NAD of o that somebody else
// deleted: no other network may get an id while pods use it.
func (r *Reconciler) releaseID(ctx context.Context, o Owner) (kept bool, err error) {
	if r.networkIDs.IDOf(o.Network()) == 0 {
		return false, nil
	}
	keys, err := nadusers.UsedKeys(ctx, r.cache, o.Namespace, o.Name)
	if err != nil {
		return false, err
	}
	for _, key := range keys {
		ns, name, _ := strings.Cut(key, "/")
		nad := &nadv1.NetworkAttachmentDefinition{}
		err := r.cache.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, nad)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("get NetworkAttachmentDefinition %s: %w", key, err)
		}
		if err == nil && nad.Annotations[network.AnnotationNetworkID] != "" {
			continue // of another network
		}
		r.log.Warn("network id is kept: a pod still uses the deleted NetworkAttachmentDefinition", "network", o.Network(), "nad", key)
		return true, nil
	}
	r.networkIDs.ReleaseID(o.Network())
	return false, nil
}

var errSelector = errors.New("namespaceSelector is invalid")

// namespaces returns the namespaces that the request selects, except those that are
// being deleted.
func (r *Reconciler) namespaces(ctx context.Context, req *Request) ([]metav1.PartialObjectMetadata, error) {
	if !req.Cluster() {
		ns := kube.Metadata("Namespace")
		err := r.cache.Get(ctx, client.ObjectKey{Name: req.Namespace}, ns)
		if apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp != nil {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("get namespace %s: %w", req.Namespace, err)
		}
		return []metav1.PartialObjectMetadata{*ns}, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(req.Selector)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSelector, err)
	}
	var out []metav1.PartialObjectMetadata
	seen := map[string]bool{}
	for _, key := range selectorKeys(req.Selector) {
		opts := []client.ListOption{client.UnsafeDisableDeepCopy}
		if key != anyLabel {
			opts = append(opts, client.MatchingFields{indexLabel: key})
		}
		l := &metav1.PartialObjectMetadataList{}
		l.SetGroupVersionKind(kube.Metadata("NamespaceList").GroupVersionKind())
		if err := r.cache.List(ctx, l, opts...); err != nil {
			return nil, fmt.Errorf("list namespaces of %s: %w", req.Owner, err)
		}
		for _, ns := range l.Items {
			if ns.DeletionTimestamp == nil && !seen[ns.Name] && selector.Matches(labelSet(ns.Labels)) {
				seen[ns.Name] = true
				out = append(out, ns)
			}
		}
	}
	slices.SortFunc(out, func(a, b metav1.PartialObjectMetadata) int { return compare(a.Name, b.Name) })
	return out, nil
}

// namespace reads the inputs of Build for one namespace.
func (r *Reconciler) namespace(ctx context.Context, req *Request, meta metav1.PartialObjectMetadata, have State) (Namespace, error) {
	o, ns := req.Owner, Namespace{Name: meta.Name}
	_, ns.Labeled = meta.Labels[network.LabelPrimaryUDN]
	var nads nadv1.NetworkAttachmentDefinitionList
	if err := r.cache.List(ctx, &nads, client.InNamespace(meta.Name), client.UnsafeDisableDeepCopy); err != nil {
		return ns, fmt.Errorf("list NetworkAttachmentDefinitions of namespace %s: %w", meta.Name, err)
	}
	networks := 0
	for i := range nads.Items {
		nad := &nads.Items[i]
		owner, marked := OwnerOf(nad)
		if marked && owner == o {
			continue
		}
		if nad.Name == o.Name {
			if _, ours := have.NADs[meta.Name]; !ours {
				ns.Foreign = "foreign NetworkAttachmentDefinition with the desired name already exist [" + network.NADKey(nad.Namespace, nad.Name) + "]"
			}
		}
		conf, err := network.ParseNetConf(nad.Spec.Config)
		if err != nil {
			continue // another CNI plugin's, or invalid: it is no network
		}
		networks++
		// A hand-written NAD without an id was rejected: it is reported if our
		// NAD exists, and does not prevent its creation.
		_, ours := have.NADs[meta.Name]
		counts := marked || ours || nad.Annotations[network.AnnotationNetworkID] != ""
		if conf.Role == string(network.RolePrimary) && req.Primary() && counts {
			ns.Primary = "NetworkAttachmentDefinition " + network.NADKey(nad.Namespace, nad.Name)
			if marked {
				ns.Primary = owner.String()
			}
		}
	}
	ns.Full = networks >= r.cfg.MaxNetworksPerNS
	if req.Primary() && ns.Labeled {
		pods, err := r.podsWithoutPrimary(ctx, o, meta.Name)
		if err != nil {
			return ns, err
		}
		ns.WithoutPrimary = network.OlderPods(meta.Name, pods)
	}
	return ns, nil
}

// podsWithoutPrimary returns the pods of a namespace that run without its primary
// network. The deletion of such a pod enqueues o.
func (r *Reconciler) podsWithoutPrimary(ctx context.Context, o Owner, namespace string) ([]string, error) {
	key := nadusers.WithoutPrimaryKey(namespace)
	pods, err := nadusers.ListWithoutPrimary(ctx, r.cache, namespace)
	if err == nil && len(pods) > 0 {
		r.waiters.Add(key, o)
		pods, err = nadusers.ListWithoutPrimary(ctx, r.cache, namespace) // the last one may be deleted before Add
	}
	if len(pods) == 0 {
		r.waiters.Remove(key, o)
	}
	return pods, err
}

// advertisements returns the RouteAdvertisements that advertise the pods of the
// request's network, sorted by name.
func (r *Reconciler) advertisements(ctx context.Context, req *Request) ([]Advertisement, error) {
	var all udnv1.RouteAdvertisementsList
	if err := r.cache.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list RouteAdvertisements: %w", err)
	}
	var out []Advertisement
	for i := range all.Items {
		ra := &all.Items[i]
		if ra.DeletionTimestamp == nil && advertises(ra, req.Labels) {
			out = append(out, Advertisement{ra.Name, accepted(ra)})
		}
	}
	slices.SortFunc(out, func(a, b Advertisement) int { return compare(a.Name, b.Name) })
	return out, nil
}

// accepted tells whether the current generation of a RouteAdvertisements is
// accepted. A condition without an observed generation counts for generation 1
// only.
func accepted(ra *udnv1.RouteAdvertisements) metav1.ConditionStatus {
	c := apimeta.FindStatusCondition(ra.Status.Conditions, udnv1.ConditionAccepted)
	if c == nil || max(c.ObservedGeneration, 1) != max(ra.Generation, 1) {
		return metav1.ConditionUnknown
	}
	return c.Status
}
