// SPDX-License-Identifier: Apache-2.0

package nad

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Build returns the desired state of a NAD; have is the actual one.
//
// A NAD with an id whose configuration became invalid keeps the id: a typing
// mistake must not disconnect the pods of its network.
func Build(in Inputs, have State) State {
	want := State{Key: have.Key}
	switch {
	case in.NAD == nil:
		return want
	case !in.Ours || in.NAD.Deleting:
		if len(in.Users) > 0 {
			want = have
			want.Problem = "network in use by the following pods: [" + strings.Join(in.Users, ", ") + "]: the network is removed once they are deleted"
		}
		return want
	case in.Error != "":
		want.Problem = in.Error
		if in.ID == 0 || have.ID != idText(in.ID) {
			return want // it was never valid: the cluster controller wrote none of its annotations
		}
		want.ID, want.Network, want.Finalizer = have.ID, have.Network, have.Finalizer
		return want
	}
	want.ID, want.Network, want.Finalizer = idText(in.ID), in.Conf.Name, true
	return want
}

// Have returns a NAD's actual state.
func Have(n NAD) State {
	return State{Key: n.Key, ID: n.ID, Network: n.Network, Finalizer: slices.Contains(n.Finalizers, network.FinalizerNAD)}
}

// Check validates a NAD as far as that needs no other object, and returns its
// network. Errors name the configuration's key and the remedy.
func Check(k Key, c network.NetConf, plan network.Plan) (network.Network, error) {
	if network.IsUDNName(c.Name) {
		return network.Network{}, fmt.Errorf("name %q is reserved for UserDefinedNetworks: choose a name without \"_\"", c.Name)
	}
	if c.NetAttachDefName != "" && c.NetAttachDefName != k.String() {
		return network.Network{}, fmt.Errorf("netAttachDefName is %q: write %q, the NetworkAttachmentDefinition's own namespace and name", c.NetAttachDefName, k)
	}
	n, err := c.Network(1, plan) // the checks do not depend on the id
	if err != nil {
		return n, err
	}
	return n, errors.Join(plan.Conflict(n), plan.CheckMTU(n))
}

// SameNetwork tells whether two NADs with the same network name configure the same
// network.
func SameNetwork(a, b network.NetConf) bool {
	a.NetAttachDefName, b.NetAttachDefName = "", ""
	a.CNIVersion, b.CNIVersion = "", ""
	return a == b
}
