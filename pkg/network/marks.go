// SPDX-License-Identifier: Apache-2.0

package network

// Keys of external_ids on the northbound database's rows, which northd copies to port
// bindings.
const (
	MarkNetwork   = "k8s.ovn.org/network" // the network's name
	MarkRole      = "k8s.ovn.org/role"    // the network's role
	MarkNode      = "k8s.ovn.org/node"    // the node that a port leads to
	MarkNamespace = "namespace"           // of a pod
	MarkPod       = "pod_name"

	MarkController        = "k8s.ovn.org/owner-controller" // of a route: what has written it
	ControllerRouteImport = "RouteImport"                  // BGP has learned the route
)
