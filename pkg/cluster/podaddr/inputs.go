// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// requests are the requests in a pod's annotations.
type requests struct {
	namespace  string
	selections []kube.Selection
	primary    kube.SelectionRequest
	primaryErr error
	err        error
}

func requestsOf(obj *corev1.Pod) requests {
	w := requests{namespace: obj.Namespace}
	w.selections, w.err = kube.ParseSelections(obj.Namespace, obj.Annotations[network.AnnotationNetworks])
	w.primary, w.primaryErr = kube.ParsePrimary(obj.Annotations)
	return w
}

// topics returns the topics of everything that the requests depend on.
func (w requests) topics() []topic {
	out := []topic{topicPrimary(w.namespace)}
	all := []kube.SelectionRequest{w.primary}
	for _, s := range w.selections {
		out = append(out, topicNAD(network.NADKey(s.Namespace, s.Name)))
		all = append(all, s.Request)
	}
	for _, r := range all {
		if r.Claim != "" {
			out = append(out, topicClaim(network.NADKey(w.namespace, r.Claim)))
		}
	}
	return out
}

// inputs reads the inputs of Build and the actual state of the annotation. ours
// are the keys of entries that this package is known to have written. restoring
// are the entries to restore, nil except during Restore.
func (r *Reconciler) inputs(ctx context.Context, obj *corev1.Pod, w requests, ours []string, restoring network.PodNetworks) (Inputs, State, error) {
	in := Inputs{Plan: r.lookup.Plan, Previous: restoring, Pod: Pod{
		Namespace: obj.Namespace, Name: obj.Name, UID: obj.UID, Deleting: obj.DeletionTimestamp != nil,
		// The zone decides the same way. A pod whose init containers run is pending, with interfaces.
		Started: obj.Status.Phase == corev1.PodRunning || len(obj.Status.PodIPs) > 0,
	}}
	have := State{Pod: in.Pod, Entries: network.PodNetworks{}}
	_, have.Labelled = obj.Labels[network.LabelLayer2Pod]
	if err := r.addPrimary(ctx, &in, w); err != nil {
		return in, have, err
	}
	if w.err != nil {
		in.Problems = append(in.Problems, Problem{Text: w.err.Error()}) // the pod's update event resolves it
	}
	for _, s := range w.selections {
		if err := r.addSelected(ctx, &in, s); err != nil {
			return in, have, err
		}
	}
	for key, entry := range entriesOf(obj.Annotations[network.AnnotationPodNetworks]) {
		mine := slices.Contains(ours, key) || slices.ContainsFunc(in.Attachments, func(a Attachment) bool { return a.Key == key })
		if namespace, name, ok := network.SplitNADKey(key); ok && !mine {
			nad, ok, err := r.lookup.NAD(ctx, namespace, name)
			if err != nil {
				return in, have, err
			}
			mine = ok && nad.Err == nil && managed(nad.Network)
		}
		if mine {
			have.Entries[key] = entry
		}
	}
	return in, have, nil
}

// restores reports whether Restore is restoring an entry. A NAD's deletion does not prevent
// that: the pod may have the interface already, and the deletion waits for the pod.
func (in Inputs) restores(key string) bool {
	_, ok := in.Previous[key]
	return ok
}

// managed reports whether this package allocates the network's addresses.
func managed(n network.Network) bool {
	return n.Topology == network.Layer2 || n.Topology == network.Localnet
}

// entriesOf returns the annotation's entries except that of the cluster default
// network. A malformed entry is returned as an empty one.
func entriesOf(annotation string) network.PodNetworks {
	var raw map[string]json.RawMessage
	if annotation == "" || json.Unmarshal([]byte(annotation), &raw) != nil {
		return nil
	}
	out := network.PodNetworks{}
	for key, value := range raw {
		if key == network.DefaultName {
			continue
		}
		var n network.PodNetwork
		if json.Unmarshal(value, &n) != nil {
			n = network.PodNetwork{}
		}
		out[key] = n
	}
	return out
}

// addPrimary adds the namespace's primary network.
func (r *Reconciler) addPrimary(ctx context.Context, in *Inputs, w requests) error {
	nad, err := r.lookup.Primary(ctx, in.Pod.Namespace)
	if err != nil {
		// The zone waits for the same change, and reports it.
		in.Problems = append(in.Problems, Problem{Wait: []topic{topicPrimary(in.Pod.Namespace)}})
		return nil
	}
	if nad == nil || nad.Network.Topology != network.Layer2 {
		return nil
	}
	if w.primaryErr != nil {
		in.Problems = append(in.Problems, Problem{Key: nad.Key(), Text: w.primaryErr.Error()})
		return nil
	}
	obj, err := r.getNAD(ctx, nad.Namespace, nad.Name)
	if err != nil {
		return err
	}
	if obj == nil || obj.DeletionTimestamp != nil && !in.restores(nad.Key()) {
		in.Problems = append(in.Problems, Problem{Key: nad.Key(), Text: "network " + nad.Network.Name + " is being deleted",
			Wait: []topic{topicPrimary(in.Pod.Namespace)}})
		return nil
	}
	in.Attachments = append(in.Attachments, Attachment{
		Key: nad.Key(), NAD: nad.Key(), Source: network.AnnotationDefaultNetwork, Network: nad.Network, Request: w.primary,
	})
	return nil
}

// addSelected adds a network that the pod requests, if managed.
func (r *Reconciler) addSelected(ctx context.Context, in *Inputs, s kube.Selection) error {
	key := network.NADKey(s.Namespace, s.Name)
	problem := func(format string, args ...any) {
		in.Problems = append(in.Problems, Problem{Key: s.Key, Text: fmt.Sprintf(format, args...), Wait: []topic{topicNAD(key)}})
	}
	obj, err := r.getNAD(ctx, s.Namespace, s.Name)
	if err != nil {
		return err
	}
	if obj == nil {
		problem("NetworkAttachmentDefinition %s, which annotation %s names, does not exist: create it, or remove it from the annotation", key, network.AnnotationNetworks)
		return nil
	}
	nad, ok := kube.ParseNAD(obj, r.lookup.Plan)
	switch {
	case !ok:
		return nil // of another CNI plugin
	case nad.Err != nil && obj.Annotations[network.AnnotationNetworkID] == "":
		problem("") // the id will be assigned soon
	case nad.Err != nil:
		problem("NetworkAttachmentDefinition %s: %v", key, nad.Err)
	case nad.Network.IsPrimary():
		problem("NetworkAttachmentDefinition %s is a primary network, which all pods of its namespace have without a request: remove it from annotation %s", key, network.AnnotationNetworks)
		in.Problems[len(in.Problems)-1].Key = "" // report it even if the pod has the network
	case !managed(nad.Network):
		return nil // the zone allocates its addresses
	case !nad.Admits(in.Pod.Namespace):
		problem("NetworkAttachmentDefinition %s belongs to another namespace's network: remove it from annotation %s, or extend the network to namespace %s",
			key, network.AnnotationNetworks, in.Pod.Namespace)
	case obj.DeletionTimestamp != nil && !in.restores(s.Key):
		problem("network %s (%s) is being deleted", nad.Network.Name, key)
	case s.Err != nil:
		problem("%v", s.Err)
	default:
		in.Attachments = append(in.Attachments, Attachment{
			Key: s.Key, NAD: key, Source: network.AnnotationNetworks, Network: nad.Network, Request: s.Request,
		})
	}
	return nil
}

// getNAD returns a NetworkAttachmentDefinition, nil if it does not exist.
func (r *Reconciler) getNAD(ctx context.Context, namespace, name string) (*nadv1.NetworkAttachmentDefinition, error) {
	obj := &nadv1.NetworkAttachmentDefinition{}
	err := r.cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nil means that it does not exist
	}
	if err != nil {
		return nil, fmt.Errorf("get NetworkAttachmentDefinition %s: %w", network.NADKey(namespace, name), err)
	}
	return obj, nil
}

// getClaims returns the existing claims that the attachments name, by name.
func (r *Reconciler) getClaims(ctx context.Context, in Inputs) (map[string]*ipamclaimv1.IPAMClaim, error) {
	out := map[string]*ipamclaimv1.IPAMClaim{}
	for _, a := range in.Attachments {
		if a.Request.Claim == "" {
			continue
		}
		obj, _, err := r.getClaim(ctx, Key{Claim: true, Namespace: in.Pod.Namespace, Name: a.Request.Claim})
		if err != nil {
			return nil, err
		}
		if obj != nil {
			out[a.Request.Claim] = obj
		}
	}
	return out, nil
}

// attachClaims sets Claim in attachments that name one of claims. A claim that the tracker knows but that does not exist is
// enqueued: the reconcile of another pod has read it before its deletion, and has stored it after the deletion was reconciled.
func (t *tracker) attachClaims(in *Inputs, claims map[string]*ipamclaimv1.IPAMClaim) {
	for i := range in.Attachments {
		name := in.Attachments[i].Request.Claim
		if obj := claims[name]; obj != nil {
			c := t.syncClaim(obj).Claim
			in.Attachments[i].Claim = &c
			continue
		}
		if key := network.NADKey(in.Pod.Namespace, name); name != "" && t.claimUIDs[key] != "" {
			t.enqueueClaim(key)
		}
	}
}
