// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func badInputChecks() []Check {
	return []Check{
		{Chapter: 7, Title: "an invalid network is refused by the API with a message that names the remedy", Phase: phaseObjects, Run: invalidRefused},
		{Chapter: 7, Title: "bad networks (too small, no label, second primary, no routes) are reported in status", Phase: phaseObjects, Needs: needs(fixtureOthers), Run: badNetworksReported, Group: groupBadInput},
		{Chapter: 7, Title: "a malformed NAD is reported in an event and delays no other", Phase: phaseObjects, Needs: needs(fixtureOthers), Run: malformedNAD, Group: groupBadInput},
	}
}

func invalidRefused(ctx context.Context, w *World) (string, error) {
	var messages []string
	for _, tt := range []struct{ network, want string }{
		{`topology: Layer3`, "layer3 is required"},
		{`topology: Layer3
    layer3: {role: Primary, subnets: [{cidr: 10.0.0.0/33}]}`, "CIDR"},
		{`topology: Layer3
    layer3: {role: Primary, mtu: 1000, subnets: [{cidr: "fd77::/48", hostSubnet: 64}]}`, "1280"},
		{`topology: Layer3
    layer3: {role: Primary, subnets: [{cidr: 10.77.0.0/16, hostSubnet: 8}]}`, "hostSubnet"},
	} {
		err := w.Lab.Apply(ctx, `
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: bad}
spec:
  namespaceSelector: {matchLabels: {none: none}}
  network:
    `+tt.network+"\n")
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			return "", fmt.Errorf("%s: got %v, want an error with %q", tt.network, err, tt.want)
		}
		messages = append(messages, tt.want)
	}
	return strings.Join(messages, ", "), nil
}

// badNetworks are networks that the API accepts, and that have something wrong.
func (w *World) badNetworks() string {
	var one []string
	for _, s := range []string{"10.77.0.0/24", "fd77::/64"} {
		if w.has(netip.MustParsePrefix(s).Addr()) {
			one = append(one, `{cidr: "`+s+`"}`)
		}
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: small, labels: {k8s.ovn.org/primary-user-defined-network: ""}}
---
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: small}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: small}}
  network:
    topology: Layer3
    layer3: {role: Primary, subnets: %[1]s} # one node's
---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: unlabelled, namespace: inputs}
spec:
  topology: Layer3
  layer3: {role: Primary, subnets: %[2]s}
---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: second, namespace: blue}
spec:
  topology: Layer3
  layer3: {role: Primary, subnets: %[2]s}
---
apiVersion: v1
kind: Namespace
metadata: {name: routeless, labels: {k8s.ovn.org/primary-user-defined-network: ""}}
---
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: routeless}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: routeless}}
  network:
    topology: Layer3
    layer3: {role: Primary, subnets: %[2]s}
    transport: NoOverlay
    noOverlayOptions: {outboundSNAT: Enabled, routing: Unmanaged}
`, "["+strings.Join(one, ", ")+"]", w.subnets(79))
}

func badNetworksReported(ctx context.Context, w *World) (string, error) {
	messages, err := reported(ctx, w)
	fmt.Fprintf(w.Out, "     %s\n", strings.Join(messages, "\n     "))
	return "", err
}

// reported waits for each bad network's message in its status.
func reported(ctx context.Context, w *World) (messages []string, err error) {
	for _, tt := range []struct {
		gvr                              schema.GroupVersionResource
		namespace, name, condition, want string
	}{
		{cudns, "", "small", "NetworkAllocationSucceeded", "have no host subnet for nodes [node"},
		{udns, "inputs", "unlabelled", "NetworkCreated", "k8s.ovn.org/primary-user-defined-network"},
		{udns, "blue", "second", "NetworkCreated", "primary"},
		{cudns, "", "routeless", "TransportAccepted", "No RouteAdvertisements"},
	} {
		err := w.Lab.Wait(ctx, fmt.Sprintf("%s of %s to be False", tt.condition, tt.name), func(ctx context.Context) (bool, string, error) {
			obj, err := w.dynamic.Resource(tt.gvr).Namespace(tt.namespace).Get(ctx, tt.name, metav1.GetOptions{})
			if err != nil {
				return false, "", err
			}
			for _, c := range conditionsOf(obj) {
				message, _ := c["message"].(string)
				if c["type"] == tt.condition && c["status"] == "False" && strings.Contains(message, tt.want) {
					messages = append(messages, fmt.Sprintf("%s: %s", tt.name, message))
					return true, "", nil
				}
			}
			return false, fmt.Sprint(conditionsOf(obj)), nil
		})
		if err != nil {
			return messages, err
		}
		if tt.namespace == "" {
			continue
		}
		if _, err := w.dynamic.Resource(nads).Namespace(tt.namespace).Get(ctx, tt.name, metav1.GetOptions{}); err == nil {
			return messages, fmt.Errorf("%s/%s was refused, yet has a NAD", tt.namespace, tt.name)
		}
	}
	return messages, nil
}

func (w *World) beside() string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: beside, labels: {k8s.ovn.org/primary-user-defined-network: ""}}
---
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: beside}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: beside}}
  network:
    topology: Layer3
    layer3: {role: Primary, subnets: %s}
`, w.subnets(81))
}

const brokenNADs = `
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: broken, namespace: inputs}
spec:
  config: '{"cniVersion":"1.1.0","name":"broken","type":"ovn-k8s-cni-overlay","topology":"layer3","subnetz":"10.80.0.0/16"}'
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: garbage, namespace: inputs}
spec: {config: "{"}
`

func malformedNAD(ctx context.Context, w *World) (string, error) {
	return "", errors.Join(w.conditions(ctx, cudns, "", "beside", "True"),
		w.refused(ctx, "inputs", "broken", "subnetz"), w.refused(ctx, "inputs", "garbage", "not valid JSON"))
}

// setUpOthers creates the networks and NADs of the checks of kubectl and of bad
// input: the broken NADs before the network that they must not delay.
func setUpOthers(ctx context.Context, w *World) error {
	return w.Lab.Apply(ctx, strings.Join([]string{inputsNamespace, w.otherTopologies(), w.badNetworks(), brokenNADs, w.beside()}, "---"))
}

const inputsNamespace = `
apiVersion: v1
kind: Namespace
metadata: {name: inputs}
`

// refused waits for the event that reports why a NAD is not used.
func (w *World) refused(ctx context.Context, namespace, name, want string) error {
	return w.Lab.Wait(ctx, "an event about NAD "+name, func(ctx context.Context) (bool, string, error) {
		all, err := w.dynamic.Resource(events).Namespace(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=NetworkAttachmentDefinitionInvalid"})
		if err != nil {
			return false, "", err
		}
		var notes []string
		for _, e := range all.Items {
			about, _, _ := unstructured.NestedString(e.Object, "regarding", "name")
			note, _, _ := unstructured.NestedString(e.Object, "note")
			if about == name && strings.Contains(note, want) {
				return true, "", nil
			}
			notes = append(notes, about+": "+note)
		}
		return false, strings.Join(notes, "; "), nil
	})
}

var events = schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
