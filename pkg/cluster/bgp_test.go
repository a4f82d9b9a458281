// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

// nadList is a cache that has these NADs.
type nadList []nadv1.NetworkAttachmentDefinition

func (l nadList) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("not expected")
}

func (l nadList) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	into.(*nadv1.NetworkAttachmentDefinitionList).Items = l
	return nil
}

// TestNetworkOf: a network whose specification is refused stays advertised as the nodes have it, without the subnets
// that were refused. One that no node has is not advertised.
func TestNetworkOf(t *testing.T) {
	cfg, err := config.Parse("[default]\ncluster-subnets = 10.244.0.0/16/24\nservice-cidrs = 10.96.0.0/16\n")
	if err != nil {
		t.Fatal(err)
	}
	nad := func(subnets string) nadList {
		var n nadv1.NetworkAttachmentDefinition
		n.Spec.Config = fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"netAttachDefName":"ns/blue","role":"primary","subnets":%q,"topology":"layer3","type":"ovn-k8s-cni-overlay"}`, network.CUDNName("blue"), subnets)
		return nadList{n}
	}
	for _, c := range []struct {
		what  string
		cidrs []udnv1.CIDR
		id    int
		nads  nadList
		want  string // "": not advertised
	}{
		{"valid", []udnv1.CIDR{"10.90.0.0/16", "10.91.0.0/16"}, 7, nad("10.90.0.0/16/24"), "10.90.0.0/16,10.91.0.0/16"},
		{"valid, without NADs", []udnv1.CIDR{"10.90.0.0/16"}, 7, nil, "10.90.0.0/16"},
		{"a mistyped subnet appended", []udnv1.CIDR{"10.90.0.0/16", "10.91.0.0/32"}, 7, nad("10.90.0.0/16/24"), "10.90.0.0/16"},
		{"the pods' subnet appended", []udnv1.CIDR{"10.90.0.0/16", "10.244.128.0/17"}, 7, nad("10.90.0.0/16/24"), "10.90.0.0/16"},
		{"an unreadable subnet", []udnv1.CIDR{"10.90.0.0"}, 7, nad("10.90.0.0/16/24"), "10.90.0.0/16"},
		{"the configuration has changed", []udnv1.CIDR{"10.96.0.0/16"}, 7, nad("10.96.0.0/16/24"), "10.96.0.0/16"},
		{"refused, without NADs", []udnv1.CIDR{"10.96.0.0/16"}, 7, nil, ""},
		{"refused, without an id", []udnv1.CIDR{"10.96.0.0/16"}, 0, nad("10.96.0.0/16/24"), ""},
	} {
		cudn := &udnv1.ClusterUserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}
		l := &udnv1.Layer3Config{Role: udnv1.NetworkRolePrimary}
		for _, cidr := range c.cidrs {
			l.Subnets = append(l.Subnets, udnv1.Layer3Subnet{CIDR: cidr})
		}
		cudn.Spec.Network = udnv1.NetworkSpec{Topology: udnv1.NetworkTopologyLayer3, Layer3: l}
		n, ok, err := networkOf(t.Context(), cudn, cfg.Plan, func(string) int { return c.id }, c.nads)
		if err != nil || ok != (c.want != "") {
			t.Errorf("%s: %t, %v", c.what, ok, err)
		}
		if got := network.JoinCIDRs(n.CIDRs()); ok && (got != c.want || n.ID != c.id || n.Name != network.CUDNName("blue")) {
			t.Errorf("%s: %s with id %d and subnets %s, want %s", c.what, n.Name, n.ID, got, c.want)
		}
	}
}
