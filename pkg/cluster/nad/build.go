// SPDX-License-Identifier: Apache-2.0

package nad

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/pkg/network"
)

// Build says what should be on a NAD, given what is (have).
//
// One that has an id and has become unusable keeps it: pods live on its
// network, and a typing mistake must not cut them off.
func Build(in Inputs, have State) State {
	want := State{Key: have.Key}
	switch {
	case in.NAD == nil:
		return want
	case !in.Ours || in.NAD.Deleting:
		if len(in.Users) > 0 {
			want = have
			want.Problem = "network in use by the following pods: [" + strings.Join(in.Users, ", ") + "]: it ends once they are gone"
		}
		return want
	case in.Error != "":
		want.Problem = in.Error
		if in.ID == 0 || have.ID != idText(in.ID) {
			return want // it never was usable: what is on it, nobody of ours wrote
		}
		want.ID, want.Network, want.Finalizer = have.ID, have.Network, have.Finalizer
		return want
	}
	want.ID, want.Network, want.Finalizer = idText(in.ID), in.Conf.Name, true
	return want
}

// Have is the state that a NAD is in.
func Have(n NAD) State {
	return State{Key: n.Key, ID: n.ID, Network: n.Network, Finalizer: slices.Contains(n.Finalizers, Finalizer)}
}

// Check is the part of a NAD's validation that needs no other object: its
// network, if the error is nil. Errors name the key and the remedy.
func Check(k Key, c network.NetConf, plan network.Plan) (network.Network, error) {
	if network.IsUDNName(c.Name) {
		return network.Network{}, fmt.Errorf("name %q has the form of a UserDefinedNetwork's, which alone may use it: choose a name without \"_\"", c.Name)
	}
	if c.NetAttachDefName != "" && c.NetAttachDefName != k.String() {
		return network.Network{}, fmt.Errorf("netAttachDefName is %q: write %q, the NetworkAttachmentDefinition's own namespace and name", c.NetAttachDefName, k)
	}
	n, err := c.Network(1, plan) // the id matters to nothing that is checked here
	if err != nil {
		return n, err
	}
	return n, plan.Conflict(n)
}

// SameNetwork tells whether two NADs of one name describe one network.
func SameNetwork(a, b network.NetConf) bool {
	a.NetAttachDefName, b.NetAttachDefName = "", ""
	a.CNIVersion, b.CNIVersion = "", ""
	return a == b
}
