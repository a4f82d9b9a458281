// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// maxName limits network names in hand-written NADs. The Kubernetes API limits
// the names of UserDefinedNetworks.
const maxName = 63

var nameRegexp = regexp.MustCompile(`^[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?$`)

// gatewayPrefixes are the prefixes, before "_", of OVN object names that do not
// begin with the network's name (see ovnnames.go). A network, or a namespace
// with a network, must not have such a name: its OVN objects would have the
// names of other networks' objects.
var gatewayPrefixes = []string{"ext", "GR"}

// checkName checks that OVN object names can be derived from a network's name.
// It refuses names that OVN and OVSDB do not accept, and names that lead to
// conflicts. Names in hand-written NADs must not contain "_", which separates
// the parts of derived names.
func checkName(name string) error {
	first, _, _ := strings.Cut(name, "_")
	if IsUDNName(name) {
		if !strings.HasPrefix(name, "cluster_udn_") && slices.Contains(gatewayPrefixes, first) {
			return fmt.Errorf("name %q: prefix %q is reserved for OVN objects of gateways: create the network in another namespace", name, first+"_")
		}
		return nil
	}
	switch {
	case !nameRegexp.MatchString(name) || len(name) > maxName:
		return fmt.Errorf("name %q: write 1 to %d letters, digits, - and ., the first and the last a letter or a digit", name, maxName)
	case slices.Contains(gatewayPrefixes, name):
		return fmt.Errorf("name %q: prefix %q is reserved for OVN objects of gateways: choose another name", name, name+"_")
	}
	return nil
}

// CheckPodPort checks that a pod's port on the cluster default network does not
// have the name of a port between a network's own switches and routers. Such a
// conflict depends on the names of hand-written networks, of nodes, and of the
// external bridge.
func CheckPodPort(namespace, pod, bridge string, isNetwork, isNode func(string) bool) error {
	taken := namespace == bridge && isNode(pod)
	for _, prefix := range []string{"k8s-", "stor-"} {
		name, ok := strings.CutPrefix(namespace, prefix)
		taken = taken || ok && isNetwork(name) && isNode(pod)
	}
	node, ok := strings.CutPrefix(pod, "tstor-")
	taken = taken || ok && isNetwork(namespace) && isNode(node)
	if taken {
		return fmt.Errorf("pod %s/%s: the name of its port would be %s, which is the name of a port between a network's switches and routers: give the pod another name", namespace, pod, PodLSP(DefaultName, namespace, pod))
	}
	return nil
}

// joinNode is the node name for which a network's node switch and join switch
// would have the same name.
const joinNode = "join"

// CheckNodeName checks that OVN object names can be derived from a node's name.
func CheckNodeName(name string) error {
	if name == joinNode {
		return fmt.Errorf("node %q: its switches would have the names of join switches: give the node another name", name)
	}
	return nil
}
