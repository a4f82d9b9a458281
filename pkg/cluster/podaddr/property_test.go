// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// After any sequence of changes and crashes, no two pods share an address, MAC or
// tunnel id, except pods of one claim; every pod whose request can be fulfilled
// has an entry; and when everything is deleted, nothing is allocated.
func TestInvariants(t *testing.T) {
	plan := testPlan(t)
	rapid.Check(t, func(t *rapid.T) {
		s := newSimFor(t, plan)
		s.namespace("red", true)
		s.namespace("blue", true)
		for _, ns := range []string{"red", "blue"} { // one network: 9 addresses, 3 of them reserved
			s.nad(ns, "net", 7, "shared", `"topology":"layer2","role":"primary","subnets":"10.20.0.0/28,fd20::/64","reservedSubnets":"10.20.0.8/30",`+
				`"infrastructureSubnets":"10.20.0.4/30","allowPersistentIPs":true`)
			s.nad(ns, "phys", 8, "phys", `"topology":"localnet","physicalNetworkName":"p","subnets":"fd30::/125"`)
		}
		namespace := rapid.SampledFrom([]string{"red", "blue"})
		last := 0
		t.Repeat(map[string]func(*rapid.T){
			"pod": func(t *rapid.T) {
				last++
				if len(s.pods()) < 14 {
					s.pod(namespace.Draw(t, "namespace"), fmt.Sprintf("p%d", last), randomRequest(t))
				}
			},
			"start": func(t *rapid.T) {
				if p := s.anyPod(t); p != nil && p.Annotations[network.AnnotationPodNetworks] != "" {
					s.markRunning(p.Namespace, p.Name)
				}
			},
			"delete pod": func(t *rapid.T) {
				if p := s.anyPod(t); p != nil {
					s.remove(p)
				}
			},
			"claim": func(t *rapid.T) {
				ns, name := namespace.Draw(t, "namespace"), rapid.SampledFrom([]string{"vm", "vm2"}).Draw(t, "claim")
				if s.missing(&ipamclaimv1.IPAMClaim{ObjectMeta: s.meta(ns, name, nil)}) {
					s.claim(ns, name, "shared")
				}
			},
			"delete claim": func(t *rapid.T) {
				if c := s.claims(); len(c) > 0 {
					s.remove(&c[rapid.IntRange(0, len(c)-1).Draw(t, "index")])
				}
			},
			"restart": func(*rapid.T) {
				s.restart(plan)
				s.drain()
			},
			"kill": func(t *rapid.T) {
				s.target.failAt, s.target.after = s.target.writes+rapid.IntRange(1, 2).Draw(t, "write"), rapid.Bool().Draw(t, "after")
			},
			"": func(t *rapid.T) { s.checkInvariants(t) },
		})
		for _, p := range s.pods() {
			s.remove(&p)
		}
		for _, c := range s.claims() {
			s.remove(&c)
		}
		s.wantNothingHeld()
	})
}

// randomRequest returns the annotations of a pod: mostly no request, else one that
// may conflict with other pods.
func randomRequest(t *rapid.T) map[string]string {
	out := map[string]string{}
	raw := rapid.SampledFrom([]string{
		"", "", "", `"ips":["10.20.0.9"]`, `"ips":["10.20.0.3","fd20::3"]`, `"ips":["fd20::9"]`, `"mac":"02:00:00:00:00:01"`, `"mac":"0a:58:0a:14:00:03"`,
		`"ipam-claim-reference":"vm"`, `"ipam-claim-reference":"vm2"`, `"ipam-claim-reference":"vm","mac":"02:00:00:00:00:01"`, `"ips":["10.20.0.1"]`,
	}).Draw(t, "primary")
	if raw != "" {
		out = primaryRequest(raw)
	}
	if raw := rapid.SampledFrom([]string{"", "phys", "phys,phys"}).Draw(t, "secondary"); raw != "" {
		out[network.AnnotationNetworks] = raw
	}
	return out
}

func (s *sim) pods() []corev1.Pod {
	s.t.Helper()
	var l corev1.PodList
	s.must(s.api.List(s.ctx, &l))
	return l.Items
}

func (s *sim) claims() []ipamclaimv1.IPAMClaim {
	s.t.Helper()
	var l ipamclaimv1.IPAMClaimList
	s.must(s.api.List(s.ctx, &l))
	return l.Items
}

func (s *sim) anyPod(t *rapid.T) *corev1.Pod {
	if all := s.pods(); len(all) > 0 {
		return &all[rapid.IntRange(0, len(all)-1).Draw(t, "index")]
	}
	return nil
}

// checkInvariants checks the invariants in the API.
func (s *sim) checkInvariants(t *rapid.T) {
	type use struct{ pod, claim string }
	held := map[string][]use{} // by network and resource
	entries := map[string]network.PodNetworks{}
	for _, p := range s.pods() {
		nets, err := network.ParsePodNetworks(p.Annotations[network.AnnotationPodNetworks])
		if err != nil {
			t.Fatal(err)
		}
		entries[p.Namespace+"/"+p.Name] = nets
		claim := ""
		if r, _ := kube.ParseDefault(p.Annotations[network.AnnotationDefaultNetwork]); r.Claim != "" {
			claim = p.Namespace + "/" + r.Claim
		}
		for key, n := range nets {
			name := strings.Split(key, "/")[1]
			u := use{p.Namespace + "/" + p.Name + " " + key, claim}
			if name != "net" {
				u.claim = ""
			}
			for _, ip := range n.IPs {
				held[name+" "+ip.Addr().String()] = append(held[name+" "+ip.Addr().String()], u)
			}
			held[name+" "+n.MAC] = append(held[name+" "+n.MAC], u)
			if name == "net" {
				id := fmt.Sprintf("tunnel %d", n.TunnelID)
				if held[id] = append(held[id], use{u.pod, u.pod}); n.TunnelID < firstTunnel {
					t.Fatalf("%s has tunnel id %d", u.pod, n.TunnelID)
				}
			}
		}
	}
	kept := map[string]string{}
	for _, c := range s.claims() {
		for _, ip := range c.Status.IPs {
			resource := "net " + netip.MustParsePrefix(ip).Addr().String()
			if other := kept[resource]; other != "" {
				t.Fatalf("claims %s and %s have %s", other, c.Name, resource)
			}
			kept[resource] = c.Namespace + "/" + c.Name
			for _, u := range held[resource] {
				if u.claim != kept[resource] {
					t.Fatalf("%s has %s of claim %s", u.pod, resource, kept[resource])
				}
			}
		}
	}
	for resource, users := range held {
		for _, u := range users[1:] {
			if u.claim == "" || u.claim != users[0].claim || strings.HasPrefix(resource, "tunnel") {
				t.Fatalf("%s is assigned to %v", resource, users)
			}
		}
	}
	free := 0
	for _, last := range []string{"1", "2", "3", "12", "13", "14"} {
		ip := netip.MustParseAddr("10.20.0." + last)
		_, claimed := kept["net "+ip.String()]
		if len(held["net "+ip.String()]) == 0 && !claimed && len(held["net "+network.MAC(ip)]) == 0 {
			free++
		}
	}
	for _, p := range s.pods() {
		if _, ok := entries[p.Namespace+"/"+p.Name][p.Namespace+"/net"]; ok {
			continue
		}
		r, _ := kube.ParseDefault(p.Annotations[network.AnnotationDefaultNetwork])
		switch {
		case len(r.IPs) == 0 && r.MAC == "" && r.Claim == "" && free > 0:
			t.Fatalf("pod %s/%s has no address although %d are free", p.Namespace, p.Name, free)
		case r.MAC != "" && r.Claim == "" && len(held["net "+r.MAC]) == 0 && free > 0:
			t.Fatalf("pod %s/%s has no address although its MAC is free", p.Namespace, p.Name)
		case len(r.IPs) > 0 && r.IPs[0].Addr().String() == "10.20.0.9" && len(held["net 10.20.0.9"]) == 0 && len(held["net "+network.MAC(r.IPs[0].Addr())]) == 0:
			t.Fatalf("pod %s/%s has no address although 10.20.0.9 and its MAC are free", p.Namespace, p.Name)
		}
	}
}

// Applying Diff reaches the desired state: a second Diff is empty, and entries of
// other writers stay unchanged.
func TestDiffApply(t *testing.T) {
	entry := rapid.Custom(func(t *rapid.T) network.PodNetwork {
		n := network.PodNetwork{MAC: "02:00:00:00:00:01", TunnelID: rapid.IntRange(0, 3).Draw(t, "tunnel")}
		for i := range rapid.IntRange(0, 2).Draw(t, "addresses") {
			n.IPs = append(n.IPs, prefixes("10.20.0.9/24", "fd20::9/64")[i])
		}
		return n
	})
	entries := rapid.MapOf(rapid.SampledFrom([]string{"a/x", "a/y", "a/y/1"}), entry)
	rapid.Check(t, func(t *rapid.T) {
		want, have := State{Entries: entries.Draw(t, "want")}, State{Entries: entries.Draw(t, "have")}
		old, err := merge(`{"default":{"a":1},"b/z":[]}`, Op{Set: have.Entries})
		if err != nil {
			t.Fatal(err)
		}
		value := old
		for _, op := range Diff(want, have) {
			if value, err = merge(value, op); err != nil {
				t.Fatal(err)
			}
		}
		got := entriesOf(value)
		delete(got, "b/z")
		if ops := Diff(want, State{Entries: got}); len(ops) > 0 {
			t.Fatalf("remaining operation %s: %s", ops[0], value)
		}
		var raw map[string]json.RawMessage
		if err := json.Unmarshal([]byte(value), &raw); err != nil || string(raw["default"]) != `{"a":1}` || string(raw["b/z"]) != "[]" {
			t.Fatalf("entries of other writers changed: %s", value)
		}
	})
}

// The patch contains the old value and the pod's uid.
func TestAnnotationPatch(t *testing.T) {
	op := Op{Set: network.PodNetworks{"a/net": {IPs: prefixes("10.20.0.9/24"), MAC: "02:00:00:00:00:01"}}}
	const entry = `"a/net":{"ip_addresses":["10.20.0.9/24"],"mac_address":"02:00:00:00:00:01","ip_address":"10.20.0.9/24"}`
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		want        []string
	}{
		{"no annotations", nil, []string{`{"op":"test","path":"/metadata/annotations","value":null}`, `{"op":"add","path":"/metadata/annotations","value":{"k8s.ovn.org/pod-networks":`}},
		{"other annotations", map[string]string{"x": "y"}, []string{
			`{"op":"test","path":"/metadata/annotations/k8s.ovn.org~1pod-networks","value":null}`, `{"op":"add","path":"/metadata/annotations/k8s.ovn.org~1pod-networks"`,
		}},
		{"entry of the zone", map[string]string{network.AnnotationPodNetworks: `{"default":{"a":1}}`}, []string{
			`{"op":"test","path":"/metadata/annotations/k8s.ovn.org~1pod-networks","value":"{\"default\":{\"a\":1}}"}`, `\"default\":{\"a\":1}`,
		}},
		{"malformed", map[string]string{network.AnnotationPodNetworks: `{`}, []string{`"value":"{"}`, `"op":"replace"`}},
		{"null", map[string]string{network.AnnotationPodNetworks: `null`}, []string{`"value":"null"}`, `"op":"replace"`}},
	} {
		pod := &corev1.Pod{}
		pod.UID, pod.Annotations = "u", tt.annotations
		got, err := annotationPatch(pod, op)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range append(tt.want, `{"op":"test","path":"/metadata/uid","value":"u"}`, strings.ReplaceAll(entry, `"`, `\"`)) {
			if !strings.Contains(string(got), part) {
				t.Errorf("%s: %s does not contain %s", tt.name, got, part)
			}
		}
	}
	layer2 := Op{Label: true, Set: network.PodNetworks{"a/net": {IPs: prefixes("10.20.0.9/24"), MAC: "02:00:00:00:00:01", TunnelID: 9}}}
	for _, tt := range []struct {
		labels map[string]string
		want   string
	}{
		{nil, `{"op":"test","path":"/metadata/labels","value":null},{"op":"add","path":"/metadata/labels","value":{"k8s.ovn.org/layer2-pod":""}}]`},
		{map[string]string{}, `{"op":"add","path":"/metadata/labels/k8s.ovn.org~1layer2-pod","value":""}]`},
		{map[string]string{network.LabelLayer2Pod: ""}, ""},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Labels: tt.labels}}
		got, err := annotationPatch(pod, layer2)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(string(got), tt.want) || strings.Contains(string(got), "labels") != (tt.want != "") {
			t.Errorf("labels %v: %s", tt.labels, got)
		}
	}
	pod := &corev1.Pod{}
	pod.Annotations = map[string]string{network.AnnotationPodNetworks: "{" + entry + "}"}
	if got, err := annotationPatch(pod, op); got != nil || err != nil {
		t.Errorf("no change: patch %s, %v, want none", got, err)
	}
}
