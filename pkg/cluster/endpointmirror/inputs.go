// SPDX-License-Identifier: Apache-2.0

package endpointmirror

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// inputs reads the inputs of Build.
func (r *Reconciler) inputs(ctx context.Context, s Source) (Inputs, error) {
	in := Inputs{Source: s, Plan: r.lookup.Plan}
	slice := &discoveryv1.EndpointSlice{}
	err := r.cache.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Name}, slice)
	switch {
	case err == nil && ServiceOf(slice) != "":
		in.Slice = slice
	case client.IgnoreNotFound(err) != nil:
		return in, fmt.Errorf("get EndpointSlice %s: %w", s, err)
	}
	ns, err := r.namespace(ctx, s.Namespace)
	if err != nil {
		return in, err
	}
	in.NamespaceDeleting = ns != nil && ns.DeletionTimestamp != nil
	primary, unknown, err := r.primary(ctx, s.Namespace)
	if err != nil {
		return in, err
	}
	in.NetworkUnknown = unknown
	switch {
	case in.Slice != nil && unknown != "":
		r.deps.set(s, []dependency{namespaceDependency(s)})
		return in, nil
	case in.Slice == nil || in.NamespaceDeleting || primary == nil:
		r.deps.set(s, nil)
		return in, nil
	}
	in.Network = &primary.Network
	return in, r.pods(ctx, &in, primary)
}

func (r *Reconciler) namespace(ctx context.Context, name string) (*metav1.PartialObjectMetadata, error) {
	ns := namespaceMeta()
	err := r.cache.Get(ctx, client.ObjectKey{Name: name}, ns)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return ns, nil
}

// primary returns the NAD of the namespace's primary network, nil if there is
// none. unknown tells why it cannot be determined: there are several, or one of
// the NADs is unusable.
func (r *Reconciler) primary(ctx context.Context, namespace string) (nad *network.NAD, unknown string, err error) {
	nad, err = r.lookup.Primary(ctx, namespace)
	if err == nil {
		return nad, "", nil
	}
	if !errors.Is(err, network.ErrNoPrimary) {
		return nil, err.Error(), nil
	}
	var nads nadv1.NetworkAttachmentDefinitionList
	if err := r.cache.List(ctx, &nads, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, "", fmt.Errorf("list NetworkAttachmentDefinitions of namespace %s: %w", namespace, err)
	}
	for i := range nads.Items {
		if nad, ours := kube.ParseNAD(&nads.Items[i], r.lookup.Plan); ours && nad.Err != nil {
			return nil, fmt.Sprintf("NetworkAttachmentDefinition %s: %v", nad.Key(), nad.Err), nil
		}
	}
	return nil, "", nil
}

// pods reads the pods that the slice's endpoints refer to, or whose addresses
// they have.
func (r *Reconciler) pods(ctx context.Context, in *Inputs, primary *network.NAD) error {
	deps := dependenciesOf(in.Slice, in.Plan)
	r.deps.set(in.Source, deps)
	g := podReader{r: r, in: in, keys: map[string]string{in.Source.Namespace: primary.Key()}}
	in.Pods, in.ByAddress = map[PodRef]Pod{}, map[netip.Addr]Pod{}
	for _, x := range deps[1:] {
		if !x.addr.IsValid() {
			pod, ok, err := g.pod(ctx, x.PodRef)
			if err != nil {
				return err
			}
			if ok {
				in.Pods[x.PodRef] = pod
			}
			continue
		}
		for _, ref := range r.deps.podsAt(x.addr, in.Source.Namespace) {
			pod, ok, err := g.pod(ctx, ref)
			if err != nil {
				return err
			}
			if ok && len(pod.Addresses) > 0 {
				in.ByAddress[x.addr] = pod
				break
			}
		}
	}
	return nil
}

// dependenciesOf returns what a slice's mirror depends on: its namespace, the
// pods that endpoints refer to, and the addresses on the cluster default network
// of endpoints without a pod reference. Each is returned once, the namespace first.
func dependenciesOf(s *discoveryv1.EndpointSlice, plan network.Plan) []dependency {
	out := make([]dependency, 1, 1+len(s.Endpoints))
	out[0] = namespaceDependency(Source{s.Namespace, s.Name})
	seen := map[dependency]struct{}{}
	add := func(x dependency) {
		if _, ok := seen[x]; !ok {
			seen[x] = struct{}{}
			out = append(out, x)
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if ref, ok := podOf(s.Namespace, e); ok {
			add(dependency{PodRef: ref})
			continue
		}
		for _, raw := range e.Addresses {
			if a, err := netip.ParseAddr(raw); err == nil && isDefault(plan, a) {
				add(dependency{addr: a})
			}
		}
	}
	return out
}

func namespaceDependency(s Source) dependency {
	return dependency{PodRef: PodRef{Namespace: s.Namespace}}
}

// podReader reads the pods of a source.
type podReader struct {
	r    *Reconciler
	in   *Inputs
	keys map[string]string // NAD key of the network by namespace, "" for namespaces without it
}

func (g *podReader) pod(ctx context.Context, ref PodRef) (Pod, bool, error) {
	p := &corev1.Pod{}
	err := g.r.cache.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, p)
	if apierrors.IsNotFound(err) {
		return Pod{}, false, nil
	}
	if err != nil {
		return Pod{}, false, fmt.Errorf("get pod %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	out := Pod{UID: p.UID, HostNetwork: p.Spec.HostNetwork}
	key, err := g.key(ctx, ref.Namespace)
	if err != nil || key == "" {
		return out, true, err
	}
	// A malformed annotation is ignored: its writers repair it.
	nets, _ := network.ParsePodNetworks(p.Annotations[network.AnnotationPodNetworks])
	if n := nets[key]; n.Role == network.RolePrimary {
		for _, ip := range n.IPs {
			out.Addresses = append(out.Addresses, ip.Addr())
		}
	}
	return out, true, nil
}

// key returns the key of the network's entry in the annotations of a namespace's
// pods. Other namespaces can have the same primary network.
func (g *podReader) key(ctx context.Context, namespace string) (string, error) {
	if key, ok := g.keys[namespace]; ok {
		return key, nil
	}
	g.r.deps.add(g.in.Source, dependency{PodRef: PodRef{Namespace: namespace}})
	nad, _, err := g.r.primary(ctx, namespace)
	if err != nil {
		return "", err
	}
	g.keys[namespace] = ""
	if nad != nil && nad.Network.Name == g.in.Network.Name {
		g.keys[namespace] = nad.Key()
	}
	return g.keys[namespace], nil
}

// defaultAddresses returns a pod's addresses on the cluster default network.
func defaultAddresses(p *corev1.Pod) []netip.Addr {
	raw := p.Annotations[network.AnnotationPodNetworks]
	if raw == "" {
		return nil
	}
	nets, err := network.ParsePodNetworks(raw)
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, ip := range nets[network.DefaultName].IPs {
		if !slices.Contains(out, ip.Addr()) {
			out = append(out, ip.Addr())
		}
	}
	return out
}

func namespaceMeta() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return m
}
