// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	ipamclaimv1 "github.com/k8snetworkplumbingwg/ipamclaims/pkg/crd/ipamclaims/v1alpha1"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/cluster/podaddr"
	"bulkhead/pkg/network"
)

// newPodFixture is newFixture with IPAMClaims.
func newPodFixture(t testing.TB) fixture {
	t.Helper()
	w := newFixture(t)
	if err := ipamclaimv1.AddToScheme(w.Scheme()); err != nil {
		t.Fatal(err)
	}
	return w
}

// matching returns the writes to paths that contain part.
func (w *writes) matching(part string) map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]int{}
	for k, n := range w.by {
		if strings.Contains(k, part) {
			out[k] = n
		}
	}
	return out
}

// createNADOf creates a hand-written NAD of a network; conf is its configuration
// without the common fields.
func (w fixture) createNADOf(ns, name, networkName, conf string) {
	w.t.Helper()
	n := &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	n.Spec.Config = fmt.Sprintf(`{"cniVersion":"1.1.0","type":"ovn-k8s-cni-overlay","name":%q,"netAttachDefName":"%s/%s",%s}`, networkName, ns, name, conf)
	w.create(n)
}

// createPod creates a pod with the annotations, bound to a node.
func (w fixture) createPod(ns, name string, annotations map[string]string) *corev1.Pod {
	w.t.Helper()
	return w.createPodOn("nowhere", ns, name, annotations)
}

func (w fixture) createPodOn(node, ns, name string, annotations map[string]string) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	w.create(p)
	w.t.Cleanup(func() { w.deletePodNow(p) }) // there is no kubelet to delete it, and its namespace waits for it
	return p
}

// deletePodNow deletes a pod without a grace period: there is no kubelet.
func (w fixture) deletePodNow(p *corev1.Pod) {
	w.t.Helper()
	if err := client.IgnoreNotFound(w.Delete(w.ctx, p, client.GracePeriodSeconds(0))); err != nil {
		w.t.Fatal(err)
	}
}

func primaryRequest(raw string) map[string]string {
	return map[string]string{network.AnnotationDefaultNetwork: `[{"name":"default","namespace":"bulkhead-system",` + raw + `}]`}
}

// entry returns the entry of the pod's annotation under key.
func (w fixture) entry(p *corev1.Pod, key string) (network.PodNetwork, error) {
	if err := w.Get(w.ctx, client.ObjectKeyFromObject(p), p); err != nil {
		return network.PodNetwork{}, err
	}
	nets, err := network.ParsePodNetworks(p.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		return network.PodNetwork{}, err
	}
	n, ok := nets[key]
	if !ok {
		return n, fmt.Errorf("pod %s/%s has no entry for %s: %q", p.Namespace, p.Name, key, p.Annotations[network.AnnotationPodNetworks])
	}
	return n, nil
}

// waitEntry waits until the pod has an entry, and checks its addresses if the
// caller gives any.
func (w fixture) waitEntry(p *corev1.Pod, key string, ips ...string) network.PodNetwork {
	w.t.Helper()
	var n network.PodNetwork
	Eventually(w.t, func() (err error) {
		n, err = w.entry(p, key)
		return err
	})
	if got := network.JoinCIDRs(n.IPs); len(ips) > 0 && got != strings.Join(ips, ",") {
		w.t.Errorf("pod %s/%s has %s on %s, want %v", p.Namespace, p.Name, got, key, ips)
	}
	if _, labelled := p.Labels[network.LabelLayer2Pod]; n.TunnelID != 0 && !labelled {
		w.t.Errorf("pod %s/%s with tunnel id %d on %s has labels %v", p.Namespace, p.Name, n.TunnelID, key, p.Labels)
	}
	return n
}

// waitRefused waits for the event that says why a pod has no addresses.
func (w fixture) waitRefused(p *corev1.Pod, text ...string) {
	w.t.Helper()
	Eventually(w.t, func() error {
		var l corev1.EventList
		if err := w.List(w.ctx, &l, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		last := "none"
		for _, e := range l.Items {
			if e.InvolvedObject.UID != p.UID || e.Reason != "ErrorAllocatingPod" || e.Type != corev1.EventTypeWarning {
				continue
			}
			if last = e.Message; !slices.ContainsFunc(text, func(s string) bool { return !strings.Contains(last, s) }) {
				return nil
			}
		}
		return fmt.Errorf("pod %s/%s has no event with %q; the last: %s", p.Namespace, p.Name, text, last)
	})
}

func newClaim(ns, name, networkName string) *ipamclaimv1.IPAMClaim {
	return &ipamclaimv1.IPAMClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: ipamclaimv1.IPAMClaimSpec{Network: networkName, Interface: "ovn-udn1"}}
}

// Pods get addresses on a primary and a secondary network while the zone writes
// its own entry; a restart of the controller changes nothing.
func TestPodAddresses(t *testing.T) {
	needAPI(t)
	w := newPodFixture(t)
	c := startController(t, testConfig(t))
	defer w.remove(w.namespace("padr", true))
	w.createNADOf("padr", "net", "padr-net", `"topology":"layer2","role":"primary","subnets":"10.120.0.0/24,fd20:120::/64","reservedSubnets":"10.120.0.64/28"`)
	w.createNADOf("padr", "phys", "padr-phys", `"topology":"localnet","role":"secondary","physicalNetworkName":"phys","subnets":"192.168.7.0/24","excludeSubnets":"192.168.7.0/28"`)
	var pods []*corev1.Pod
	for i := range 10 {
		p := w.createPod("padr", fmt.Sprintf("p%d", i), map[string]string{network.AnnotationNetworks: "phys@eth1"})
		pods = append(pods, p)
		w.writeZoneEntry(p)
	}
	seen := map[string]string{}
	before := map[string]string{}
	for _, p := range pods {
		primary, secondary := w.waitEntry(p, "padr/net"), w.waitEntry(p, "padr/phys")
		if len(primary.IPs) != 2 || len(primary.Gateways) != 2 || primary.Role != network.RolePrimary || primary.TunnelID < 10 {
			t.Errorf("primary %+v", primary)
		}
		if len(secondary.IPs) != 1 || len(secondary.Gateways)+len(secondary.Routes)+secondary.TunnelID != 0 || secondary.IPs[0].Addr().As4()[3] < 16 {
			t.Errorf("secondary %+v", secondary)
		}
		for _, value := range []string{primary.IPs[0].String(), primary.IPs[1].String(), primary.MAC, fmt.Sprint(primary.TunnelID), secondary.IPs[0].String(), secondary.MAC} {
			if other, taken := seen[value]; taken {
				t.Errorf("pods %s and %s share %s", other, p.Name, value)
			}
			seen[value] = p.Name
		}
		if n, err := w.entry(p, network.DefaultName); err != nil || n.Role != network.RoleInfrastructureLocked {
			t.Errorf("the zone's entry: %+v, %v", n, err)
		}
		before[p.Name] = p.Annotations[network.AnnotationPodNetworks]
	}
	c.stop()
	second := startController(t, testConfig(t))
	probe := w.createPod("padr", "probe", primaryRequest(`"ips":["10.120.0.70"],"mac":"02:00:00:00:00:70"`))
	if n := w.waitEntry(probe, "padr/net"); n.IPs[0].String() != "10.120.0.70/24" || n.MAC != "02:00:00:00:00:70" {
		t.Errorf("requested an address and a MAC, got %+v", n)
	}
	second.stop()
	for path, n := range second.matching("/pods/") {
		if !strings.HasSuffix(path, "/padr/pods/probe") {
			t.Errorf("%d writes to %s after a restart", n, path)
		}
	}
	for _, p := range pods {
		if _, err := w.entry(p, "padr/net"); err != nil || p.Annotations[network.AnnotationPodNetworks] != before[p.Name] {
			t.Errorf("%s changed: %v, %s", p.Name, err, p.Annotations[network.AnnotationPodNetworks])
		}
	}
}

// writeZoneEntry adds the cluster default network's entry as a zone does: with a
// patch that tests the old value, retried on a conflict.
func (w fixture) writeZoneEntry(p *corev1.Pod) {
	w.t.Helper()
	path := "/metadata/annotations/" + strings.ReplaceAll(network.AnnotationPodNetworks, "/", "~1")
	const entry = `"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03","role":"infrastructure-locked"}`
	Eventually(w.t, func() error {
		if err := w.Get(w.ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		patch := fmt.Sprintf(`[{"op":"test","path":%q,"value":null},{"op":"add","path":%q,"value":%q}]`, path, path, "{"+entry+"}")
		if old, had := p.Annotations[network.AnnotationPodNetworks]; p.Annotations == nil {
			const root = "/metadata/annotations"
			patch = fmt.Sprintf(`[{"op":"test","path":%q,"value":null},{"op":"add","path":%q,"value":{%q:%q}}]`, root, root, network.AnnotationPodNetworks, "{"+entry+"}")
		} else if had {
			patch = fmt.Sprintf(`[{"op":"test","path":%q,"value":%q},{"op":"replace","path":%q,"value":%q}]`, path, old, path, "{"+entry+","+strings.TrimPrefix(old, "{"))
		}
		return w.Patch(w.ctx, p.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte(patch)))
	})
}

// staleCache is a cache without the last writes to a pod.
type staleCache struct{ *corev1.Pod }

func (s staleCache) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	s.DeepCopyInto(obj.(*corev1.Pod))
	return nil
}

func (s staleCache) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("unexpected List")
}

// The controller keeps an entry that the zone wrote and its cache lacks, and does
// not annotate a new pod of the same name.
func TestPodAnnotationRace(t *testing.T) {
	needAPI(t)
	w := newPodFixture(t)
	defer w.remove(w.namespace("padr-race", false))
	for name, old := range map[string]map[string]string{"none": nil, "some": {"x": "y"}, "entry": {network.AnnotationPodNetworks: `{"a/b":{}}`}} {
		p := w.createPod("padr-race", name, old)
		before := p.DeepCopy()
		w.writeZoneEntry(p)
		kube := &podaddr.Kube{Cache: staleCache{before}, Live: w, Client: w, Now: time.Now}
		op := podaddr.Op{Kind: podaddr.Annotate, Pod: podaddr.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
			Set: network.PodNetworks{"padr-race/net": {MAC: "02:00:00:00:00:01"}}}
		if err := kube.Apply(w.ctx, []podaddr.Op{op}); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{network.DefaultName, "padr-race/net"} {
			if _, err := w.entry(p, key); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		w.deletePodNow(p)
		again := w.createPod("padr-race", name, nil)
		if err := kube.Apply(w.ctx, []podaddr.Op{op}); err != nil {
			t.Errorf("%s: apply for a pod that was recreated: %v", name, err)
		}
		if err := w.Get(w.ctx, client.ObjectKeyFromObject(again), again); err != nil || len(again.Annotations) > 0 {
			t.Errorf("%s: the recreated pod has annotations %v, %v", name, again.Annotations, err)
		}
	}
}

// A pod that requests another pod's address gets an event, and the address when
// the other pod is deleted; the same holds for the last address of a subnet.
func TestPodAddressConflicts(t *testing.T) {
	needAPI(t)
	w := newPodFixture(t)
	startController(t, testConfig(t))
	defer w.remove(w.namespace("padr-dup", true))
	w.createNADOf("padr-dup", "net", "padr-dup-net", `"topology":"layer2","role":"primary","subnets":"10.121.0.0/29"`)
	const key = "padr-dup/net"
	holder := w.createPod("padr-dup", "holder", primaryRequest(`"ips":["10.121.0.5"],"mac":"02:00:00:00:00:05"`))
	w.waitEntry(holder, key, "10.121.0.5/29")
	sameIP := w.createPod("padr-dup", "same-ip", primaryRequest(`"ips":["10.121.0.5"]`))
	w.waitRefused(sameIP, "10.121.0.5 is held by pod padr-dup/holder", network.AnnotationDefaultNetwork)
	sameMAC := w.createPod("padr-dup", "same-mac", primaryRequest(`"mac":"02:00:00:00:00:05"`))
	w.waitRefused(sameMAC, "02:00:00:00:00:05 is held by pod padr-dup/holder")
	gateway := w.createPod("padr-dup", "gateway", primaryRequest(`"ips":["10.121.0.1"]`))
	w.waitRefused(gateway, "10.121.0.1 belongs to the network itself")
	malformed := w.createPod("padr-dup", "malformed", map[string]string{network.AnnotationNetworks: `[{"name":`})
	w.waitRefused(malformed, network.AnnotationNetworks, "not a JSON list")
	w.waitEntry(malformed, key) // the primary network does not depend on the malformed annotation
	w.deletePodNow(holder)
	w.waitEntry(sameIP, key, "10.121.0.5/29")
	if n := w.waitEntry(sameMAC, key); n.MAC != "02:00:00:00:00:05" {
		t.Errorf("the pod did not get the released MAC: %+v", n)
	}
	w.waitEntry(w.createPod("padr-dup", "last", nil), key)
	more := w.createPod("padr-dup", "more", nil)
	w.waitRefused(more, "no address of 10.121.0.0/29 is free")
	// A completed pod releases its address.
	if err := w.Status().Patch(w.ctx, sameIP, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))); err != nil {
		t.Fatal(err)
	}
	w.waitEntry(more, key, "10.121.0.5/29")
}

// A claim's addresses outlive its pods, are shared by two pods while a virtual
// machine migrates, and are released when the claim is deleted.
func TestIPAMClaim(t *testing.T) {
	needAPI(t)
	w := newPodFixture(t)
	first := startController(t, testConfig(t))
	defer w.remove(w.namespace("padr-vm", true))
	w.createNADOf("padr-vm", "net", "padr-vm-net", `"topology":"layer2","role":"primary","subnets":"10.122.0.0/24,fd20:122::/64","allowPersistentIPs":true`)
	w.createNADOf("padr-vm", "none", "padr-vm-none", `"topology":"layer2","role":"secondary","subnets":"10.123.0.0/24"`)
	const key = "padr-vm/net"
	ips := []string{"10.122.0.3/24", "fd20:122::3/64"}
	names := primaryRequest(`"ipam-claim-reference":"vm"`)
	source := w.createPod("padr-vm", "source", names)
	w.waitRefused(source, "IPAMClaim vm", "does not exist in namespace padr-vm: create it with spec.network padr-vm-net")
	claim := newClaim("padr-vm", "vm", "padr-vm-net")
	w.create(claim)
	w.waitEntry(source, key, ips...)
	status := func(owner string) {
		t.Helper()
		Eventually(t, func() error {
			if err := w.Get(w.ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
				return err
			}
			s, has := claim.Status, ""
			if s.OwnerPod != nil {
				has = s.OwnerPod.Name
			}
			if !slices.Equal(s.IPs, ips) || has != owner || len(s.Conditions) != 1 || s.Conditions[0].Status != metav1.ConditionTrue {
				return fmt.Errorf("status %+v", s)
			}
			return nil
		})
	}
	status("source")
	target := w.createPod("padr-vm", "target", names)
	n := w.waitEntry(target, key, ips...)
	if m := w.waitEntry(source, key, ips...); m.MAC != n.MAC || m.TunnelID == n.TunnelID {
		t.Errorf("source %+v, target %+v", m, n)
	}
	status("target")
	w.deletePodNow(source)
	w.deletePodNow(target)
	status("")
	// No other pod gets the claim's addresses, not from the next leader either.
	first.stop()
	second := startController(t, testConfig(t))
	other := w.createPod("padr-vm", "other", primaryRequest(`"ips":["10.122.0.3"]`))
	w.waitRefused(other, "10.122.0.3 is held by IPAMClaim padr-vm/vm")
	again := w.createPod("padr-vm", "again", names)
	w.waitEntry(again, key, ips...)
	status("again")
	if n := second.matching("/ipamclaims/"); len(n) != 1 {
		t.Errorf("writes to claims: %v", n)
	}
	// A network without persistent addresses refuses claims.
	w.create(newClaim("padr-vm", "no", "padr-vm_none"))
	refused := w.createPod("padr-vm", "refused", map[string]string{network.AnnotationNetworks: `[{"name":"none","ipam-claim-reference":"no"}]`})
	w.waitRefused(refused, "the network has no persistent addresses", "remove ipam-claim-reference")
	w.waitEntry(refused, key)
	// The claim is deleted before its pod.
	w.remove(claim)
	Eventually(t, func() error {
		err := w.Get(w.ctx, client.ObjectKeyFromObject(claim), claim)
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the claim still exists: %w", err)
		}
		return nil
	})
	w.deletePodNow(again)
	w.waitEntry(other, key)
	if n, err := w.entry(other, key); err != nil || n.IPs[0].String() != ips[0] {
		t.Errorf("the waiting pod has %+v, %v", n, err)
	}
}
