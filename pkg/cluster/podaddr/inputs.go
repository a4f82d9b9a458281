// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// wishes are what a pod's annotations ask for.
type wishes struct {
	namespace  string
	selections []Selection
	primary    Request
	primaryErr error
	err        error
}

func wishesOf(obj *corev1.Pod) wishes {
	w := wishes{namespace: obj.Namespace}
	w.selections, w.err = ParseSelections(obj.Namespace, obj.Annotations[network.AnnotationNetworks])
	w.primary, w.primaryErr = ParseDefault(obj.Annotations[network.AnnotationDefaultNetwork])
	return w
}

// topics are what may change while the wishes are looked at.
func (w wishes) topics() []topic {
	out := []topic{onPrimary(w.namespace)}
	requests := []Request{w.primary}
	for _, s := range w.selections {
		out = append(out, onNAD(network.NADKey(s.Namespace, s.Name)))
		requests = append(requests, s.Request)
	}
	for _, r := range requests {
		if r.Claim != "" {
			out = append(out, onClaim(network.NADKey(w.namespace, r.Claim)))
		}
	}
	return out
}

// inputs gathers what Build decides by, and what the annotation says of it.
// ours are keys of entries that are known to be written here.
func (r *Reconciler) inputs(ctx context.Context, obj *corev1.Pod, w wishes, ours []string) (Inputs, State, error) {
	in := Inputs{Plan: r.lookup.Plan, Pod: Pod{
		Namespace: obj.Namespace, Name: obj.Name, UID: obj.UID, Leaving: obj.DeletionTimestamp != nil,
		Started: obj.Status.Phase != corev1.PodPending && obj.Status.Phase != "",
	}}
	have := State{Pod: in.Pod, Entries: network.PodNetworks{}}
	if err := r.primary(ctx, &in, w); err != nil {
		return in, have, err
	}
	if w.err != nil {
		in.Problems = append(in.Problems, Problem{Text: w.err.Error()}) // until the annotation changes
	}
	for _, s := range w.selections {
		if err := r.selected(ctx, &in, s); err != nil {
			return in, have, err
		}
	}
	for key, entry := range entriesOf(obj.Annotations[network.AnnotationPodNetworks]) {
		mine := slices.Contains(ours, key) || slices.ContainsFunc(in.Attachments, func(a Attachment) bool { return a.Key == key })
		if namespace, name, ok := splitKey(key); ok && !mine {
			nad, ok, err := r.lookup.NAD(ctx, namespace, name)
			if err != nil {
				return in, have, err
			}
			mine = ok && nad.Err == nil && shared(nad.Network)
		}
		if mine {
			have.Entries[key] = entry
		}
	}
	return in, have, nil
}

// shared tells networks whose subnets no zone has a part of.
func shared(n network.Network) bool {
	return n.Topology == network.Layer2 || n.Topology == network.Localnet
}

// entriesOf are the entries of networks other than the cluster default one. An
// entry that cannot be read is an empty one.
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

// splitKey takes the NAD out of an entry's key, <namespace>/<name> or, of a
// second attachment, <namespace>/<name>/<index>.
func splitKey(key string) (namespace, name string, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) < 2 || parts[0] == "" || parts[1] == "" {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// primary adds the namespace's primary network.
func (r *Reconciler) primary(ctx context.Context, in *Inputs, w wishes) error {
	nad, err := r.lookup.Primary(ctx, in.Pod.Namespace)
	if err != nil {
		// The zone waits for the same, and says so.
		in.Problems = append(in.Problems, Problem{Wait: []topic{onPrimary(in.Pod.Namespace)}})
		return nil
	}
	if nad == nil || nad.Network.Topology != network.Layer2 {
		return nil
	}
	if w.primaryErr != nil {
		in.Problems = append(in.Problems, Problem{Key: nad.Key(), Text: w.primaryErr.Error()})
		return nil
	}
	obj, err := r.nad(ctx, nad.Namespace, nad.Name)
	if err != nil {
		return err
	}
	if obj == nil || obj.DeletionTimestamp != nil {
		in.Problems = append(in.Problems, Problem{Key: nad.Key(), Text: "network " + nad.Network.Name + " is being deleted",
			Wait: []topic{onPrimary(in.Pod.Namespace)}})
		return nil
	}
	in.Attachments = append(in.Attachments, Attachment{
		Key: nad.Key(), NAD: nad.Key(), Source: network.AnnotationDefaultNetwork, Network: nad.Network, Request: w.primary,
	})
	return nil
}

// selected adds a network that the pod names, if its addresses are given here.
func (r *Reconciler) selected(ctx context.Context, in *Inputs, s Selection) error {
	key := network.NADKey(s.Namespace, s.Name)
	problem := func(format string, args ...any) {
		in.Problems = append(in.Problems, Problem{Key: s.Key, Text: fmt.Sprintf(format, args...), Wait: []topic{onNAD(key)}})
	}
	obj, err := r.nad(ctx, s.Namespace, s.Name)
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
		return nil // another CNI plugin's
	case nad.Err != nil && obj.Annotations[network.AnnotationNetworkID] == "":
		problem("") // it is being given one
	case nad.Err != nil:
		problem("NetworkAttachmentDefinition %s: %v", key, nad.Err)
	case nad.Network.IsPrimary():
		problem("NetworkAttachmentDefinition %s is a primary network, which the pods of its namespace have without asking: remove it from annotation %s", key, network.AnnotationNetworks)
		in.Problems[len(in.Problems)-1].Key = "" // even where they have it
	case !shared(nad.Network):
		return nil // the zone's
	case s.Namespace != in.Pod.Namespace && network.IsUDNName(nad.Network.Name):
		problem("NetworkAttachmentDefinition %s is of another namespace, whose network it is: remove it from annotation %s, or have the network in namespace %s",
			key, network.AnnotationNetworks, in.Pod.Namespace)
	case obj.DeletionTimestamp != nil:
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

// nad is a NetworkAttachmentDefinition, nil where there is none.
func (r *Reconciler) nad(ctx context.Context, namespace, name string) (*nadv1.NetworkAttachmentDefinition, error) {
	obj := &nadv1.NetworkAttachmentDefinition{}
	err := r.cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nil is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("get NetworkAttachmentDefinition %s: %w", network.NADKey(namespace, name), err)
	}
	return obj, nil
}

// claimsOf are the claims that the attachments name, by name.
func (r *Reconciler) claimsOf(ctx context.Context, in Inputs) (map[string]*ipamclaimv1.IPAMClaim, error) {
	out := map[string]*ipamclaimv1.IPAMClaim{}
	for _, a := range in.Attachments {
		if a.Request.Claim == "" {
			continue
		}
		obj, _, err := r.claimNow(ctx, Key{Claim: true, Namespace: in.Pod.Namespace, Name: a.Request.Claim})
		if err != nil {
			return nil, err
		}
		if obj != nil {
			out[a.Request.Claim] = obj
		}
	}
	return out, nil
}

// attachClaims adds to attachments what is known of the claims that they name.
func (b *book) attachClaims(in *Inputs, claims map[string]*ipamclaimv1.IPAMClaim) {
	for i := range in.Attachments {
		if obj := claims[in.Attachments[i].Request.Claim]; obj != nil {
			c := b.claim(obj).Claim
			in.Attachments[i].Claim = &c
		}
	}
}
