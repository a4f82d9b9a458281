// SPDX-License-Identifier: Apache-2.0

// Package nad reconciles hand-written NetworkAttachmentDefinitions: it validates
// them, assigns their network ids, and protects them from deletion while pods use
// them. Package udn reconciles those rendered from a UserDefinedNetwork or
// ClusterUserDefinedNetwork.
package nad

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
)

// Key names a NAD.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return network.NADKey(k.Namespace, k.Name) }

// holder is the NAD's name as a holder in netid.Allocator.
func (k Key) holder() string { return "NetworkAttachmentDefinition " + k.String() }

// NAD is the part of the object that the reconciler reads.
type NAD struct {
	Key
	UID             types.UID
	ResourceVersion string
	Deleting        bool
	Config          string
	ID, Network     string // the annotations
	Finalizers      []string
}

// Inputs are the inputs of Build for one NAD.
type Inputs struct {
	NAD   *NAD // nil if it does not exist
	Ours  bool // has our CNI type
	Conf  network.NetConf
	Error string   // why the configuration is invalid, "" if it is valid
	ID    int      // the network's id, 0 for none
	Users []string // pods that use the NAD; read only where Build needs them
}

// State is what the reconciler writes to a NAD, and the problem that it reports.
type State struct {
	Key
	ID, Network string
	Finalizer   bool
	Problem     string // the message of the NAD's event, "" for none
}

// Op is one API write.
type Op struct {
	Kind OpKind
	NAD  NAD   // actual
	Want State // desired
}

// OpKind is what an Op does.
type OpKind string

// The operations, in the order of execution.
const (
	Mark OpKind = "mark" // annotations and finalizer
	Warn OpKind = "warn about"
)

func (o Op) String() string {
	switch {
	case o.Kind == Warn:
		return fmt.Sprintf("warn about NetworkAttachmentDefinition %s: %s", o.NAD.Key, o.Want.Problem)
	case !o.Want.Finalizer:
		return fmt.Sprintf("release NetworkAttachmentDefinition %s", o.NAD.Key)
	case o.Want.ID == "":
		return fmt.Sprintf("remove the network id from NetworkAttachmentDefinition %s", o.NAD.Key)
	}
	return fmt.Sprintf("assign network id %s to NetworkAttachmentDefinition %s", o.Want.ID, o.NAD.Key)
}

func idText(id int) string {
	if id == 0 {
		return ""
	}
	return strconv.Itoa(id)
}
