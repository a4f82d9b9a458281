// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"bulkhead/pkg/network"
)

// Scenario names the objects of the attempts: an attacking tenant and a victim,
// each with a UserDefinedNetwork of the same name.
type Scenario struct {
	Attacker, Victim     string // namespaces
	Network              string // both networks' name
	AttackerID, VictimID string
	Pod, VictimPod       string
	VictimUID            string             // of the victim's namespace
	VictimEntry          network.PodNetwork // on its network
	Node, OtherNode      string             // the token's, and another
	OtherPod             [2]string          // a pod there, by namespace and name
	VictimService        string             // in the victim's namespace
	VictimServiceUID     string
	// Taken are addresses of others that no service of the attacker may have: the victim's
	// Service's, and the nodes'. Pods are the victim's pods' addresses, on both their networks.
	Taken, Pods []netip.Addr
}

// DivertedPort is the port of the services in ServiceAuthor, and ServerPort that of the victim's pods.
const (
	DivertedPort = 80
	ServerPort   = 8080
)

func toJSON(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // the tables hold only marshallable values
	}
	return string(raw)
}

type m = map[string]any

// config is a NAD's configuration of the ovn-k8s-cni-overlay type.
func config(name, role, more string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":"ovn-k8s-cni-overlay","topology":"layer3","role":%q,"subnets":"10.77.0.0/16/24"%s}`, name, role, more)
}

// NADAuthor lists the writes of a tenant who may write the
// NetworkAttachmentDefinitions of a namespace.
func (s Scenario) NADAuthor() []Write {
	victim, own := network.UDNName(s.Victim, s.Network), network.UDNName(s.Attacker, s.Network)
	fields := []m{
		{"metadata": m{"ownerReferences": nil}},
		{"metadata": m{"finalizers": nil}},
		{"metadata": m{"ownerReferences": nil, "finalizers": nil}},
		{"metadata": m{"ownerReferences": []m{{"apiVersion": UDN.APIVersion, "kind": UDN.Kind, "name": s.Network, "uid": "00000000-0000-0000-0000-000000000000", "controller": true}}}},
		{"metadata": m{"ownerReferences": []m{{"apiVersion": CUDN.APIVersion, "kind": CUDN.Kind, "name": "shared", "uid": "00000000-0000-0000-0000-000000000001"}}}},
		{"metadata": m{"finalizers": []string{"example.com/mine"}}},
		{"metadata": m{"labels": nil}},
		{"metadata": m{"labels": m{network.LabelUDN: nil, "k8s.ovn.org/anything": "x"}}},
		{"metadata": m{"annotations": nil}},
		{"metadata": m{"annotations": m{network.AnnotationNetworkID: s.VictimID}}},
		{"metadata": m{"annotations": m{network.AnnotationNetworkID: nil}}},
		{"metadata": m{"annotations": m{network.AnnotationNetworkName: victim}}},
		{"metadata": m{"annotations": m{network.AnnotationNetworkName: network.CUDNName("shared")}}},
		{"metadata": m{"annotations": m{network.AnnotationNetworkName: nil, network.AnnotationNetworkID: nil}, "ownerReferences": nil, "finalizers": nil}},
		{"spec": m{"config": config(victim, "primary", "")}},
		{"spec": m{"config": config(own, "primary", `,"joinSubnet":"100.99.0.0/16"`)}},
		{"spec": m{"config": `{"cniVersion":"1.1.0","name":"x","type":"macvlan"}`}},
		{"spec": m{"config": ""}},
		{"spec": nil},
	}
	var out []Write
	for _, f := range fields {
		out = append(out, Write{Verb: Patch, Of: NAD, Namespace: s.Attacker, Name: s.Network, Body: toJSON(f)})
		if spec, ok := f["spec"]; ok && spec == nil {
			continue // an update with a null spec is the same as with an empty one
		}
		out = append(out, Write{Verb: Update, Of: NAD, Namespace: s.Attacker, Name: s.Network, Body: toJSON(f)})
	}
	out = append(out, Write{Verb: Apply, Of: NAD, Namespace: s.Attacker, Name: s.Network, Body: toJSON(m{"spec": m{"config": config(victim, "primary", "")}})})
	made := 0
	create := func(body m) {
		made++
		out = append(out, Write{Verb: Create, Of: NAD, Namespace: s.Attacker, Name: fmt.Sprintf("made-%d", made), Body: toJSON(body)})
	}
	for _, name := range []string{victim, own, "default", "join", "ext_" + victim, victim + "_transit_switch", "a\x00b", network.CUDNName("shared"), "fresh"} {
		for _, role := range []string{"primary", "secondary"} {
			create(m{"spec": m{"config": config(name, role, "")}})
		}
	}
	// JSON has several spellings of the same value.
	create(m{"spec": m{"config": `{"cniVersion":"1.1.0","name":"` + victim + `","type":"ovn-k8s-cni-overl\u0061y","topology":"layer3","role":"primary","subnets":"10.77.0.0/16/24"}`}})
	create(m{"spec": m{"config": `{"cniVersion":"1.1.0","name":"x","TYPE":"ovn-k8s-cni-overlay","topology":"layer3","role":"primary"}`}})
	create(m{"spec": m{"config": `{"cniVersion":"1.1.0","name":"x","plugins":[` + config(victim, "primary", "") + `]}`}})
	create(m{"spec": m{"config": `{"type":"macvlan","type":"ovn-k8s-cni-overl\u0061y","name":"` + victim + `","topology":"layer3"}`}})
	for _, a := range []m{
		{network.AnnotationNetworkID: s.VictimID}, {network.AnnotationNetworkName: victim},
		{network.AnnotationNetworkID: s.VictimID, network.AnnotationNetworkName: victim},
	} {
		create(m{"metadata": m{"annotations": a, "labels": m{network.LabelUDN: ""}}, "spec": m{"config": `{"cniVersion":"1.1.0","name":"x","type":"macvlan"}`}})
		create(m{"metadata": m{"annotations": a}, "spec": m{"config": config("fresh", "primary", "")}})
	}
	return out
}

// UDNAuthor lists the writes of a tenant who may write the UserDefinedNetworks,
// their status and the IPAMClaims of a namespace.
func (s Scenario) UDNAuthor() []Write {
	patch := func(sub string, f m) Write {
		return Write{Verb: Patch, Of: UDN, Namespace: s.Attacker, Name: s.Network, Sub: sub, Body: toJSON(f)}
	}
	created := m{"type": "NetworkCreated", "status": "True", "reason": "Mine", "message": "mine", "lastTransitionTime": "2026-01-01T00:00:00Z"}
	secondary := m{"topology": "Layer3", "layer3": m{"role": "Secondary", "subnets": []m{{"cidr": "10.78.0.0/16"}}}}
	ids := m{network.AnnotationNetworkID: s.VictimID, network.AnnotationNetworkName: network.UDNName(s.Victim, s.Network)}
	ips := []string{}
	for _, ip := range s.VictimEntry.IPs {
		ips = append(ips, ip.String())
	}
	changed := patch("", m{"spec": m{"layer3": m{"role": "Secondary"}}})
	changed.AdminRefused = true
	return []Write{
		patch("", m{"metadata": m{"annotations": ids}}),
		patch("", m{"metadata": m{"labels": m{network.LabelUDN: "", network.LabelPrimaryUDN: ""}}}),
		patch("", m{"metadata": m{"finalizers": nil}}),
		// With the UID of an owner that does not exist, Kubernetes would delete it.
		patch("", m{"metadata": m{"ownerReferences": []m{{"apiVersion": "v1", "kind": "Namespace", "name": s.Victim, "uid": s.VictimUID}}}}),
		patch("", m{"metadata": m{"ownerReferences": nil}}),
		changed,
		patch("status", m{"status": m{"conditions": []m{created}}}),
		patch("status", m{"status": nil}),
		{Verb: Create, Of: UDN, Namespace: s.Attacker, Name: "second", Body: toJSON(m{"metadata": m{"annotations": ids, "finalizers": []string{"example.com/mine"}}, "spec": m{"topology": "Layer3", "layer3": m{"role": "Primary", "subnets": []m{{"cidr": "10.78.0.0/16"}}}}})},
		{Verb: Create, Of: UDN, Namespace: s.Attacker, Name: "third", Body: toJSON(m{"metadata": m{"annotations": ids, "labels": m{network.LabelUDN: ""}}, "spec": secondary})},
		{Verb: Create, Of: IPAMClaim, Namespace: s.Attacker, Name: "claim", Body: toJSON(m{"spec": m{"network": network.UDNName(s.Victim, s.Network), "interface": "ovn-udn1"}, "status": m{"ips": ips}})},
		{Verb: Patch, Of: IPAMClaim, Namespace: s.Attacker, Name: "claim", Sub: "status", Body: toJSON(m{"status": m{"ips": ips}})},
		{Verb: Patch, Of: IPAMClaim, Namespace: s.Attacker, Name: "claim", Body: toJSON(m{"metadata": m{"finalizers": nil, "labels": m{"k8s.ovn.org/anything": "x"}}})},
		// As if a pod of the victim's had the claim. Kubernetes deletes it, because that pod is not in its namespace.
		{Verb: Create, Of: IPAMClaim, Namespace: s.Attacker, Name: "owned", Body: toJSON(m{"metadata": m{"ownerReferences": []m{{"apiVersion": "v1", "kind": "Pod", "name": s.VictimPod, "uid": "00000000-0000-0000-0000-000000000000"}}},
			"spec": m{"network": network.UDNName(s.Victim, s.Network), "interface": "ovn-udn1"}})},
		{Verb: Create, Of: IPAMClaim, Namespace: s.Victim, Name: "claim", Body: toJSON(m{"spec": m{"network": network.UDNName(s.Victim, s.Network), "interface": "ovn-udn1"}})},
		{Verb: Create, Of: CUDN, Name: "adversary", Body: toJSON(m{"spec": m{"namespaceSelector": m{}, "network": secondary}})},
	}
}

// PodAuthor lists the writes of a tenant who may write the pods of a namespace
// with every subresource, and the objects that create pods.
func (s Scenario) PodAuthor() []Write {
	own := network.NADKey(s.Attacker, s.Network)
	victim := network.NADKey(s.Victim, s.Network)
	takenOver := toJSON(m{"default": m{}, own: s.VictimEntry, victim: s.VictimEntry})
	annotations := []m{
		{network.AnnotationPodNetworks: takenOver}, {network.AnnotationPodNetworks: "{}"}, {network.AnnotationPodNetworks: nil},
		{network.AnnotationNetworks: victim}, {network.AnnotationNetworks: toJSON([]m{{"name": s.Network, "namespace": s.Victim, "ips": []string{"10.77.0.9"}}})},
		{network.AnnotationDefaultNetwork: victim}, {network.AnnotationNetworkStatus: "[]"},
	}
	const ready = "2026-01-01T00:00:00Z"
	claim := toJSON(m{"name": s.Network, "namespace": s.Victim, "ipam-claim-reference": "claim"})
	var out []Write
	for _, a := range append(annotations, m{network.AnnotationMigrationTargetReady: ready}, m{network.AnnotationPodNetworks: takenOver, network.AnnotationMigrationTargetReady: ready},
		m{network.AnnotationPrimaryClaim: "claim"}, m{network.AnnotationDefaultNetwork: claim}) {
		for _, sub := range []string{"", "status", "ephemeralcontainers", "resize"} {
			out = append(out, Write{Verb: Patch, Of: Pod, Namespace: s.Attacker, Name: s.Pod, Sub: sub, Body: toJSON(m{"metadata": m{"annotations": a}})})
		}
	}
	spec := m{"nodeName": s.Node, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "containers": []m{{"name": "c", "image": "docker.io/lab/busybox:1", "imagePullPolicy": "Never", "command": []string{"/bin/sleep", "100000"}}}}
	for i, a := range annotations {
		out = append(out, Write{Verb: Create, Of: Pod, Namespace: s.Attacker, Name: fmt.Sprintf("made-%d", i), Body: toJSON(m{"metadata": m{"annotations": a}, "spec": spec})})
	}
	for _, labels := range []m{{network.LabelLayer2Pod: "", network.LabelVirtualMachine: s.VictimPod}, {network.LabelLayer2Pod: nil, network.LabelVirtualMachine: nil}} {
		out = append(out, Write{Verb: Patch, Of: Pod, Namespace: s.Attacker, Name: s.Pod, Body: toJSON(m{"metadata": m{"labels": labels}})})
	}
	// The target of a migration that has not taken place, with a claim that names the
	// victim's addresses (UDNAuthor).
	for i, a := range []m{{network.AnnotationPrimaryClaim: "claim"}, {network.AnnotationDefaultNetwork: claim}} {
		a[network.AnnotationMigrationTargetReady] = ready
		out = append(out, Write{Verb: Create, Of: Pod, Namespace: s.Attacker, Name: fmt.Sprintf("made-target-%d", i),
			Body: toJSON(m{"metadata": m{"annotations": a, "labels": m{network.LabelLayer2Pod: "", network.LabelVirtualMachine: s.VictimPod}}, "spec": spec})})
	}
	unbound := m{"schedulerName": "none", "terminationGracePeriodSeconds": 0, "containers": spec["containers"]}
	return append(out,
		Write{Verb: Create, Of: Pod, Namespace: s.Attacker, Name: "bound", Body: toJSON(m{"spec": unbound})},
		Write{Verb: Create, Of: Binding, Namespace: s.Attacker, Name: "bound", Sub: "binding",
			Body: toJSON(m{"metadata": m{"annotations": m{network.AnnotationPodNetworks: takenOver}}, "target": m{"kind": "Node", "name": s.Node}})},
		Write{Verb: Create, Of: Deployment, Namespace: s.Attacker, Name: "made", Body: toJSON(m{"spec": m{"selector": m{"matchLabels": m{"a": "made"}},
			"template": m{"metadata": m{"labels": m{"a": "made"}, "annotations": m{network.AnnotationPodNetworks: takenOver}}, "spec": m{"containers": spec["containers"]}}}})},
		Write{Verb: Patch, Of: Pod, Namespace: s.Attacker, Name: s.Pod, Sub: "status", Body: toJSON(m{"status": m{"podIPs": s.podIPs(), "podIP": s.VictimEntry.IPs[0].Addr().String()}})},
		Write{Verb: Patch, Of: Pod, Namespace: s.Attacker, Name: "bound", Body: toJSON(m{"metadata": m{"ownerReferences": []m{{"apiVersion": "v1", "kind": "Pod", "name": s.VictimPod, "uid": "00000000-0000-0000-0000-000000000000"}}}})},
		Write{Verb: Patch, Of: Namespace, Name: s.Attacker, Body: toJSON(m{"metadata": m{"labels": m{network.LabelPrimaryUDN: nil}}}), AdminRefused: true},
		Write{Verb: Patch, Of: Namespace, Name: s.Attacker, Body: toJSON(m{"metadata": m{"labels": m{network.LabelPrimaryUDN: "x"}}}), AdminRefused: true},
		Write{Verb: Patch, Of: Namespace, Name: s.Attacker, Body: toJSON(m{"metadata": m{"labels": m{"k8s.ovn.org/bulkhead-host-pods": "trusted"}}})},
		Write{Verb: Patch, Of: NAD, Namespace: s.Victim, Name: s.Network, Body: toJSON(m{"metadata": m{"finalizers": nil}})},
		Write{Verb: Patch, Of: UDN, Namespace: s.Victim, Name: s.Network, Body: toJSON(m{"metadata": m{"finalizers": nil}})},
		Write{Verb: Patch, Of: Pod, Namespace: s.Victim, Name: s.VictimPod, Body: toJSON(m{"metadata": m{"annotations": m{network.AnnotationPodNetworks: "{}"}}})},
	)
}

// ServiceAuthor lists the writes of a tenant who may write the Services and EndpointSlices of a
// namespace: others' addresses as those of a Service or as its endpoints', and EndpointSlices
// that name the victim's Service or network.
func (s Scenario) ServiceAuthor() []Write {
	ports := []m{{"name": "tcp", "port": DivertedPort, "targetPort": ServerPort}, {"name": "udp", "port": DivertedPort, "targetPort": ServerPort, "protocol": "UDP"}}
	var out []Write
	service := func(name string, spec m) {
		spec["ports"], spec["ipFamilyPolicy"] = ports, "PreferDualStack"
		out = append(out, Write{Verb: Create, Of: Service, Namespace: s.Attacker, Name: name, Body: toJSON(m{"spec": spec})})
	}
	slice := func(name string, to netip.Addr, metadata m) {
		family := "IPv4"
		if to.Is6() {
			family = "IPv6"
		}
		out = append(out, Write{Verb: Create, Of: Slice, Namespace: s.Attacker, Name: name, Body: toJSON(m{"metadata": metadata, "addressType": family,
			"endpoints": []m{{"addresses": []string{to.String()}, "nodeName": s.Node}},
			"ports":     []m{{"name": "tcp", "port": ServerPort}, {"name": "udp", "port": ServerPort, "protocol": "UDP"}}})})
	}
	labels := func(service string) m { return m{"kubernetes.io/service-name": service} }
	mirror := func(service, on string) m {
		return m{"labels": m{"endpointslice.kubernetes.io/managed-by": network.EndpointSliceManager, network.LabelMirrorService: service},
			"annotations": m{network.AnnotationMirrorOn: on}}
	}
	victimNet := network.UDNName(s.Victim, s.Network)
	taken := make([]string, len(s.Taken))
	ingress := make([]m, len(s.Taken))
	for i, a := range s.Taken {
		taken[i], ingress[i] = a.String(), m{"ip": a.String()}
	}
	service("diverted-external", m{"externalIPs": taken, "selector": m{"role": "server"}})
	service("diverted-balancer", m{"type": "LoadBalancer", "selector": m{"role": "server"}, "externalTrafficPolicy": "Local"})
	out = append(out, Write{Verb: Patch, Of: Service, Namespace: s.Attacker, Name: "diverted-balancer", Sub: "status", Body: toJSON(m{"status": m{"loadBalancer": m{"ingress": ingress}}})})
	service(s.VictimService, m{"externalIPs": taken}) // a namesake
	service("diverted-selected", m{"selector": m{"role": "server"}})
	for i, to := range s.Pods {
		name := fmt.Sprintf("diverted-%d", i)
		service(name, m{"externalIPs": taken})
		slice(name, to, m{"labels": labels(name)})
		slice(name+"-mirror", to, mirror(name, victimNet))
		slice(name+"-own", to, mirror(name, network.UDNName(s.Attacker, s.Network)))
		slice(name+"-default", to, mirror(name, network.DefaultName))
		slice(name+"-selected", to, m{"labels": labels("diverted-selected")})
		// As if they were of the victim's Service.
		slice(name+"-victim", to, m{"labels": labels(s.VictimService), "ownerReferences": []m{{"apiVersion": "v1", "kind": "Service", "name": s.VictimService, "uid": s.VictimServiceUID, "controller": true}}})
		slice(name+"-victim-mirror", to, mirror(s.VictimService, victimNet))
	}
	return append(out,
		Write{Verb: Patch, Of: Service, Namespace: s.Victim, Name: s.VictimService, Body: toJSON(m{"spec": m{"externalIPs": nil}})},
		Write{Verb: Create, Of: Slice, Namespace: s.Victim, Name: "diverted", Body: toJSON(m{"metadata": m{"labels": labels(s.VictimService)}, "addressType": "IPv4", "endpoints": []m{}, "ports": []m{}})})
}

func (s Scenario) podIPs() []m {
	var out []m
	for _, ip := range s.VictimEntry.IPs {
		out = append(out, m{"ip": ip.Addr().String()})
	}
	return out
}

// NodeToken lists the writes of the holder of a node's token.
func (s Scenario) NodeToken() []Write {
	far := func(f m) Write { return Write{Verb: Patch, Of: Node, Name: s.OtherNode, Body: toJSON(f)} }
	near := func(sub string, f m) Write {
		return Write{Verb: Patch, Of: Node, Name: s.Node, Sub: sub, Body: toJSON(f)}
	}
	pod := func(sub string, f m) Write {
		return Write{Verb: Patch, Of: Pod, Namespace: s.OtherPod[0], Name: s.OtherPod[1], Sub: sub, Body: toJSON(f)}
	}
	own := func(sub string, f m) Write {
		return Write{Verb: Patch, Of: Pod, Namespace: s.Attacker, Name: s.Pod, Sub: sub, Body: toJSON(f)}
	}
	annotation := func(k string, v any) m { return m{"metadata": m{"annotations": m{k: v}}} }
	return []Write{
		far(annotation(network.AnnotationNodeID, "1")), far(annotation(network.AnnotationNodeID, nil)), far(annotation(network.AnnotationDefaultTransport, "no-overlay")),
		far(annotation(network.AnnotationChassisID, "other")), far(annotation(network.AnnotationEncapIPs, `["192.0.2.1"]`)),
		far(annotation(network.AnnotationGatewayConfig, "{}")), far(annotation(network.AnnotationAgentFailures, `[{"ids":"1-10000","why":"x"}]`)),
		far(m{"metadata": m{"labels": m{"x": "y"}}}), far(m{"metadata": m{"finalizers": []string{"example.com/mine"}}}),
		{Verb: Patch, Of: Node, Name: s.OtherNode, Sub: "status", Body: toJSON(m{"status": m{"addresses": []m{{"type": "InternalIP", "address": "192.0.2.1"}}}})},
		{Verb: Delete, Of: Node, Name: s.OtherNode},
		near("", annotation(network.AnnotationNodeID, "77")), near("", annotation(network.AnnotationNodeID, nil)), near("", annotation(network.AnnotationDefaultTransport, "no-overlay")), near("", annotation("example.com/other", "x")),
		near("", m{"metadata": m{"labels": m{"node-role.kubernetes.io/control-plane": ""}}}), near("", m{"metadata": m{"finalizers": []string{"example.com/mine"}}}),
		near("", m{"spec": m{"unschedulable": true}}), near("status", annotation(network.AnnotationNodeID, "77")),
		near("status", m{"status": m{"addresses": []m{{"type": "InternalIP", "address": "192.0.2.1"}}}}), near("status", m{"status": m{"declaredFeatures": []string{"Mine"}}}),
		pod("", annotation(network.AnnotationPodNetworks, "{}")), pod("", annotation(network.AnnotationPodNetworks, nil)), pod("", annotation(network.AnnotationNetworkStatus, "[]")),
		pod("", m{"metadata": m{"labels": m{"x": "y"}}}), pod("status", annotation(network.AnnotationPodNetworks, "{}")), pod("status", m{"status": m{"phase": "Failed"}}),
		{Verb: Delete, Of: Pod, Namespace: s.OtherPod[0], Name: s.OtherPod[1]},
		own("status", m{"status": m{"phase": "Failed"}}), own("status", m{"status": m{"podIP": "192.0.2.1", "podIPs": []m{{"ip": "192.0.2.1"}}}}),
		own("", m{"metadata": m{"labels": m{"x": "y"}}}), own("", m{"metadata": m{"finalizers": []string{"example.com/mine"}}}),
		own("", m{"metadata": m{"ownerReferences": []m{{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "00000000-0000-0000-0000-000000000000"}}}}),
		own("", annotation(network.AnnotationNetworks, network.NADKey(s.Victim, s.Network))),
		{Verb: Patch, Of: NAD, Namespace: s.Attacker, Name: s.Network, Body: toJSON(m{"metadata": m{"finalizers": nil}})},
		{Verb: Patch, Of: UDN, Namespace: s.Attacker, Name: s.Network, Body: toJSON(m{"metadata": m{"finalizers": nil}})},
		{Verb: Create, Of: NAD, Namespace: s.Attacker, Name: "of-node", Body: toJSON(m{"spec": m{"config": config("fresh", "primary", "")}})},
		{Verb: Patch, Of: Lease, Namespace: "bulkhead-system", Name: "bulkhead-ids", Body: toJSON(annotation("k8s.ovn.org/id-marks", `{"networks":0}`))},
		{Verb: Patch, Of: Lease, Namespace: "bulkhead-system", Name: "bulkhead-ids", Body: toJSON(m{"spec": m{"holderIdentity": "me"}})},
		{Verb: Patch, Of: Lease, Namespace: "bulkhead-system", Name: "bulkhead-cluster", Body: toJSON(m{"spec": m{"holderIdentity": "me"}})},
		{Verb: Patch, Of: Namespace, Name: s.Attacker, Body: toJSON(m{"metadata": m{"labels": m{"k8s.ovn.org/bulkhead-host-pods": "trusted"}}})},
	}
}

// Kubelet lists the writes of a node's kubelet that no policy of Kubernetes' own need refuse: by its RBAC role it may change Nodes
// and the status of pods.
func (s Scenario) Kubelet() []Write {
	takenOver := toJSON(m{"default": m{}, network.NADKey(s.Victim, s.Network): s.VictimEntry})
	annotation := func(k string, v any) string { return toJSON(m{"metadata": m{"annotations": m{k: v}}}) }
	var out []Write
	for _, node := range []string{s.Node, s.OtherNode} {
		for _, sub := range []string{"", "status"} {
			for _, body := range []string{annotation(network.AnnotationNodeID, "77"), annotation(network.AnnotationNodeID, nil), annotation(network.AnnotationDefaultTransport, "no-overlay"), toJSON(m{"metadata": m{"annotations": nil}})} {
				out = append(out, Write{Verb: Patch, Of: Node, Name: node, Sub: sub, Body: body})
			}
		}
		out = append(out, Write{Verb: Update, Of: Node, Name: node, Body: annotation(network.AnnotationNodeID, "77")})
	}
	for _, pod := range [][2]string{{s.Attacker, s.Pod}, s.OtherPod} {
		for _, body := range []string{annotation(network.AnnotationPodNetworks, takenOver), annotation(network.AnnotationPodNetworks, "{}"), annotation(network.AnnotationPodNetworks, nil), toJSON(m{"metadata": m{"annotations": nil}})} {
			out = append(out, Write{Verb: Patch, Of: Pod, Namespace: pod[0], Name: pod[1], Sub: "status", Body: body}, Write{Verb: Patch, Of: Pod, Namespace: pod[0], Name: pod[1], Body: body})
		}
	}
	return append(out,
		Write{Verb: Create, Of: Node, Name: "adversary", Body: annotation(network.AnnotationNodeID, "77")},
		Write{Verb: Patch, Of: NAD, Namespace: s.Attacker, Name: s.Network, Body: annotation(network.AnnotationNetworkID, s.VictimID)},
		Write{Verb: Patch, Of: NAD, Namespace: s.Attacker, Name: s.Network, Body: toJSON(m{"metadata": m{"finalizers": nil, "ownerReferences": nil}})},
		Write{Verb: Patch, Of: UDN, Namespace: s.Attacker, Name: s.Network, Body: toJSON(m{"metadata": m{"finalizers": nil}})},
		Write{Verb: Create, Of: IPAMClaim, Namespace: s.Attacker, Name: "of-kubelet", Body: toJSON(m{"spec": m{"network": network.UDNName(s.Victim, s.Network), "interface": "ovn-udn1"}})},
		Write{Verb: Patch, Of: Namespace, Name: s.Attacker, Body: toJSON(m{"metadata": m{"labels": m{"k8s.ovn.org/bulkhead-host-pods": "trusted"}}})})
}

// OtherNodes lists the writes of a node's kubelet that Kubernetes' own admission plugin NodeRestriction, or its Node authorizer, refuses.
func (s Scenario) OtherNodes() []Write {
	var out []Write
	for _, k := range []string{network.AnnotationChassisID, network.AnnotationEncapIPs, network.AnnotationGatewayConfig, network.AnnotationAgentFailures} {
		for _, sub := range []string{"", "status"} {
			out = append(out, Write{Verb: Patch, Of: Node, Name: s.OtherNode, Sub: sub, Body: toJSON(m{"metadata": m{"annotations": m{k: "x"}}})})
		}
	}
	return append(out,
		Write{Verb: Delete, Of: Node, Name: s.OtherNode}, Write{Verb: Delete, Of: Pod, Namespace: s.OtherPod[0], Name: s.OtherPod[1]},
		Write{Verb: Patch, Of: Lease, Namespace: "bulkhead-system", Name: "bulkhead-ids", Body: toJSON(m{"metadata": m{"annotations": m{"k8s.ovn.org/id-marks": `{"networks":0}`}}})},
		Write{Verb: Patch, Of: Lease, Namespace: "bulkhead-system", Name: "bulkhead-cluster", Body: toJSON(m{"spec": m{"holderIdentity": "me"}})})
}

// Deletions lists the writes by which a tenant deletes a network that pods still
// use and tries to release its id early: deletions, and patches that remove
// finalizers and owner references.
func (s Scenario) Deletions() []Write {
	bare := toJSON(m{"metadata": m{"ownerReferences": nil, "finalizers": nil}})
	return []Write{
		{Verb: Delete, Of: NAD, Namespace: s.Attacker, Name: s.Network},
		{Verb: Patch, Of: NAD, Namespace: s.Attacker, Name: s.Network, Body: bare},
		{Verb: Delete, Of: UDN, Namespace: s.Attacker, Name: s.Network},
		{Verb: Patch, Of: UDN, Namespace: s.Attacker, Name: s.Network, Body: bare},
		{Verb: Patch, Of: NAD, Namespace: s.Attacker, Name: s.Network, Body: bare},
	}
}
