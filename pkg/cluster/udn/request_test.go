// SPDX-License-Identifier: Apache-2.0

package udn

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Any request, also one that the API would reject, is either rendered into a valid
// network or returns an error.
func FuzzNetConf(f *testing.F) {
	f.Add("10.100.0.0/16", int32(24), "100.70.0.0/16", int32(1400))
	f.Add("fd10::/48", int32(0), "", int32(0))
	f.Add("10.0.0.1/32", int32(127), "::/0", int32(-1))
	plan := testPlan(f)
	f.Fuzz(func(t *testing.T, cidr string, host int32, join string, mtu int32) {
		l := layer3(mtu, nil, udnv1.Layer3Subnet{CIDR: udnv1.CIDR(cidr), HostSubnet: host})
		if join != "" {
			l.JoinSubnets = udnv1.DualStackCIDRs{udnv1.CIDR(join)}
		}
		c, n, err := udnRequest(l).NetConf(plan)
		if err != nil {
			return
		}
		again, err := network.ParseNetConf(c.Render())
		if err != nil || again != c {
			t.Fatalf("rendered %s, read %+v: %v", c.Render(), again, err)
		}
		if n.HostCapacity() == 0 {
			t.Fatalf("%s has no host subnet for any node", c.Render())
		}
	})
}

func FuzzOwnerOf(f *testing.F) {
	f.Add("red", "net", "ClusterUserDefinedNetwork", "net", "k8s.ovn.org/v1", "cluster_udn_net")
	f.Fuzz(func(t *testing.T, ns, name, kind, refName, version, netName string) {
		yes := true
		nad := kube.Metadata("NAD")
		nad.Namespace, nad.Name = ns, name
		nad.Annotations = map[string]string{network.AnnotationNetworkName: netName}
		nad.Finalizers = []string{network.FinalizerUDN}
		if kind != "" {
			nad.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: refName, Controller: &yes}}
		}
		if o, ok := OwnerOf(nad); ok && o.Name != name {
			t.Fatalf("owner of NAD %s/%s: got %s", ns, name, o)
		}
	})
}

// selectorKeys include a label of every namespace that the selector matches.
func TestSelectorKeysCover(t *testing.T) {
	keys, values := []string{"team", "kubernetes.io/metadata.name", "tier"}, []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		var s metav1.LabelSelector
		draw := rapid.MapOfN(rapid.SampledFrom(keys), rapid.SampledFrom(values), 0, 3)
		s.MatchLabels = draw.Draw(t, "matchLabels")
		for range rapid.IntRange(0, 3).Draw(t, "expressions") {
			e := metav1.LabelSelectorRequirement{Key: rapid.SampledFrom(keys).Draw(t, "key"),
				Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator")}
			if e.Operator == "In" || e.Operator == "NotIn" {
				e.Values = rapid.SliceOfN(rapid.SampledFrom(values), 1, 3).Draw(t, "values")
			}
			s.MatchExpressions = append(s.MatchExpressions, e)
		}
		sel, err := metav1.LabelSelectorAsSelector(&s)
		if err != nil {
			t.Skip(err)
		}
		ns := labels.Set(draw.Draw(t, "labels"))
		if !sel.Matches(ns) {
			return
		}
		for _, k := range selectorKeys(&s) {
			name, value, _ := strings.Cut(k, "=")
			if k == anyLabel || ns[name] == value {
				return
			}
		}
		t.Fatalf("namespace %v is selected by %v, which is indexed by %v", ns, s, selectorKeys(&s))
	})
}
