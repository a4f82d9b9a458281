// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"bulkhead/pkg/network"
)

var (
	cudns = schema.GroupVersionResource{Group: "k8s.ovn.org", Version: "v1", Resource: "clusteruserdefinednetworks"}
	udns  = schema.GroupVersionResource{Group: "k8s.ovn.org", Version: "v1", Resource: "userdefinednetworks"}
	nads  = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
)

func networkChecks() []Check {
	return []Check{
		{Chapter: 2, Title: "two tenants, one address plan: CUDN red (two namespaces) and UDN blue: conditions True", Phase: phaseObjects, Needs: needs(fixtureNetworks), Run: networksAccepted},
		{Chapter: 2, Title: "NADs have the proposals' format, and the network id from their first write", Phase: phaseObjects, Needs: needs(fixtureNetworks), Run: nadsRendered},
	}
}

// setUpNetworks creates red and blue, and waits until they are: another fixture
// creates a second primary network in blue, which must come second.
func setUpNetworks(ctx context.Context, w *World) error {
	if err := w.Lab.Apply(ctx, tenantNamespaces+"---"+w.networks()); err != nil {
		return err
	}
	_, err := networksAccepted(ctx, w)
	return err
}

func networksAccepted(ctx context.Context, w *World) (string, error) {
	if err := w.conditions(ctx, cudns, "", "red", "True"); err != nil {
		return "", err
	}
	if err := w.conditions(ctx, udns, "blue", "net", "True"); err != nil {
		return "", err
	}
	return "NetworkCreated, NetworkAllocationSucceeded", nil
}

// conditions waits until both conditions of a network have the status, for
// the generation that was asked for.
func (w *World) conditions(ctx context.Context, gvr schema.GroupVersionResource, namespace, name, status string) error {
	return w.Lab.Wait(ctx, fmt.Sprintf("conditions of %s %s to be %s", gvr.Resource, name, status), func(ctx context.Context) (bool, string, error) {
		obj, err := w.dynamic.Resource(gvr).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		got := map[string]string{}
		for _, c := range conditionsOf(obj) {
			got[c["type"].(string)], _ = c["status"].(string)
		}
		return got["NetworkCreated"] == status && got["NetworkAllocationSucceeded"] == status, fmt.Sprint(conditionsOf(obj)), nil
	})
}

func conditionsOf(obj *unstructured.Unstructured) []map[string]any {
	list, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	var out []map[string]any
	for _, c := range list {
		if m, ok := c.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

func nadsRendered(ctx context.Context, w *World) (string, error) {
	var list []string
	for _, s := range []string{"10.20.0.0/16/24", "fd20::/48/64"} {
		if w.has(netip.MustParsePrefix(s[:strings.LastIndex(s, "/")]).Addr()) {
			list = append(list, s)
		}
	}
	subnets := strings.Join(list, ",")
	ids := map[string]string{}
	for _, want := range []struct{ namespace, name, network, owner string }{
		{"red-a", "red", "cluster_udn_red", "ClusterUserDefinedNetwork"},
		{"red-b", "red", "cluster_udn_red", "ClusterUserDefinedNetwork"},
		{"blue", "net", "blue_net", "UserDefinedNetwork"},
	} {
		nad, err := w.dynamic.Resource(nads).Namespace(want.namespace).Get(ctx, want.name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		config, _, _ := unstructured.NestedString(nad.Object, "spec", "config")
		conf, err := network.ParseNetConf(config)
		if err != nil {
			return "", fmt.Errorf("NAD %s/%s: %w", want.namespace, want.name, err)
		}
		wrong := func(what string, got any) error {
			return fmt.Errorf("NAD %s/%s: %s is %v", want.namespace, want.name, what, got)
		}
		owners := nad.GetOwnerReferences()
		id := nad.GetAnnotations()[network.AnnotationNetworkID]
		switch {
		case conf.Name != want.network:
			return "", wrong("the network's name", conf.Name)
		case conf.Topology != "layer3" || conf.Role != "primary":
			return "", wrong("topology and role", conf.Topology+" "+conf.Role)
		case conf.Subnets != subnets:
			return "", wrong("subnets", conf.Subnets)
		case conf.NetAttachDefName != want.namespace+"/"+want.name:
			return "", wrong("netAttachDefName", conf.NetAttachDefName)
		case len(owners) != 1 || owners[0].Kind != want.owner:
			return "", wrong("the owner", owners)
		case !slices.Contains(nad.GetFinalizers(), network.FinalizerUDN):
			return "", wrong("the finalizer", nad.GetFinalizers())
		case id == "" || nad.GetAnnotations()[network.AnnotationNetworkName] != want.network:
			return "", wrong("the annotations", nad.GetAnnotations())
		}
		// One write: nothing has been managed since the NAD was created.
		if g := nad.GetGeneration(); g > 1 {
			return "", wrong("the generation", g)
		}
		if other, ok := ids[want.network]; ok && other != id {
			return "", wrong("the network id", id+", not "+other)
		}
		ids[want.network] = id
	}
	if ids["cluster_udn_red"] == ids["blue_net"] {
		return "", fmt.Errorf("both networks have id %s", ids["blue_net"])
	}
	return fmt.Sprintf("ids red %s, blue %s", ids["cluster_udn_red"], ids["blue_net"]), nil
}
