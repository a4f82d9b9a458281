// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// maxName bounds names that administrators choose. Those of UserDefinedNetworks
// follow from Kubernetes' own bounds.
const maxName = 63

var nameForm = regexp.MustCompile(`^[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?$`)

// derived are the words that stand before "_" in names of OVN objects (see
// ovnnames.go): of a network called so, or of one in a namespace called so, the
// objects would have the names of other networks' objects.
var derived = []string{"ext", "GR"}

// checkName tells whether names of OVN objects can be made of a network's name.
// Whatever OVN and OVSDB would not take, and what would be somebody else's
// name, is refused here. A name chosen by hand holds no "_", which separates
// the parts of those that are derived.
func checkName(name string) error {
	first, _, _ := strings.Cut(name, "_")
	if IsUDNName(name) {
		if !strings.HasPrefix(name, "cluster_udn_") && slices.Contains(derived, first) {
			return fmt.Errorf("name %q: names of OVN objects that begin with %q are those of gateways: make the network in another namespace", name, first+"_")
		}
		return nil
	}
	switch {
	case !nameForm.MatchString(name) || len(name) > maxName:
		return fmt.Errorf("name %q: write 1 to %d letters, digits, - and ., the first and the last a letter or a digit", name, maxName)
	case slices.Contains(derived, name):
		return fmt.Errorf("name %q: names of OVN objects that begin with %q are those of gateways: choose another", name, name+"_")
	}
	return nil
}

// CheckPodPort tells whether a pod's port on the cluster default network would have
// the name of another port: one that joins a network's own switches and routers
// on a node. Which those are follows from the names of networks that were
// chosen by hand, of nodes, and of the external bridge.
func CheckPodPort(namespace, pod, bridge string, isNetwork, isNode func(string) bool) error {
	taken := namespace == bridge && isNode(pod)
	for _, before := range []string{"k8s-", "stor-"} {
		name, ok := strings.CutPrefix(namespace, before)
		taken = taken || ok && isNetwork(name) && isNode(pod)
	}
	node, ok := strings.CutPrefix(pod, "tstor-")
	taken = taken || ok && isNetwork(namespace) && isNode(node)
	if taken {
		return fmt.Errorf("pod %s/%s: its port would have the name %s, which is that of a network's own port: give the pod another name", namespace, pod, PodLSP(DefaultName, namespace, pod))
	}
	return nil
}

// joinNode is the one node name that would give a network's switch on the node
// the name of its join switch.
const joinNode = "join"

// CheckNodeName tells whether names of OVN objects can be made of a node's name.
func CheckNodeName(name string) error {
	if name == joinNode {
		return fmt.Errorf("node %q: its switches would have the names of networks' join switches: give the node another name", name)
	}
	return nil
}
