// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/network"
)

// Key is the only key of the reconciler's queue: a change of one object can change what is
// generated for any other, so all of them are built together.
type Key string

const all Key = "all"

// conflictRetry is the delay after a conflict, in which the cache catches up.
const conflictRetry = 100 * time.Millisecond

// frrCRD is the name of the CustomResourceDefinition of FRRConfigurations.
const frrCRD = "frrconfigurations.frrk8s.metallb.io"

// Options configure a Reconciler.
type Options struct {
	Fabric Fabric
	// Default is the cluster default network.
	Default network.Network
	// Restore restores the networks' ids after a restart; it succeeds once, and then does nothing.
	// Without ids, no network would be advertised.
	Restore func(context.Context) error
	// NetworkOf returns the network of a ClusterUserDefinedNetwork, with its id, which is 0
	// if it has none. ok is false if the specification is invalid and the nodes have no earlier one.
	NetworkOf func(context.Context, *udnv1.ClusterUserDefinedNetwork) (n network.Network, ok bool, err error)
	// Advertised is called with the VRFs into which each network is advertised after every
	// reconcile.
	Advertised func(map[string][]string)
}

// Reconciler reconciles RouteAdvertisements, generated FRRConfigurations and the managed
// fabric. It is level-driven.
type Reconciler struct {
	options Options
	cache   cache.Cache
	target  Target
	log     *slog.Logger

	controller controller.TypedController[Key] // set by Watch
	mu         sync.Mutex
	watching   bool // FRRConfigurations, which exist once frr-k8s is installed
	// reported are the networks that Advertised has been called with, by Reconcile alone; nil at first.
	reported map[string][]string
}

// NewReconciler returns a reconciler.
func NewReconciler(o Options, from cache.Cache, target Target, log *slog.Logger) *Reconciler {
	return &Reconciler{options: o, cache: from, target: target, log: log}
}

// Reconcile reconciles everything.
func (r *Reconciler) Reconcile(ctx context.Context, _ Key) (reconcile.Result, error) {
	if err := r.options.Restore(ctx); err != nil {
		return reconcile.Result{}, err
	}
	installed, err := r.watchConfigurations(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	in, cudns, err := r.inputs(ctx, installed)
	if err != nil {
		return reconcile.Result{}, err
	}
	ops, want := Plan(r.options.Fabric, in, cudns)
	if !installed {
		ops, want = nil, notInstalled(in.Advertisements)
	}
	// Report withdrawals before they are written: the nodes then translate the pods' addresses while routes to these
	// still exist. Report new advertisements only once they have been written.
	if r.reported != nil {
		r.report(common(want.Networks, r.reported))
	}
	err = r.target.Apply(ctx, ops)
	want = want.WithFailures(err, in)
	r.report(want.Networks)
	if err := errors.Join(err, r.target.Apply(ctx, DiffStatus(want, in.Advertisements))); err != nil {
		if isStale(err) {
			return reconcile.Result{RequeueAfter: conflictRetry}, nil
		}
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

func (r *Reconciler) report(networks map[string][]string) {
	r.reported = networks
	r.options.Advertised(networks)
}

// common returns the VRFs of networks that both have.
func common(x, y map[string][]string) map[string][]string {
	out := map[string][]string{}
	for name, vrfs := range x {
		for _, vrf := range vrfs {
			if slices.Contains(y[name], vrf) {
				out[name] = append(out[name], vrf)
			}
		}
	}
	return out
}

// notInstalled returns the state while the API has no FRRConfigurations: conditions alone.
func notInstalled(ras []udnv1.RouteAdvertisements) State {
	st := State{Accepted: map[string]metav1.Condition{}}
	for i := range ras {
		st.Accepted[ras[i].Name] = metav1.Condition{
			Type: udnv1.ConditionAccepted, Status: metav1.ConditionFalse, ObservedGeneration: ras[i].Generation,
			Reason:  udnv1.ReasonConfigurationPending,
			Message: "frr-k8s is not installed: the API has no FRRConfigurations: install frr-k8s",
		}
	}
	return st
}

// inputs reads the inputs of Build, and the ClusterUserDefinedNetworks.
func (r *Reconciler) inputs(ctx context.Context, installed bool) (Inputs, []udnv1.ClusterUserDefinedNetwork, error) {
	in := Inputs{Namespace: r.options.Fabric.Namespace}
	var ras udnv1.RouteAdvertisementsList
	var cudns udnv1.ClusterUserDefinedNetworkList
	var nodes corev1.NodeList
	err := errors.Join(r.list(ctx, &ras), r.list(ctx, &cudns), r.list(ctx, &nodes))
	if err == nil && installed {
		var configs frrv1.FRRConfigurationList
		err = r.list(ctx, &configs, client.InNamespace(in.Namespace))
		in.Configurations = configs.Items
	}
	if err != nil {
		return in, nil, err
	}
	in.Advertisements = ras.Items
	in.Networks = []Network{{Network: r.options.Default}}
	for i := range cudns.Items {
		c := &cudns.Items[i]
		n, ok, err := r.options.NetworkOf(ctx, c)
		if err != nil {
			return in, nil, err
		}
		if !ok {
			continue // the ClusterUserDefinedNetwork's own condition says so
		}
		in.Networks = append(in.Networks, Network{Network: n, CUDN: c.Name, Labels: c.Labels, Created: c.CreationTimestamp.Time})
	}
	for i := range nodes.Items {
		in.Nodes = append(in.Nodes, nodeOf(&nodes.Items[i]))
	}
	// The cache has no order, and messages follow that of their inputs: another text is another write.
	slices.SortFunc(in.Nodes, func(x, y Node) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(in.Networks, func(x, y Network) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(in.Configurations, func(x, y frrv1.FRRConfiguration) int { return cmp.Compare(x.Name, y.Name) })
	return in, cudns.Items, nil
}

func (r *Reconciler) list(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	if err := r.cache.List(ctx, into, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		return fmt.Errorf("list %T: %w", into, err)
	}
	return nil
}

// nodeOf converts a Node. Annotations that cannot be read are those of a node that is not
// ready yet.
func nodeOf(obj *corev1.Node) Node {
	facts, _ := network.ParseNode(obj.Name, obj.Annotations)
	n := Node{Name: obj.Name, ID: facts.ID, Labels: obj.Labels, NextHops: facts.NextHops, Mode: facts.Mode}
	for _, a := range obj.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			n.InternalIPs = append(n.InternalIPs, ip.Unmap())
		}
	}
	for _, p := range facts.Addresses {
		n.Addresses = append(n.Addresses, p.Addr())
	}
	for _, a := range facts.EncapIPs { // which may be on another interface
		if !slices.Contains(n.Addresses, a) {
			n.Addresses = append(n.Addresses, a)
		}
	}
	return n
}

// managedNetworks returns the names of the ClusterUserDefinedNetworks that the managed
// fabric carries, deleted ones with pods among them.
func managedNetworks(cudns []udnv1.ClusterUserDefinedNetwork) []string {
	var out []string
	for i := range cudns {
		o := cudns[i].Spec.Network.NoOverlaySettings()
		if o != nil && o.Routing == udnv1.RoutingManaged {
			out = append(out, cudns[i].Name)
		}
	}
	return out
}

// TrimNode keeps what nodeOf and findCondition read of a Node.
func TrimNode(in any) (any, error) {
	n, ok := in.(*corev1.Node)
	if !ok {
		return in, nil // a tombstone of the informer
	}
	small := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels, Annotations: map[string]string{}}}
	for _, key := range []string{network.AnnotationNodeID, network.AnnotationEncapIPs, network.AnnotationGatewayConfig} {
		if v, ok := n.Annotations[key]; ok {
			small.Annotations[key] = v
		}
	}
	small.Status.Addresses = n.Status.Addresses
	if c := findCondition(n); c.Type != "" {
		small.Status.Conditions = []corev1.NodeCondition{c}
	}
	return small, nil
}

// sameNode reports whether two Nodes, trimmed, are the same to the reconciler.
func sameNode(x, y *corev1.Node) bool {
	return maps.Equal(x.Labels, y.Labels) && maps.Equal(x.Annotations, y.Annotations) && slices.Equal(x.Status.Addresses, y.Status.Addresses)
}
