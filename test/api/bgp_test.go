// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	frrv1 "github.com/metallb/frr-k8s/api/v1beta1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/bgp"
	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

const frrNamespace = "frr-k8s-system"

// installFRR installs the CustomResourceDefinition of FRRConfigurations, from the module of
// frr-k8s, and its namespace, until the test ends.
func (w fixture) installFRR() {
	w.t.Helper()
	w.installFRRCRD("frrconfigurations")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: frrNamespace}}
	if err := w.Create(w.ctx, ns); err != nil && !strings.Contains(err.Error(), "exists") {
		w.t.Fatal(err)
	}
}

// installFRRCRD installs one CustomResourceDefinition from the module of frr-k8s.
func (w fixture) installFRRCRD(resource string) {
	w.t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/metallb/frr-k8s").Output()
	if err != nil {
		w.t.Fatalf("find the module of frr-k8s: %v", err)
	}
	if err := env.Install(w.ctx, filepath.Join(strings.TrimSpace(string(dir)), "config/crd/bases/frrk8s.metallb.io_"+resource+".yaml")); err != nil {
		w.t.Fatal(err)
	}
}

// uninstallFRR removes it, with all FRRConfigurations.
func (w fixture) uninstallFRR() {
	w.t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	crd.SetName("frrconfigurations.frrk8s.metallb.io")
	w.remove(crd)
	w.waitGone(crd)
}

func newRA(name, target string, selected map[string]string) *udnv1.RouteAdvertisements {
	return &udnv1.RouteAdvertisements{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: udnv1.RouteAdvertisementsSpec{
		TargetVRF: target, Advertisements: []udnv1.AdvertisementType{udnv1.PodNetwork},
		FRRConfigurationSelector: metav1.LabelSelector{MatchLabels: map[string]string{"fabric": "rack"}},
		NetworkSelectors: []udnv1.NetworkSelector{{NetworkSelectionType: udnv1.ClusterUserDefinedNetworks,
			ClusterUserDefinedNetworkSelector: &udnv1.ClusterUserDefinedNetworkSelector{NetworkSelector: metav1.LabelSelector{MatchLabels: selected}}}},
	}}
}

// newBase returns an FRRConfiguration with an iBGP session of each IP family.
func newBase(name string) *frrv1.FRRConfiguration {
	return &frrv1.FRRConfiguration{
		ObjectMeta: metav1.ObjectMeta{Namespace: frrNamespace, Name: name, Labels: map[string]string{"fabric": "rack"}},
		Spec: frrv1.FRRConfigurationSpec{BGP: frrv1.BGPConfig{Routers: []frrv1.Router{{ASN: 64512, Neighbors: []frrv1.Neighbor{
			{ASN: 64512, Address: "192.0.2.1"}, {ASN: 64512, Address: "2001:db8::1"},
		}}}}},
	}
}

// generated returns the generated FRRConfigurations by their source.
func (w fixture) generated() (map[string]frrv1.FRRConfiguration, error) {
	var l frrv1.FRRConfigurationList
	if err := w.List(w.ctx, &l, client.InNamespace(frrNamespace)); err != nil {
		return nil, err
	}
	out := map[string]frrv1.FRRConfiguration{}
	for _, c := range l.Items {
		if s, ok := bgp.SourceOf(&c); ok {
			out[s.String()] = c
		}
	}
	return out, nil
}

// waitGenerated waits until exactly these sources have an FRRConfiguration, with these
// prefixes in its first router.
func (w fixture) waitGenerated(what string, want map[string][]string) {
	w.t.Helper()
	Eventually(w.t, func() error {
		have, err := w.generated()
		if err != nil {
			return err
		}
		for source, c := range have {
			prefixes, wanted := want[source]
			if !wanted {
				return fmt.Errorf("%s: FRRConfiguration of %s exists", what, source)
			}
			if len(c.Spec.BGP.Routers) == 0 || !slices.Equal(c.Spec.BGP.Routers[0].Prefixes, prefixes) {
				return fmt.Errorf("%s: FRRConfiguration of %s has %+v, want prefixes %v", what, source, c.Spec.BGP.Routers, prefixes)
			}
		}
		if len(have) != len(want) {
			return fmt.Errorf("%s: %d FRRConfigurations, want %d", what, len(have), len(want))
		}
		return nil
	})
}

// waitAdvertised waits until a NAD says into which VRFs its network is advertised.
func (w fixture) waitAdvertised(ns, name, want string) {
	w.t.Helper()
	Eventually(w.t, func() error {
		if got := w.nad(ns, name).Annotations[network.AnnotationAdvertisedVRFs]; got != want {
			return fmt.Errorf("NAD %s/%s is advertised into %q, want %q", ns, name, got, want)
		}
		return nil
	})
}

// refuseGenerated makes the API server refuse new generated FRRConfigurations, until allow is called.
func (w fixture) refuseGenerated(message string) (allow func()) {
	w.t.Helper()
	const name = "refuse-generated"
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{frrv1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"frrconfigurations"}}}}}},
		Validations: []admissionv1.Validation{{Expression: "!object.metadata.name.startsWith('ovnk-generated-')", Message: message}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}
	w.create(policy)
	w.create(binding)
	waitVerdict(w.t, message, func() error { return w.Create(w.ctx, newBase("ovnk-generated-test"), client.DryRunAll) })
	return func() {
		w.remove(binding)
		w.remove(policy)
	}
}

// From RouteAdvertisements to FRRConfigurations, TransportAccepted and the NAD's annotation:
// without frr-k8s, after its installation, with every input changing, and after a restart.
func TestRouteAdvertisements(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.uninstallFRR()
	cfg := testConfig(t)
	cfg.IDAge = 0
	running := startController(t, cfg)
	var hosts [2][]string
	for i := range hosts {
		_, id := w.createNode(fmt.Sprint("bgp-node-", i))
		var n int
		if _, err := fmt.Sscan(id, &n); err != nil {
			t.Fatal(err)
		}
		hosts[i] = []string{fmt.Sprintf("10.132.%d.0/24", n-1)}
	}
	c := newCUDN("transport", "transport", "10.132.0.0/16")
	c.Labels = map[string]string{"advertise": "yes"}
	c.Spec.Network.Transport = udnv1.TransportOptionNoOverlay
	c.Spec.Network.NoOverlayOptions = &udnv1.NoOverlayOptions{OutboundSNAT: udnv1.SNATEnabled, Routing: udnv1.RoutingUnmanaged}
	ns := w.namespace("transport", true, "team=transport")
	defer w.remove(ns)
	w.create(c)
	defer w.remove(c)
	w.waitCreated(c, "[transport]")
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionFalse, "NoOverlayRouteAdvertisementsIsMissing", "No RouteAdvertisements CR is advertising the pod networks.")
	if got := w.waitConf("transport", "transport", func(network.NetConf) bool { return true }); got.Transport != "no-overlay" || got.OutboundSNAT != "enabled" {
		t.Errorf("NAD: %+v", got)
	}

	// Without frr-k8s.
	ra := newRA("ra-transport", "", c.Labels)
	w.create(ra)
	defer w.remove(ra)
	w.waitCondition(ra, udnv1.ConditionAccepted, metav1.ConditionFalse, "ConfigurationPending", "frr-k8s is not installed")
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionFalse, "NoOverlayRouteAdvertisementsNotAccepted", "RouteAdvertisements CR ra-transport advertises the pod subnets")

	// frr-k8s appears, then the base.
	w.installFRR()
	w.waitCondition(ra, udnv1.ConditionAccepted, metav1.ConditionFalse, "ConfigurationPending", "selects no FRRConfiguration in namespace frr-k8s-system")
	base := newBase("rack")
	w.create(base)
	all := map[string][]string{"ra-transport/rack/bgp-node-0": hosts[0], "ra-transport/rack/bgp-node-1": hosts[1]}
	w.waitGenerated("accepted", all)
	w.waitCondition(ra, udnv1.ConditionAccepted, metav1.ConditionTrue, "Accepted")
	if ra.Status.Status != "Accepted" {
		t.Errorf("status is %q", ra.Status.Status)
	}
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionTrue, "NoOverlayTransportAccepted", "Transport has been configured as 'no-overlay'.")
	w.waitAdvertised("transport", "transport", "default")

	// A restart writes nothing.
	running.stop()
	again := startController(t, cfg)
	w.patch(c, `{"metadata":{"labels":{"advertise":"no"}}}`)
	w.waitGenerated("deselected", nil)
	w.waitAdvertised("transport", "transport", "")
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionFalse, "NoOverlayRouteAdvertisementsIsMissing")
	for what := range again.by {
		if strings.HasPrefix(what, "POST ") || strings.HasPrefix(what, "PUT ") {
			t.Errorf("after a restart with nothing changed: %s", what)
		}
	}
	w.patch(c, `{"metadata":{"labels":{"advertise":"yes"}}}`)
	w.waitGenerated("selected again", all)

	// Somebody edits a generated object, or deletes it.
	have, err := w.generated()
	if err != nil {
		t.Fatal(err)
	}
	edited := have["ra-transport/rack/bgp-node-0"]
	edited.Spec.BGP.Routers[0].Prefixes = []string{"10.0.0.0/8"}
	if err := w.Update(w.ctx, &edited); err != nil {
		t.Fatal(err)
	}
	w.waitGenerated("edited", all)
	deleted := have["ra-transport/rack/bgp-node-1"]
	w.remove(&deleted)
	w.waitGenerated("deleted", all)

	// The base becomes nonsense: the last good one stays, and the status says so.
	w.patch(base, `{"spec":{"bgp":{"routers":[{"asn":64512}]}}}`)
	w.waitCondition(ra, udnv1.ConditionAccepted, metav1.ConditionFalse, "ConfigurationError", "no selected FRRConfiguration has a router in VRF default with a neighbor")
	w.waitGenerated("a base without neighbours", all)
	w.patch(base, `{"spec":{"bgp":{"routers":[{"asn":64512,"neighbors":[{"asn":64512,"address":"192.0.2.7"}]}]}}}`)
	w.waitCondition(ra, udnv1.ConditionAccepted, metav1.ConditionTrue)
	Eventually(t, func() error {
		have, err := w.generated()
		if err == nil && have["ra-transport/rack/bgp-node-0"].Spec.BGP.Routers[0].Neighbors[0].Address != "192.0.2.7" {
			err = fmt.Errorf("the base's new neighbour is not in %+v", have)
		}
		return err
	})

	// A change of the spec makes the acceptance outdated; a bad one leaves the routes.
	w.patch(ra, `{"spec":{"targetVRF":"auto"}}`)
	w.waitCondition(ra, udnv1.ConditionAccepted, metav1.ConditionFalse, "ConfigurationError", "no selected FRRConfiguration has a router in VRF transport with a neighbor")
	w.waitAdvertised("transport", "transport", "default")
	w.patch(ra, `{"spec":{"targetVRF":"other"}}`)
	w.waitCondition(ra, udnv1.ConditionAccepted, metav1.ConditionFalse, "ConfigurationError", "no selected FRRConfiguration has a router in VRF other with a neighbor")
	w.patch(ra, `{"spec":{"targetVRF":"transport"}}`)
	w.waitCondition(ra, udnv1.ConditionAccepted, metav1.ConditionFalse, "ConfigurationError", "spec.targetVRF: transport is the VRF of network cluster_udn_transport")
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionFalse, "NoOverlayRouteAdvertisementsNotAccepted")
	w.waitGenerated("a target that is refused", all)
	w.waitAdvertised("transport", "transport", "default")
	w.patch(ra, `{"spec":{"targetVRF":null}}`)
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionTrue)

	// The API server refuses the generated objects, as frr-k8s' webhook may: nodes are not told that the network
	// is advertised, until it is.
	w.patch(c, `{"metadata":{"labels":{"advertise":"no"}}}`)
	w.waitAdvertised("transport", "transport", "")
	const refusal = "refused by a test's webhook"
	allow := w.refuseGenerated(refusal)
	w.patch(c, `{"metadata":{"labels":{"advertise":"yes"}}}`)
	w.waitCondition(ra, udnv1.ConditionAccepted, metav1.ConditionFalse, "InternalError", refusal)
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionFalse, "NoOverlayRouteAdvertisementsNotAccepted")
	w.waitAdvertised("transport", "transport", "")
	allow()
	w.waitGenerated("no longer refused", all)
	w.waitCondition(ra, udnv1.ConditionAccepted, metav1.ConditionTrue)
	w.waitAdvertised("transport", "transport", "default")

	w.remove(base)
	w.waitGenerated("without base", nil)
	w.waitAdvertised("transport", "transport", "")
	newer := newBase("rack")
	w.create(newer)
	defer w.remove(newer)
	w.waitGenerated("with a base again", all)
	w.remove(ra)
	w.waitGenerated("without RouteAdvertisements", nil)
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionFalse, "NoOverlayRouteAdvertisementsIsMissing")
	w.waitCreated(c, "[transport]")
}

// The managed fabric: a network whose routing is Managed gets its RouteAdvertisements, nodes
// get sessions with one another, edits are put right, and without a topology a condition
// says what is missing.
func TestManagedFabric(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.installFRR()
	cfg := testConfig(t)
	cfg.IDAge = 0
	plain := startController(t, cfg)
	var sources []string
	for i := range 3 {
		n, _ := w.createNode(fmt.Sprint("fabric-node-", i))
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprint("172.18.0.", i+1)}, {Type: corev1.NodeInternalIP, Address: fmt.Sprint("fd00:18::", i+1)}}
		if err := w.Status().Update(w.ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	c := newCUDN("managed", "managed", "10.133.0.0/16")
	c.Spec.Network.Transport = udnv1.TransportOptionNoOverlay
	c.Spec.Network.NoOverlayOptions = &udnv1.NoOverlayOptions{OutboundSNAT: udnv1.SNATEnabled, Routing: udnv1.RoutingManaged}
	ns := w.namespace("managed", true, "team=managed")
	defer w.remove(ns)
	w.create(c)
	defer w.remove(c)
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionFalse, "NoOverlayManagedRoutingNotConfigured", "[bgp-managed] topology")
	plain.stop()

	cfg.BGP.Topology = config.FullMesh
	mesh := startController(t, cfg)
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionTrue, "NoOverlayTransportAccepted")
	w.waitAdvertised("managed", "managed", "default")
	peers := func(want int) {
		t.Helper()
		Eventually(t, func() error {
			have, err := w.generated()
			if err != nil {
				return err
			}
			sources = sources[:0]
			for source, g := range have {
				sources = append(sources, source)
				if len(g.Spec.BGP.Routers) != 1 || len(g.Spec.BGP.Routers[0].Neighbors) != want {
					return fmt.Errorf("%s: %+v, want %d neighbours", source, g.Spec.BGP.Routers, want)
				}
			}
			if len(have) != 3 {
				return fmt.Errorf("FRRConfigurations of %v, want three", sources)
			}
			return nil
		})
	}
	peers(4) // two other nodes, two IP families

	// Somebody edits the fabric's objects, and removes the network's label.
	var bases frrv1.FRRConfigurationList
	var ras udnv1.RouteAdvertisementsList
	fabric := client.MatchingLabels{bgp.LabelFabric: bgp.LabelFabricValue}
	if err := w.List(w.ctx, &bases, fabric); err != nil || len(bases.Items) != 1 {
		t.Fatalf("bases: %v, %v", bases.Items, err)
	}
	if err := w.List(w.ctx, &ras, fabric); err != nil || len(ras.Items) != 1 {
		t.Fatalf("RouteAdvertisements: %v, %v", ras.Items, err)
	}
	w.patch(&bases.Items[0], `{"spec":{"bgp":{"routers":[{"asn":1,"neighbors":[{"asn":1,"address":"192.0.2.66"}]}]}}}`)
	w.patch(&ras.Items[0], `{"spec":{"targetVRF":"auto"}}`)
	w.patch(c, `{"metadata":{"labels":{"`+bgp.LabelFabric+`":null}}}`)
	Eventually(t, func() error {
		for _, o := range []client.Object{&bases.Items[0], &ras.Items[0], c} {
			if err := w.Get(w.ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
		}
		if r := bases.Items[0].Spec.BGP.Routers[0]; r.ASN != 64512 || len(r.Neighbors) != 6 || ras.Items[0].Spec.TargetVRF != "" || c.Labels[bgp.LabelFabric] != bgp.LabelFabricValue {
			return fmt.Errorf("not put right: %+v, %+v, %v", r, ras.Items[0].Spec, c.Labels)
		}
		return nil
	})
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionTrue)
	peers(4)

	// Route reflectors instead, and then no fabric.
	mesh.stop()
	cfg.BGP.Topology = config.RouteReflectors
	reflectors := startController(t, cfg)
	Eventually(t, func() error {
		have, err := w.generated()
		if err != nil {
			return err
		}
		raw := 0
		for _, g := range have {
			raw += strings.Count(g.Spec.Raw.Config, "route-reflector-client")
		}
		if len(have) != 3 || raw != 4 { // two reflectors have one client each, with two IP families
			return fmt.Errorf("%d FRRConfigurations with %d clients, want 3 and 4", len(have), raw)
		}
		return nil
	})
	reflectors.stop()
	cfg.BGP.Topology = ""
	startController(t, cfg)
	w.waitGenerated("without a fabric", nil)
	w.waitCondition(c, udnv1.ConditionTransportAccepted, metav1.ConditionFalse, "NoOverlayManagedRoutingNotConfigured")
	Eventually(t, func() error {
		if err := w.List(w.ctx, &bases, fabric); err != nil {
			return err
		}
		if err := w.Get(w.ctx, client.ObjectKeyFromObject(c), c); err != nil {
			return err
		}
		if _, labelled := c.Labels[bgp.LabelFabric]; labelled || len(bases.Items) > 0 {
			return fmt.Errorf("left over: label %t, bases %d", labelled, len(bases.Items))
		}
		return nil
	})
	w.waitAdvertised("managed", "managed", "")
}

// The cluster default network without an overlay: an event says that nothing advertises it, and
// one that something does. Its prefixes are those of the nodes' host subnets.
func TestDefaultNetworkWithoutOverlay(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	w.installFRR()
	cfg, err := config.Parse("[default]\ntransport = no-overlay\n[no-overlay]\noutbound-snat = enabled\nrouting = unmanaged\n[kubernetes]\nlease-duration = 2s\nlease-renew-deadline = 1s\n")
	if err != nil {
		t.Fatal(err)
	}
	cfg.IDAge = 0
	startController(t, cfg)
	_, id := w.createNode("bare-node")
	event := func(reason string) {
		t.Helper()
		Eventually(t, func() error {
			var l eventsv1.EventList
			if err := w.List(w.ctx, &l, client.InNamespace(cfg.Kubernetes.LeaseNamespace)); err != nil {
				return err
			}
			if !slices.ContainsFunc(l.Items, func(e eventsv1.Event) bool { return e.Reason == reason && e.Regarding.Kind == "Lease" }) {
				return fmt.Errorf("no event %s among %d", reason, len(l.Items))
			}
			return nil
		})
	}
	event("NoRouteAdvertisements")
	base := newBase("rack")
	w.create(base)
	defer w.remove(base)
	ra := newRA("ra-default", "", nil)
	ra.Spec.NetworkSelectors = []udnv1.NetworkSelector{{NetworkSelectionType: udnv1.DefaultNetwork}}
	w.create(ra)
	defer w.remove(ra)
	var n int
	if _, err := fmt.Sscan(id, &n); err != nil {
		t.Fatal(err)
	}
	w.waitGenerated("the default network", map[string][]string{"ra-default/rack/bare-node": {fmt.Sprintf("10.244.%d.0/24", n-1)}})
	w.waitCondition(ra, udnv1.ConditionAccepted, metav1.ConditionTrue)
	event("NoOverlayConfigurationReady")
}
