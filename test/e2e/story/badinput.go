// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func badInputChecks() []Check {
	return []Check{
		{7, "an invalid network is refused by the API with a message that names the remedy", invalidRefused, 0},
		{7, "too small for the nodes, without label, second primary, without routes: said in status", badNetworksReported, 0},
		{7, "a malformed NAD is refused in an event and holds up nobody", malformedNAD, 0},
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

const badNetworks = `
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
    layer3: {role: Primary, subnets: [{cidr: 10.77.0.0/24}]} # one node's
---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: unlabelled, namespace: plain}
spec:
  topology: Layer3
  layer3: {role: Primary, subnets: [{cidr: 10.79.0.0/16}]}
---
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: second, namespace: blue}
spec:
  topology: Layer3
  layer3: {role: Primary, subnets: [{cidr: 10.79.0.0/16}]}
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
    layer3: {role: Primary, subnets: [{cidr: 10.79.0.0/16}]}
    transport: NoOverlay
    noOverlayOptions: {outboundSNAT: Enabled, routing: Unmanaged}
`

func badNetworksReported(ctx context.Context, w *World) (string, error) {
	var messages []string
	err := w.forAWhile(ctx, badNetworks, func() (err error) {
		messages, err = reported(ctx, w)
		return err
	})
	fmt.Fprintf(w.Out, "     %s\n", strings.Join(messages, "\n     "))
	return "", err
}

// forAWhile applies a manifest, looks, deletes it, and waits until every node
// is as it was before.
func (w *World) forAWhile(ctx context.Context, manifest string, look func() error) error {
	before, err := w.states(ctx, false)
	if err != nil {
		return err
	}
	if err := w.Lab.Apply(ctx, manifest); err != nil {
		return err
	}
	seen := look()
	// What comes later must not stumble over it, even if the time is over.
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := w.Lab.Delete(undo, manifest); err != nil {
		return errors.Join(seen, err)
	}
	return errors.Join(seen, w.asBefore(ctx, before))
}

// reported waits for each bad network's message in its status.
func reported(ctx context.Context, w *World) (messages []string, err error) {
	for _, tt := range []struct {
		gvr                              schema.GroupVersionResource
		namespace, name, condition, want string
	}{
		{cudns, "", "small", "NetworkAllocationSucceeded", "hold no host subnet for nodes [node"},
		{udns, "plain", "unlabelled", "NetworkCreated", "k8s.ovn.org/primary-user-defined-network"},
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

const beside = `
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
    layer3: {role: Primary, subnets: [{cidr: 10.81.0.0/16}]}
`

func malformedNAD(ctx context.Context, w *World) (string, error) {
	const broken = `
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: broken, namespace: plain}
spec:
  config: '{"cniVersion":"1.1.0","name":"broken","type":"ovn-k8s-cni-overlay","topology":"layer3","subnetz":"10.80.0.0/16"}'
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: garbage, namespace: plain}
spec: {config: "{"}
`
	return "", w.forAWhile(ctx, broken+"---"+beside, func() error {
		if err := w.conditions(ctx, cudns, "", "beside", "True"); err != nil {
			return err
		}
		return errors.Join(w.refused(ctx, "plain", "broken", "subnetz"), w.refused(ctx, "plain", "garbage", "not valid JSON"))
	})
}

// refused waits for the event that says why a NAD is not used.
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
