// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
)

// Facts is what the API reports of ids, networks and addresses, and what no
// attempt may change.
type Facts map[string]string

// Read reads the facts.
func Read(ctx context.Context, admin client.Client) (Facts, error) {
	f := Facts{}
	for _, k := range []Kind{NAD, Node, Pod, Namespace} {
		l := &unstructured.UnstructuredList{}
		l.SetGroupVersionKind(k.gvk())
		if err := admin.List(ctx, l); err != nil {
			return nil, fmt.Errorf("list %s: %w", k.Kind, err)
		}
		for i := range l.Items {
			f.add(k, &l.Items[i])
		}
	}
	return f, nil
}

func (f Facts) add(k Kind, o *unstructured.Unstructured) {
	key := strings.TrimPrefix(k.Kind+" "+o.GetNamespace()+"/"+o.GetName(), "/")
	set := func(what, value string) {
		if value != "" {
			f[key+" "+what] = value
		}
	}
	annotations := o.GetAnnotations()
	switch k {
	case NAD:
		if annotations[network.AnnotationNetworkID] == "" {
			return // another CNI plugin's
		}
		config, _, _ := unstructured.NestedString(o.Object, "spec", "config")
		finalizers := slices.Sorted(slices.Values(o.GetFinalizers()))
		set("id", annotations[network.AnnotationNetworkID])
		set("name", annotations[network.AnnotationNetworkName])
		set("config", config)
		set("finalizers", strings.Join(finalizers, ","))
		for _, ref := range o.GetOwnerReferences() {
			set("owner", ref.Kind+" "+ref.Name+" "+string(ref.UID))
		}
	case Node:
		for _, a := range []string{network.AnnotationNodeID, network.AnnotationDefaultTransport, network.AnnotationChassisID, network.AnnotationEncapIPs, network.AnnotationGatewayConfig} {
			set(a, annotations[a])
		}
		labels := o.GetLabels()
		for _, l := range slices.Sorted(maps.Keys(labels)) {
			set("label "+l, labels[l])
		}
	case Pod:
		set("networks", annotations[network.AnnotationPodNetworks])
		node, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
		set("node", node)
	case Namespace:
		_, labelled := o.GetLabels()[network.LabelPrimaryUDN]
		set("label", fmt.Sprint(labelled))
	}
}

// Differences lists the facts that were added, changed or removed, except those
// for which mine returns true: the attacker's own objects.
func (f Facts) Differences(before Facts, mine func(fact string) bool) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if f[key] != before[key] && !mine(key) {
			out = append(out, fmt.Sprintf("%s was %q and is %q", key, before[key], f[key]))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(f)) {
		if _, was := before[key]; !was && !mine(key) {
			out = append(out, fmt.Sprintf("%s was added as %q", key, f[key]))
		}
	}
	return out
}

// SharedIDs lists the ids that two networks share.
func (f Facts) SharedIDs() []string {
	names := map[string]string{}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(f)) {
		nad, isID := strings.CutSuffix(key, " id")
		if !isID || !strings.HasPrefix(key, NAD.Kind+" ") {
			continue
		}
		name := f[nad+" name"]
		if other, ok := names[f[key]]; ok && other != name {
			out = append(out, fmt.Sprintf("networks %s and %s share id %s", other, name, f[key]))
		}
		names[f[key]] = name
	}
	return out
}

// TakenOver lists the pods of the attacker's namespace that have an entry on the
// victim's network or one of the victim's addresses.
func (f Facts) TakenOver(s Scenario) []string {
	var out []string
	for key, value := range f {
		if !strings.HasPrefix(key, Pod.Kind+" "+s.Attacker+"/") || !strings.HasSuffix(key, " networks") {
			continue
		}
		has, err := network.ParsePodNetworks(value)
		if err != nil {
			out = append(out, key+": "+err.Error())
		}
		for k, n := range has {
			if strings.HasPrefix(k, s.Victim+"/") {
				out = append(out, key+" has an entry of "+k)
			}
			for _, ip := range n.IPs {
				if slices.ContainsFunc(s.VictimEntry.IPs, func(p netip.Prefix) bool { return p.Addr() == ip.Addr() }) {
					out = append(out, key+" has the victim's "+ip.String())
				}
			}
		}
	}
	slices.Sort(out)
	return out
}
