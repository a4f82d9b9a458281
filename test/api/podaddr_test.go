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

// newPodWorld is a world that has claims, too.
func newPodWorld(t testing.TB) world {
	t.Helper()
	w := newWorld(t)
	if err := ipamclaimv1.AddToScheme(w.Scheme()); err != nil {
		t.Fatal(err)
	}
	return w
}

// paths are the writes to paths that contain part.
func (w *writes) paths(part string) map[string]int {
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

// sharedNAD makes a hand-written NAD; conf lacks what every one has.
func (w world) sharedNAD(ns, name, networkName, conf string) {
	w.t.Helper()
	n := &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	n.Spec.Config = fmt.Sprintf(`{"cniVersion":"1.1.0","type":"ovn-k8s-cni-overlay","name":%q,"netAttachDefName":"%s/%s",%s}`, networkName, ns, name, conf)
	w.create(n)
}

// scheduled makes a pod that has a node, and asks for what the annotations say.
func (w world) scheduled(ns, name string, annotations map[string]string) *corev1.Pod {
	w.t.Helper()
	return w.scheduledOn("nowhere", ns, name, annotations)
}

func (w world) scheduledOn(node, ns, name string, annotations map[string]string) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	w.create(p)
	w.t.Cleanup(func() { w.removeNow(p) }) // there is no kubelet to end it, and its namespace waits for it
	return p
}

// removeNow deletes a pod as its kubelet would, of which there is none.
func (w world) removeNow(p *corev1.Pod) {
	w.t.Helper()
	if err := client.IgnoreNotFound(w.Delete(w.ctx, p, client.GracePeriodSeconds(0))); err != nil {
		w.t.Fatal(err)
	}
}

func primaryRequest(raw string) map[string]string {
	return map[string]string{network.AnnotationDefaultNetwork: `[{"name":"default","namespace":"bulkhead-system",` + raw + `}]`}
}

// entry is what the pod's annotation says under key.
func (w world) entry(p *corev1.Pod, key string) (network.PodNetwork, error) {
	if err := w.Get(w.ctx, client.ObjectKeyFromObject(p), p); err != nil {
		return network.PodNetwork{}, err
	}
	nets, err := network.ParsePodNetworks(p.Annotations[network.AnnotationPodNetworks])
	if err != nil {
		return network.PodNetwork{}, err
	}
	n, ok := nets[key]
	if !ok {
		return n, fmt.Errorf("pod %s/%s has nothing on %s: %q", p.Namespace, p.Name, key, p.Annotations[network.AnnotationPodNetworks])
	}
	return n, nil
}

// given waits until the pod has an entry, and checks its addresses if any are
// named.
func (w world) given(p *corev1.Pod, key string, ips ...string) network.PodNetwork {
	w.t.Helper()
	var n network.PodNetwork
	eventually(w.t, func() (err error) {
		n, err = w.entry(p, key)
		return err
	})
	if got := network.JoinCIDRs(n.IPs); len(ips) > 0 && got != strings.Join(ips, ",") {
		w.t.Errorf("pod %s/%s has %s on %s, want %v", p.Namespace, p.Name, got, key, ips)
	}
	return n
}

// refused waits for the event that says why a pod has no addresses.
func (w world) refused(p *corev1.Pod, text ...string) {
	w.t.Helper()
	eventually(w.t, func() error {
		var l corev1.EventList
		if err := w.List(w.ctx, &l, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		said := "none"
		for _, e := range l.Items {
			if e.InvolvedObject.UID != p.UID || e.Reason != "ErrorAllocatingPod" || e.Type != corev1.EventTypeWarning {
				continue
			}
			if said = e.Message; !slices.ContainsFunc(text, func(s string) bool { return !strings.Contains(said, s) }) {
				return nil
			}
		}
		return fmt.Errorf("pod %s/%s has no event with %q; the last: %s", p.Namespace, p.Name, text, said)
	})
}

func newClaim(ns, name, networkName string) *ipamclaimv1.IPAMClaim {
	return &ipamclaimv1.IPAMClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: ipamclaimv1.IPAMClaimSpec{Network: networkName, Interface: "ovn-udn1"}}
}

// Pods get addresses on a primary and a secondary network, beside what the
// zone writes at the same moment; a restart changes nothing.
func TestPodAddresses(t *testing.T) {
	needAPI(t)
	w := newPodWorld(t)
	c := startController(t, testConfig(t))
	defer w.remove(w.namespace("padr", true))
	w.sharedNAD("padr", "net", "padr-net", `"topology":"layer2","role":"primary","subnets":"10.120.0.0/24,fd20:120::/64","reservedSubnets":"10.120.0.64/28"`)
	w.sharedNAD("padr", "phys", "padr-phys", `"topology":"localnet","role":"secondary","physicalNetworkName":"phys","subnets":"192.168.7.0/24","excludeSubnets":"192.168.7.0/28"`)
	var pods []*corev1.Pod
	for i := range 10 {
		p := w.scheduled("padr", fmt.Sprintf("p%d", i), map[string]string{network.AnnotationNetworks: "phys@eth1"})
		pods = append(pods, p)
		w.zoneWrites(p)
	}
	seen := map[string]string{}
	before := map[string]string{}
	for _, p := range pods {
		primary, secondary := w.given(p, "padr/net"), w.given(p, "padr/phys")
		if len(primary.IPs) != 2 || len(primary.Gateways) != 2 || primary.Role != network.RolePrimary || primary.TunnelID < 10 {
			t.Errorf("primary %+v", primary)
		}
		if len(secondary.IPs) != 1 || len(secondary.Gateways)+len(secondary.Routes)+secondary.TunnelID != 0 || secondary.IPs[0].Addr().As4()[3] < 16 {
			t.Errorf("secondary %+v", secondary)
		}
		for _, what := range []string{primary.IPs[0].String(), primary.IPs[1].String(), primary.MAC, fmt.Sprint(primary.TunnelID), secondary.IPs[0].String(), secondary.MAC} {
			if other, taken := seen[what]; taken {
				t.Errorf("%s and %s have %s", other, p.Name, what)
			}
			seen[what] = p.Name
		}
		if n, err := w.entry(p, network.DefaultName); err != nil || n.Role != network.RoleInfrastructureLocked {
			t.Errorf("the zone's entry: %+v, %v", n, err)
		}
		before[p.Name] = p.Annotations[network.AnnotationPodNetworks]
	}
	c.stop()
	second := startController(t, testConfig(t))
	probe := w.scheduled("padr", "probe", primaryRequest(`"ips":["10.120.0.70"],"mac":"02:00:00:00:00:70"`))
	if n := w.given(probe, "padr/net"); n.IPs[0].String() != "10.120.0.70/24" || n.MAC != "02:00:00:00:00:70" {
		t.Errorf("asked for an address and a MAC, got %+v", n)
	}
	second.stop()
	for path, n := range second.paths("/pods/") {
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

// zoneWrites adds the cluster default network's entry as a zone does: with a
// patch that names what it replaces, again until nobody was in between.
func (w world) zoneWrites(p *corev1.Pod) {
	w.t.Helper()
	path := "/metadata/annotations/" + strings.ReplaceAll(network.AnnotationPodNetworks, "/", "~1")
	const entry = `"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03","role":"infrastructure-locked"}`
	eventually(w.t, func() error {
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

// stale is a cache that has not seen the last writes to a pod.
type stale struct{ *corev1.Pod }

func (s stale) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	s.DeepCopyInto(obj.(*corev1.Pod))
	return nil
}

func (s stale) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("nobody lists")
}

// What the zone wrote a moment ago is not lost, whatever the cache says; and a
// pod of the same name is not annotated for another.
func TestPodAnnotationRace(t *testing.T) {
	needAPI(t)
	w := newPodWorld(t)
	defer w.remove(w.namespace("padr-race", false))
	for name, old := range map[string]map[string]string{"none": nil, "some": {"x": "y"}, "entry": {network.AnnotationPodNetworks: `{"a/b":{}}`}} {
		p := w.scheduled("padr-race", name, old)
		before := p.DeepCopy()
		w.zoneWrites(p)
		kube := &podaddr.Kube{Cache: stale{before}, Live: w, Client: w, Now: time.Now}
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
		w.removeNow(p)
		again := w.scheduled("padr-race", name, nil)
		if err := kube.Apply(w.ctx, []podaddr.Op{op}); err != nil {
			t.Errorf("%s: another pod of the name: %v", name, err)
		}
		if _, err := w.entry(again, "padr-race/net"); err == nil {
			t.Errorf("%s: another pod got the entry", name)
		}
	}
}

// An address that another pod holds is refused with an event, and given when
// that pod goes; so is the last of a subnet.
func TestPodAddressConflicts(t *testing.T) {
	needAPI(t)
	w := newPodWorld(t)
	startController(t, testConfig(t))
	defer w.remove(w.namespace("padr-dup", true))
	w.sharedNAD("padr-dup", "net", "padr-dup-net", `"topology":"layer2","role":"primary","subnets":"10.121.0.0/29"`)
	const key = "padr-dup/net"
	holder := w.scheduled("padr-dup", "holder", primaryRequest(`"ips":["10.121.0.5"],"mac":"02:00:00:00:00:05"`))
	w.given(holder, key, "10.121.0.5/29")
	sameIP := w.scheduled("padr-dup", "same-ip", primaryRequest(`"ips":["10.121.0.5"]`))
	w.refused(sameIP, "10.121.0.5 is held by pod padr-dup/holder", network.AnnotationDefaultNetwork)
	sameMAC := w.scheduled("padr-dup", "same-mac", primaryRequest(`"mac":"02:00:00:00:00:05"`))
	w.refused(sameMAC, "02:00:00:00:00:05 is held by pod padr-dup/holder")
	gateway := w.scheduled("padr-dup", "gateway", primaryRequest(`"ips":["10.121.0.1"]`))
	w.refused(gateway, "10.121.0.1 belongs to the network itself")
	malformed := w.scheduled("padr-dup", "malformed", map[string]string{network.AnnotationNetworks: `[{"name":`})
	w.refused(malformed, network.AnnotationNetworks, "not a JSON list")
	w.given(malformed, key) // what it did not garble it has
	w.removeNow(holder)
	w.given(sameIP, key, "10.121.0.5/29")
	if n := w.given(sameMAC, key); n.MAC != "02:00:00:00:00:05" {
		t.Errorf("the MAC went nowhere: %+v", n)
	}
	w.given(w.scheduled("padr-dup", "last", nil), key)
	more := w.scheduled("padr-dup", "more", nil)
	w.refused(more, "no address of 10.121.0.0/29 is free")
	// A pod that has ended uses nothing any more.
	if err := w.Status().Patch(w.ctx, sameIP, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))); err != nil {
		t.Fatal(err)
	}
	w.given(more, key, "10.121.0.5/29")
}

// A claim's addresses outlive its pods, serve two while a virtual machine
// migrates, and are free when it is deleted.
func TestIPAMClaim(t *testing.T) {
	needAPI(t)
	w := newPodWorld(t)
	first := startController(t, testConfig(t))
	defer w.remove(w.namespace("padr-vm", true))
	w.sharedNAD("padr-vm", "net", "padr-vm-net", `"topology":"layer2","role":"primary","subnets":"10.122.0.0/24,fd20:122::/64","allowPersistentIPs":true`)
	w.sharedNAD("padr-vm", "none", "padr-vm-none", `"topology":"layer2","role":"secondary","subnets":"10.123.0.0/24"`)
	const key = "padr-vm/net"
	ips := []string{"10.122.0.3/24", "fd20:122::3/64"}
	names := primaryRequest(`"ipam-claim-reference":"vm"`)
	source := w.scheduled("padr-vm", "source", names)
	w.refused(source, "IPAMClaim vm", "does not exist in namespace padr-vm: create it with spec.network padr-vm-net")
	claim := newClaim("padr-vm", "vm", "padr-vm-net")
	w.create(claim)
	w.given(source, key, ips...)
	status := func(owner string) {
		t.Helper()
		eventually(t, func() error {
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
	target := w.scheduled("padr-vm", "target", names)
	n := w.given(target, key, ips...)
	if m := w.given(source, key, ips...); m.MAC != n.MAC || m.TunnelID == n.TunnelID {
		t.Errorf("source %+v, target %+v", m, n)
	}
	status("target")
	w.removeNow(source)
	w.removeNow(target)
	status("")
	// Nobody gets them meanwhile, nor from the next leader.
	first.stop()
	second := startController(t, testConfig(t))
	other := w.scheduled("padr-vm", "other", primaryRequest(`"ips":["10.122.0.3"]`))
	w.refused(other, "10.122.0.3 is held by IPAMClaim padr-vm/vm")
	again := w.scheduled("padr-vm", "again", names)
	w.given(again, key, ips...)
	status("again")
	if n := second.paths("/ipamclaims/"); len(n) != 1 {
		t.Errorf("writes to claims: %v", n)
	}
	// Where nothing is kept, a claim is refused.
	w.create(newClaim("padr-vm", "no", "padr-vm_none"))
	refused := w.scheduled("padr-vm", "refused", map[string]string{network.AnnotationNetworks: `[{"name":"none","ipam-claim-reference":"no"}]`})
	w.refused(refused, "the network keeps no addresses", "remove ipam-claim-reference")
	w.given(refused, key)
	// The claim goes before its pod.
	w.remove(claim)
	eventually(t, func() error {
		err := w.Get(w.ctx, client.ObjectKeyFromObject(claim), claim)
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the claim is still there: %w", err)
		}
		return nil
	})
	w.removeNow(again)
	w.given(other, key)
	if n, err := w.entry(other, key); err != nil || n.IPs[0].String() != ips[0] {
		t.Errorf("who waited has %+v, %v", n, err)
	}
}
